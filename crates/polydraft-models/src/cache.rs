//! The KV cache of one sequence, and hidden states where they are captured, in slots that can be
//! committed selectively.
//!
//! The caller counts: which slots are the context and which the draft tree after it. Slots lie in
//! pages of [`PAGE`]. Sequences with a common beginning hold the same pages; one that writes to a
//! page that others hold takes a copy first. So sharing costs nothing, whoever goes on, and a
//! growing sequence moves nothing. Layers whose heads have another shape have pages of their own.

mod recurrent;

use std::ops::Range;
use std::sync::Arc;

use polydraft_kernels::{Error, Layout, Mask, PAGE, Page, Result, Walk};

use recurrent::Recurrent;
pub(crate) use recurrent::StateForm;

/// What is cached of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Form {
    /// Its KV cache, of the layers of each shape.
    pub layouts: Vec<Layout>,
    /// Numbers of the hidden states that are captured.
    pub watched: usize,
    /// What recurrent layers keep, if there are some.
    pub recurrent: Option<StateForm>,
}

impl Form {
    /// A slot's hidden states in its page.
    fn states(&self, slot: usize) -> Range<usize> {
        let first = slot % PAGE * self.watched;
        first..first + self.watched
    }

    fn page_bytes(&self) -> usize {
        let pages: usize = self.layouts.iter().map(Layout::page_bytes).sum();
        pages + PAGE * self.watched * size_of::<f32>()
    }
}

/// Where a layer's KV cache is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct CachePlace {
    /// Which of the shapes its heads have.
    pub shape: usize,
    /// Which of the layers of that shape it is.
    pub layer: usize,
}

/// The KV cache of one sequence.
#[derive(Debug)]
pub(crate) struct Cache {
    form: Form,
    /// Those of each shape.
    pages: Vec<Vec<Arc<Page>>>,
    /// Of each page its slots' hidden states, `[slots, watched]`.
    states: Vec<Arc<Vec<f32>>>,
    recurrent: Option<Box<Recurrent>>,
}

impl Cache {
    /// An empty one.
    pub fn new(form: Form) -> Self {
        let recurrent = form.recurrent.map(|form| Box::new(Recurrent::new(form)));
        let pages = vec![Vec::new(); form.layouts.len()];
        Self { form, pages, states: Vec::new(), recurrent }
    }

    /// The most slots, up to `slots`, after which tokens can be computed: all of them where no
    /// layer is recurrent.
    pub fn restart(&self, slots: usize) -> usize {
        self.recurrent.as_ref().map_or(slots, |recurrent| recurrent.restart(slots))
    }

    /// Begins a pass over the tokens from slot `start` on; the first `settled` of all are decided.
    pub fn begin(&mut self, start: usize, masks: &[Mask], settled: usize) -> Result<()> {
        self.reserve(start + masks.len())?;
        match &mut self.recurrent {
            None => Ok(()),
            Some(recurrent) => recurrent.begin(start, masks, settled),
        }
    }

    /// Ends a pass that all layers went through.
    pub fn end(&mut self, is_prompt: bool) {
        if let Some(recurrent) = &mut self.recurrent {
            recurrent.end(is_prompt);
        }
    }

    /// Takes what the convolution of a recurrent layer reads of the new tokens.
    pub fn take_channels(&mut self, layer: usize, rows: &[f32]) {
        if let Some(recurrent) = &mut self.recurrent {
            recurrent.take_channels(layer, rows);
        }
    }

    /// Takes what changes the memory of a recurrent layer of the new tokens.
    pub fn take_inputs(&mut self, layer: usize, rows: &[f32]) {
        if let Some(recurrent) = &mut self.recurrent {
            recurrent.take_inputs(layer, rows);
        }
    }

    /// Of every new token what the convolution of a recurrent layer reads, itself last.
    pub fn windows(&self, layer: usize) -> impl Iterator<Item = Vec<&[f32]>> {
        self.recurrent.iter().flat_map(move |recurrent| recurrent.windows(layer))
    }

