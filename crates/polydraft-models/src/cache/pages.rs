//! Keys and values in memory, in pages of a few slots.
//!
//! A page holds its slots for every layer. Texts with a common beginning hold the same pages; one
//! that writes to a page that others hold takes a copy first. So sharing costs nothing, whoever
//! goes on, and a growing text moves nothing.

use std::ops::Range;
use std::sync::Arc;

use candle_core::Result;

use super::Form;
use super::numbers::{Line, Numbers};
use crate::packed::fetch::Coming;

/// Slots of a page; numbers side by side in a [`Line`].
pub(crate) const PAGE: usize = 32;

/// For every layer and head a block: of each number of a key one line, with the page's slots side
/// by side; then of each slot's value as many lines as it fills.
#[derive(Debug, Clone)]
struct Page {
    blocks: Numbers,
    /// Each slot's hidden states, `[slots, watched]`.
    states: Vec<f32>,
}

#[derive(Debug)]
pub(crate) struct Pages {
    form: Form,
    pages: Vec<Arc<Page>>,
}

impl Form {
    /// Lines that a head's value fills.
    pub fn value_lines(&self) -> usize {
        self.head.div_ceil(PAGE)
    }

    fn block_lines(&self) -> usize {
        self.head + PAGE * self.value_lines()
    }

    /// The first line of a head's keys in one layer.
    fn keys(&self, layer: usize, head: usize) -> usize {
        (layer * self.heads + head) * self.block_lines()
    }

    /// The first line of its values.
    fn values(&self, layer: usize, head: usize) -> usize {
        self.keys(layer, head) + self.head
    }

    fn page_lines(&self) -> usize {
        self.layers * self.heads * self.block_lines()
    }

    /// A slot's hidden states.
    fn states(&self, slot: usize) -> Range<usize> {
        let first = slot % PAGE * self.watched;
        first..first + self.watched
    }

    fn page_bytes(&self) -> usize {
        self.page_lines() * PAGE * self.held.bytes() + PAGE * self.watched * size_of::<f32>()
    }
}

impl Pages {
    pub fn new(form: Form) -> Self {
        Self { form, pages: Vec::new() }
    }

    pub fn form(&self) -> Form {
        self.form
    }

    pub fn reserve(&mut self, slots: usize) -> Result<()> {
        while self.pages.len() * PAGE < slots {
            let (mut states, count) = (Vec::new(), PAGE * self.form.watched);
            states.try_reserve_exact(count).map_err(candle_core::Error::wrap)?;
            states.resize(count, 0.0);
            let blocks = Numbers::new(self.form.held, self.form.page_lines())?;
            self.pages.push(Arc::new(Page { blocks, states }));
        }
        Ok(())
    }

    pub fn bytes(&self) -> usize {
        self.pages.len() * self.form.page_bytes()
    }

    pub fn share(&self, slots: usize) -> Self {
        let pages = self.pages[..slots.div_ceil(PAGE)].to_vec();
        Self { form: self.form, pages }
    }

    pub fn shorten(&mut self, slots: usize) {
        self.pages.truncate(slots.div_ceil(PAGE));
    }

