//! Keys and values in memory, in pages of a few slots.
//!
//! A page holds its slots for every layer. Texts with a common beginning hold the same pages; one that writes to a page
//! that others hold takes a copy first. So sharing costs nothing, whoever goes on, and a growing text moves nothing.

use std::ops::Range;
use std::sync::Arc;

use candle_core::Result;

use super::Form;

/// Slots of a page; numbers side by side in a [`Line`].
pub(crate) const PAGE: usize = 32;

/// Thirty-two numbers; it begins with a cache line, so that no vector lies across two.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
pub(crate) struct Line(pub [f32; PAGE]);

/// For every layer and head a block: of each number of a key one line, with the page's slots side by side; then of each
/// slot's value as many lines as it fills. Behind the blocks each slot's hidden states.
#[derive(Debug, Clone)]
struct Page(Vec<Line>);

/// What a page holds of one head in one layer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block<'a> {
    /// `[head, slots]`
    pub keys: &'a [Line],
    /// `[slots, head]`, each slot's in whole lines.
    pub values: &'a [Line],
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

    fn block(&self, layer: usize, head: usize) -> Range<usize> {
        let first = (layer * self.heads + head) * self.block_lines();
        first..first + self.block_lines()
    }

    fn state_lines(&self) -> usize {
        self.watched.div_ceil(PAGE)
    }

    /// The lines of a slot's hidden states.
    fn states(&self, slot: usize) -> Range<usize> {
        let first = self.layers * self.heads * self.block_lines() + slot % PAGE * self.state_lines();
        first..first + self.state_lines()
    }

    fn page_lines(&self) -> usize {
        self.states(PAGE - 1).end
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
            let (mut lines, count) = (Vec::new(), self.form.page_lines());
            lines.try_reserve_exact(count).map_err(candle_core::Error::wrap)?;
            lines.resize(count, Line::default());
            self.pages.push(Arc::new(Page(lines)));
        }
        Ok(())
    }

    pub fn bytes(&self) -> usize {
        self.pages.len() * self.form.page_lines() * size_of::<Line>()
    }

    pub fn share(&self, slots: usize) -> Self {
        let pages = self.pages[..slots.div_ceil(PAGE)].to_vec();
        Self { form: self.form, pages }
    }

    pub fn shorten(&mut self, slots: usize) {
        self.pages.truncate(slots.div_ceil(PAGE));
    }

    /// Keys and values of one head in one layer.
    pub fn block(&self, page: usize, layer: usize, head: usize) -> Block<'_> {
        let (keys, values) = self.pages[page].0[self.form.block(layer, head)].split_at(self.form.head);
        Block { keys, values }
    }

    /// Writes the key and value, `[heads, head]` each, of one slot in one layer.
    pub fn write(&mut self, layer: usize, slot: usize, key: &[f32], value: &[f32]) {
        let Form { heads, head, .. } = self.form;
        let page = Arc::make_mut(&mut self.pages[slot / PAGE]);
        for number in 0..heads {
            let block = &mut page.0[self.form.block(layer, number)];
            let (keys, values) = block.split_at_mut(head);
            let own = number * head..(number + 1) * head;
            for (line, number) in keys.iter_mut().zip(&key[own.clone()]) {
                line.0[slot % PAGE] = *number;
            }
            let lines = &mut values[slot % PAGE * self.form.value_lines()..][..self.form.value_lines()];
            for (line, numbers) in lines.iter_mut().zip(value[own].chunks(PAGE)) {
                line.0[..numbers.len()].copy_from_slice(numbers);
            }
        }
    }

    /// The key and value of one slot in one layer.
    fn read(&self, layer: usize, slot: usize) -> [Vec<f32>; 2] {
        let Form { heads, head, .. } = self.form;
        let (mut key, mut value) = (Vec::with_capacity(heads * head), Vec::with_capacity(heads * head));
        for number in 0..heads {
            let Block { keys, values } = self.block(slot / PAGE, layer, number);
            key.extend(keys.iter().map(|line| line.0[slot % PAGE]));
            let lines = &values[slot % PAGE * self.form.value_lines()..][..self.form.value_lines()];
            value.extend(lines.iter().flat_map(|line| line.0).take(head));
        }
        [key, value]
    }

    pub fn watch(&mut self, slot: usize, first: usize, state: &[f32]) {
        let page = Arc::make_mut(&mut self.pages[slot / PAGE]);
        let lines = &mut page.0[self.form.states(slot)];
        for (number, value) in (first..).zip(state) {
            lines[number / PAGE].0[number % PAGE] = *value;
        }
    }

    pub fn watched(&self, slot: usize) -> Vec<f32> {
        let lines = &self.pages[slot / PAGE].0[self.form.states(slot)];
        lines.iter().flat_map(|line| line.0).take(self.form.watched).collect()
    }

    pub fn keep(&mut self, start: usize, slots: &[usize]) {
        for (to, &from) in (start..).zip(slots).filter(|(to, from)| to != *from) {
            let states = self.watched(from);
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

    /// A head that does not fill its lines.
    const FORM: Form = Form { layers: 2, heads: 2, head: 40, watched: 33 };

    fn numbers(seed: usize) -> Vec<f32> {
        (0..80).map(|i| (1000 * seed + i) as f32).collect()
    }

    fn filled(slots: usize) -> Pages {
        let mut pages = Pages::new(FORM);
        pages.reserve(slots).unwrap();
        for slot in 0..slots {
            for layer in 0..2 {
                pages.write(layer, slot, &numbers(2 * slot + layer), &numbers(500 + 2 * slot + layer));
            }
            pages.watch(slot, 0, &numbers(900 + slot)[..20]);
            pages.watch(slot, 20, &numbers(900 + slot)[20..33]);
        }
        pages
    }

    fn holds(pages: &Pages, slot: usize, what: usize) -> bool {
        (0..2).all(|layer| {
            pages.read(layer, slot) == [numbers(2 * what + layer), numbers(500 + 2 * what + layer)]
        }) && pages.watched(slot) == numbers(900 + what)[..33]
    }

    #[test]
    fn slots_move_to_where_they_are_kept() {
        let mut pages = filled(70);
        pages.keep(30, &[30, 33, 34, 69]);
        for (slot, what) in [(0, 0), (29, 29), (30, 30), (31, 33), (32, 34), (33, 69), (40, 40)] {
            assert!(holds(&pages, slot, what), "{slot}");
        }
    }

    #[test]
    fn what_is_shared_does_not_change() {
        let mut pages = filled(70);
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