    /// What the memory of a recurrent layer goes through.
    pub fn walk(&mut self, layer: usize) -> Option<Walk<'_>> {
        self.recurrent.as_mut().map(|recurrent| recurrent.walk(layer))
    }

    /// The layout of the pages of a shape.
    pub fn layout(&self, shape: usize) -> Layout {
        self.form.layouts[shape]
    }

    /// The pages of the layers of a shape.
    pub fn pages(&self, shape: usize) -> &[Arc<Page>] {
        &self.pages[shape]
    }

    /// Makes room for so many slots; what is there stays.
    fn reserve(&mut self, slots: usize) -> Result<()> {
        while self.states.len() * PAGE < slots {
            let (mut states, count) = (Vec::new(), PAGE * self.form.watched);
            states.try_reserve_exact(count).map_err(Error::from)?;
            states.resize(count, 0.0);
            let new = self.form.layouts.iter().map(|layout| Page::new(*layout));
            let new = new.collect::<Result<Vec<Page>>>()?;
            for (pages, page) in self.pages.iter_mut().zip(new) {
                pages.push(Arc::new(page));
            }
            self.states.push(Arc::new(states));
        }
        Ok(())
    }

    /// The pages of these slots in the layers of a shape, each with those of its slots. Those that
    /// others hold are copied first, here: memory that each of several threads allocates comes back
    /// to that thread alone, and a server grew by it.
    pub fn pages_mut(
        &mut self,
        shape: usize,
        slots: Range<usize>,
    ) -> impl Iterator<Item = (&mut Page, Range<usize>)> {
        let first = slots.start / PAGE;
        let pages = self.pages[shape][first..slots.end.div_ceil(PAGE)].iter_mut();
        pages.enumerate().map(move |(number, page)| {
            let start = (first + number) * PAGE;
            (Arc::make_mut(page), slots.start.max(start)..slots.end.min(start + PAGE))
        })
    }

    /// Writes the key and value, `[heads, head]` each, of one slot in one layer.
    pub fn write(&mut self, place: CachePlace, slot: usize, key: &[f32], value: &[f32]) {
        let page = &mut self.pages[place.shape][slot / PAGE];
        Arc::make_mut(page).write(place.layer, slot % PAGE, key, value);
    }

    /// Moves the contents of `slots`, which ascend and are not below `start`, to the slots from
    /// `start` on.
    pub fn keep(&mut self, start: usize, slots: &[usize]) {
        for (to, &from) in (start..).zip(slots).filter(|(to, from)| to != *from) {
            let states = self.states_of(from).to_vec();
            self.capture_hidden_states(to, 0, &states);
            for shape in 0..self.pages.len() {
                for layer in 0..self.form.layouts[shape].layers {
                    let [key, value] = self.pages[shape][from / PAGE].read(layer, from % PAGE);
                    self.write(CachePlace { shape, layer }, to, &key, &value);
                }
            }
        }
        if let Some(recurrent) = &mut self.recurrent {
            recurrent.keep(start, slots);
        }
    }

    /// Another one with the contents of the first `slots`. Changes of the one are not seen in the
    /// other.
    pub fn share(&self, slots: usize) -> Self {
        let count = slots.div_ceil(PAGE);
        let pages = self.pages.iter().map(|pages| pages[..count].to_vec()).collect();
        let states = self.states[..count].to_vec();
        let recurrent = self.recurrent.as_ref().map(|own| Box::new(own.share(slots)));
        Self { form: self.form.clone(), pages, states, recurrent }
    }

    /// Drops the pages wholly after the first `slots`.
    pub fn shorten(&mut self, slots: usize) {
        self.pages.iter_mut().for_each(|pages| pages.truncate(slots.div_ceil(PAGE)));
        self.states.truncate(slots.div_ceil(PAGE));
        if let Some(recurrent) = &mut self.recurrent {
            recurrent.shorten(slots);
        }
    }

    /// Writes the hidden states of a slot from number `first` on.
    pub fn capture_hidden_states(&mut self, slot: usize, first: usize, state: &[f32]) {
        if !state.is_empty() {
            let own = self.form.states(slot).start + first;
            Arc::make_mut(&mut self.states[slot / PAGE])[own..own + state.len()]
                .copy_from_slice(state);
        }
    }

    fn states_of(&self, slot: usize) -> &[f32] {
        &self.states[slot / PAGE][self.form.states(slot)]
    }

    /// The hidden states of these slots, `[slots, watched]`.
    pub fn watched(&self, slots: Range<usize>) -> Vec<f32> {
        slots.flat_map(|slot| self.states_of(slot)).copied().collect()
    }

    /// Bytes that it takes, those shared with other sequences included.
    pub fn bytes(&self) -> usize {
        let state = self.recurrent.as_ref().map_or(0, |recurrent| recurrent.bytes());
        self.states.len() * self.form.page_bytes() + state
    }
}