    /// A page's keys of one head in one layer, `[head, slots]`; in `room` where they are held in
    /// fewer bits.
    #[inline(always)]
    pub fn keys<'a>(
        &'a self,
        page: usize,
        layer: usize,
        head: usize,
        room: &'a mut Vec<Line>,
    ) -> &'a [Line] {
        self.pages[page].blocks.lines(self.form.keys(layer, head), self.form.head, room)
    }

    /// Its values, `[slots, head]`, each slot's in whole lines; likewise.
    #[inline(always)]
    pub fn values<'a>(
        &'a self,
        page: usize,
        layer: usize,
        head: usize,
        room: &'a mut Vec<Line>,
    ) -> &'a [Line] {
        let count = PAGE * self.form.value_lines();
        self.pages[page].blocks.lines(self.form.values(layer, head), count, room)
    }

    /// The lines of [`keys`](Self::keys), and those of [`values`](Self::values), as they are held.
    #[inline(always)]
    pub fn coming(&self, page: usize, layer: usize, head: usize) -> [Coming; 2] {
        let Some(page) = self.pages.get(page) else { return [Coming::NOTHING; 2] };
        let values = PAGE * self.form.value_lines();
        [
            page.blocks.coming(self.form.keys(layer, head), self.form.head),
            page.blocks.coming(self.form.values(layer, head), values),
        ]
    }

    /// Writes the key and value, `[heads, head]` each, of one slot in one layer.
    pub fn write(&mut self, layer: usize, slot: usize, key: &[f32], value: &[f32]) {
        let form @ Form { heads, head, .. } = self.form;
        let blocks = &mut Arc::make_mut(&mut self.pages[slot / PAGE]).blocks;
        for number in 0..heads {
            let own = number * head..(number + 1) * head;
            blocks.set_column(form.keys(layer, number), slot % PAGE, &key[own.clone()]);
            blocks.set_row(
                form.values(layer, number) + slot % PAGE * form.value_lines(),
                &value[own],
            );
        }
    }

    /// The key and value of one slot in one layer.
    fn read(&self, layer: usize, slot: usize) -> [Vec<f32>; 2] {
        let form @ Form { heads, head, .. } = self.form;
        let (mut key, mut value) =
            (Vec::with_capacity(heads * head), Vec::with_capacity(heads * head));
        let blocks = &self.pages[slot / PAGE].blocks;
        for number in 0..heads {
            let keys = form.keys(layer, number);
            key.extend((keys..keys + head).map(|line| blocks.get(line, slot % PAGE)));
            let first = form.values(layer, number) + slot % PAGE * form.value_lines();
            value.extend((0..head).map(|i| blocks.get(first + i / PAGE, i % PAGE)));
        }
        [key, value]
    }

    /// Writes the hidden states of a slot from number `first` on.
    pub fn watch(&mut self, slot: usize, first: usize, state: &[f32]) {
        let own = self.form.states(slot).start + first;
        Arc::make_mut(&mut self.pages[slot / PAGE]).states[own..own + state.len()]
            .copy_from_slice(state);
    }

    /// The hidden states of a slot.
    pub fn watched(&self, slot: usize) -> &[f32] {
        &self.pages[slot / PAGE].states[self.form.states(slot)]
    }

    pub fn keep(&mut self, start: usize, slots: &[usize]) {
        for (to, &from) in (start..).zip(slots).filter(|(to, from)| to != *from) {
            let states = self.watched(from).to_vec();
            self.watch(to, 0, &states);
            for layer in 0..self.form.layers {
                let [key, value] = self.read(layer, from);
                self.write(layer, to, &key, &value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CacheType;

    /// A head that does not fill its lines.
    const FORM: Form = Form { layers: 2, heads: 2, head: 40, watched: 33, held: CacheType::F32 };

    /// All of them halves too.
    fn numbers(seed: usize) -> Vec<f32> {
        (0..80).map(|i| ((7919 * seed + i) % 2048) as f32).collect()
    }

    fn filled(slots: usize, held: CacheType) -> Pages {
        let mut pages = Pages::new(Form { held, ..FORM });
        pages.reserve(slots).unwrap();
        for slot in 0..slots {
            for layer in 0..2 {
                pages.write(
                    layer,
                    slot,
                    &numbers(2 * slot + layer),
                    &numbers(500 + 2 * slot + layer),
                );
            }
            pages.watch(slot, 0, &numbers(900 + slot)[..20]);
            pages.watch(slot, 20, &numbers(900 + slot)[20..33]);
        }
        pages
    }

    fn holds(pages: &Pages, slot: usize, what: usize) -> bool {
        (0..2).all(|layer| {
            pages.read(layer, slot) == [numbers(2 * what + layer), numbers(500 + 2 * what + layer)]
        }) && *pages.watched(slot) == numbers(900 + what)[..33]
    }

    #[test]
    fn slots_move_to_where_they_are_kept() {
        for held in CacheType::ALL {
            let mut pages = filled(70, held);
            pages.keep(30, &[30, 33, 34, 69]);
            for (slot, what) in [(0, 0), (29, 29), (30, 30), (31, 33), (32, 34), (33, 69), (40, 40)]
            {
                assert!(holds(&pages, slot, what), "{held} {slot}");
            }
        }
    }

    #[test]
    fn halves_take_half() {
        let bytes = |held| Form { held, watched: 0, ..FORM }.page_bytes();
        assert_eq!(bytes(CacheType::F32), 2 * bytes(CacheType::F16));
    }

    #[test]
    fn what_is_shared_does_not_change() {
        let mut pages = filled(70, CacheType::F32);
        let mut other = pages.share(40);
        assert_eq!(other.bytes(), pages.bytes() / 3 * 2);
        for layer in 0..2 {
            pages.write(layer, 33, &numbers(7), &numbers(8));
            other.write(layer, 34, &numbers(9), &numbers(10));
        }
        pages.watch(32, 0, &[7.0]);
        assert!(holds(&other, 32, 32) && !holds(&pages, 32, 32));
        assert!(holds(&other, 33, 33) && holds(&pages, 34, 34));
        assert!(!holds(&other, 34, 34) && !holds(&pages, 33, 33));
        other.shorten(32);
        assert!(other.bytes() == pages.bytes() / 3 && holds(&other, 31, 31));
    }
}