#[cfg(test)]
mod tests {
    use polydraft_kernels::CacheType;

    use super::*;

    /// Two layers of one shape, one of another; heads that do not fill their lines.
    const LAYOUTS: [Layout; 2] = [
        Layout { layers: 2, heads: 2, head: 40, held: CacheType::F32 },
        Layout { layers: 1, heads: 1, head: 80, held: CacheType::F32 },
    ];
    const PLACES: [CachePlace; 3] = [
        CachePlace { shape: 0, layer: 0 },
        CachePlace { shape: 0, layer: 1 },
        CachePlace { shape: 1, layer: 0 },
    ];

    /// All of them halves too.
    fn numbers(seed: usize) -> Vec<f32> {
        (0..80).map(|i| ((7919 * seed + i) % 2048) as f32).collect()
    }

    fn entry(slot: usize, layer: usize) -> [Vec<f32>; 2] {
        [numbers(3 * slot + layer), numbers(500 + 3 * slot + layer)]
    }

    fn filled(slots: usize, held: CacheType) -> Cache {
        let layouts = LAYOUTS.map(|layout| Layout { held, ..layout }).to_vec();
        let mut cache = Cache::new(Form { layouts, watched: 33, recurrent: None });
        cache.reserve(slots).unwrap();
        for slot in 0..slots {
            for (number, place) in PLACES.into_iter().enumerate() {
                let [key, value] = entry(slot, number);
                cache.write(place, slot, &key, &value);
            }
            cache.capture_hidden_states(slot, 0, &numbers(900 + slot)[..20]);
            cache.capture_hidden_states(slot, 20, &numbers(900 + slot)[20..33]);
        }
        cache
    }

    fn holds(cache: &Cache, slot: usize, what: usize) -> bool {
        PLACES.into_iter().enumerate().all(|(number, place)| {
            let page = &cache.pages(place.shape)[slot / PAGE];
            page.read(place.layer, slot % PAGE) == entry(what, number)
        }) && cache.watched(slot..slot + 1) == numbers(900 + what)[..33]
    }

    #[test]
    fn slots_move_to_where_they_are_kept() {
        for held in CacheType::ALL {
            let mut cache = filled(70, held);
            cache.keep(30, &[30, 33, 34, 69]);
            for (slot, what) in [(0, 0), (29, 29), (30, 30), (31, 33), (32, 34), (33, 69), (40, 40)]
            {
                assert!(holds(&cache, slot, what), "{held} {slot}");
            }
        }
    }

    #[test]
    fn what_is_shared_does_not_change() {
        let mut cache = filled(70, CacheType::F32);
        let mut other = cache.share(40);
        assert_eq!(other.bytes(), cache.bytes() / 3 * 2);
        for place in PLACES {
            cache.write(place, 33, &numbers(7), &numbers(8));
            other.write(place, 34, &numbers(9), &numbers(10));
        }
        cache.capture_hidden_states(32, 0, &[7.0]);
        assert!(holds(&other, 32, 32) && !holds(&cache, 32, 32));
        assert!(holds(&other, 33, 33) && holds(&cache, 34, 34));
        assert!(!holds(&other, 34, 34) && !holds(&cache, 33, 33));
        other.shorten(32);
        assert!(other.bytes() == cache.bytes() / 3 && holds(&other, 31, 31));
    }
}
