//! The KV cache of one sequence, with captured hidden states, in slots that can be committed
//! selectively.
//!
//! The caller tracks which slots are the context and which the draft tree after it. Slots lie in
//! pages of [`PAGE_SLOTS`]. Sequences with a common prefix share pages; writing to a shared page
//! copies it first (copy on write). So sharing is free, and a growing sequence moves nothing.
//! Layers are grouped by the shape of their heads; each group has its own pages.

mod recurrent;

use std::ops::Range;
use std::sync::Arc;

use polydraft_kernels::{Error, Mask, PAGE_SLOTS, Page, PageLayout, Result, Walk};

use recurrent::Recurrent;
pub(crate) use recurrent::StateShape;

/// Shape of the cached data of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CacheLayout {
    /// Pages of the KV cache, one layout for each head shape.
    pub layouts: Vec<PageLayout>,
    /// Total width of the captured hidden states of a token.
    pub captured_width: usize,
    /// State of the recurrent layers, if there are any.
    pub recurrent: Option<StateShape>,
}

impl CacheLayout {
    /// Range of a slot's hidden states in its page.
    fn states(&self, slot: usize) -> Range<usize> {
        let first = slot % PAGE_SLOTS * self.captured_width;
        first..first + self.captured_width
    }

    fn page_bytes(&self) -> usize {
        let pages: usize = self.layouts.iter().map(PageLayout::page_bytes).sum();
        pages + PAGE_SLOTS * self.captured_width * size_of::<f32>()
    }
}

/// Index of a layer in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct CacheIndex {
    /// Number of its head shape.
    pub shape: usize,
    /// Number of the layer among those with this shape.
    pub layer: usize,
}

/// The KV cache of one sequence.
#[derive(Debug)]
pub(crate) struct Cache {
    layout: CacheLayout,
    /// Pages of each head shape.
    pages: Vec<Vec<Arc<Page>>>,
    /// Hidden states of the slots of each page, `[slots, captured_width]`.
    states: Vec<Arc<Vec<f32>>>,
    recurrent: Option<Box<Recurrent>>,
}

impl Cache {
    /// An empty cache.
    pub fn new(layout: CacheLayout) -> Self {
        let recurrent = layout.recurrent.map(|shape| Box::new(Recurrent::new(shape)));
        let pages = vec![Vec::new(); layout.layouts.len()];
        Self { layout, pages, states: Vec::new(), recurrent }
    }

    /// Largest number of slots, at most `slots`, from which the computation can resume: `slots`
    /// itself if no layer is recurrent.
    pub fn resume_point(&self, slots: usize) -> usize {
        self.recurrent.as_ref().map_or(slots, |recurrent| recurrent.resume_point(slots))
    }

    /// Begins a pass over the tokens from slot `start` on. The first `committed` tokens of the
    /// sequence are final.
    pub fn begin_pass(&mut self, start: usize, masks: &[Mask], committed: usize) -> Result<()> {
        self.reserve(start + masks.len())?;
        match &mut self.recurrent {
            None => Ok(()),
            Some(recurrent) => recurrent.begin_pass(start, masks, committed),
        }
    }

    /// Ends a pass after all layers are computed.
    pub fn end_pass(&mut self, is_prompt: bool) {
        if let Some(recurrent) = &mut self.recurrent {
            recurrent.end_pass(is_prompt);
        }
    }

    /// Appends the inputs of the convolution of a recurrent layer for the new tokens.
    pub fn push_channels(&mut self, layer: usize, rows: &[f32]) {
        if let Some(recurrent) = &mut self.recurrent {
            recurrent.push_channels(layer, rows);
        }
    }

    /// Appends the inputs that update the memory of a recurrent layer for the new tokens.
    pub fn push_inputs(&mut self, layer: usize, rows: &[f32]) {
        if let Some(recurrent) = &mut self.recurrent {
            recurrent.push_inputs(layer, rows);
        }
    }

    /// Window of the convolution of a recurrent layer for each new token, its own input last.
    pub fn windows(&self, layer: usize) -> impl Iterator<Item = Vec<&[f32]>> {
        self.recurrent.iter().flat_map(move |recurrent| recurrent.windows(layer))
    }

    /// Updates of the memory of a recurrent layer in this pass.
    pub fn walk(&mut self, layer: usize) -> Option<Walk<'_>> {
        self.recurrent.as_mut().map(|recurrent| recurrent.walk(layer))
    }

    /// Layout of the pages of a head shape.
    pub fn page_layout(&self, shape: usize) -> PageLayout {
        self.layout.layouts[shape]
    }

    /// Pages of the layers with a head shape.
    pub fn pages(&self, shape: usize) -> &[Arc<Page>] {
        &self.pages[shape]
    }

    /// Grows the cache to at least `slots` slots; existing contents stay.
    fn reserve(&mut self, slots: usize) -> Result<()> {
        while self.states.len() * PAGE_SLOTS < slots {
            let (mut states, count) = (Vec::new(), PAGE_SLOTS * self.layout.captured_width);
            states.try_reserve_exact(count).map_err(Error::from)?;
            states.resize(count, 0.0);
            let new = self.layout.layouts.iter().map(|layout| Page::new(*layout));
            let new = new.collect::<Result<Vec<Page>>>()?;
            for (pages, page) in self.pages.iter_mut().zip(new) {
                pages.push(Arc::new(page));
            }
            self.states.push(Arc::new(states));
        }
        Ok(())
    }

    /// Pages of the given slots for a head shape, each with the slots that lie in it. Shared pages
    /// are copied here, on the calling thread: the allocator reuses memory only for the thread that
    /// allocated it, and copying on worker threads made a server's memory grow.
    pub fn pages_mut(
        &mut self,
        shape: usize,
        slots: Range<usize>,
    ) -> impl Iterator<Item = (&mut Page, Range<usize>)> {
        let first = slots.start / PAGE_SLOTS;
        let pages = self.pages[shape][first..slots.end.div_ceil(PAGE_SLOTS)].iter_mut();
        pages.enumerate().map(move |(number, page)| {
            let start = (first + number) * PAGE_SLOTS;
            (Arc::make_mut(page), slots.start.max(start)..slots.end.min(start + PAGE_SLOTS))
        })
    }

    /// Writes the key and the value of one slot in one layer, `[heads, head_dim]` each.
    pub fn write(&mut self, index: CacheIndex, slot: usize, key: &[f32], value: &[f32]) {
        let page = &mut self.pages[index.shape][slot / PAGE_SLOTS];
        Arc::make_mut(page).write(index.layer, slot % PAGE_SLOTS, key, value);
    }

    /// Moves the contents of `slots` to consecutive slots from `start` on. `slots` ascend and are
    /// not below `start`.
    pub fn compact(&mut self, start: usize, slots: &[usize]) {
        for (to, &from) in (start..).zip(slots).filter(|(to, from)| to != *from) {
            let states = self.slot_states(from).to_vec();
            self.capture_hidden_states(to, 0, &states);
            for shape in 0..self.pages.len() {
                for layer in 0..self.layout.layouts[shape].layers {
                    let [key, value] =
                        self.pages[shape][from / PAGE_SLOTS].read(layer, from % PAGE_SLOTS);
                    self.write(CacheIndex { shape, layer }, to, &key, &value);
                }
            }
        }
        if let Some(recurrent) = &mut self.recurrent {
            recurrent.compact(start, slots);
        }
    }

    /// A cache with the contents of the first `slots` slots. Later changes of either do not affect
    /// the other.
    pub fn share(&self, slots: usize) -> Self {
        let count = slots.div_ceil(PAGE_SLOTS);
        let pages = self.pages.iter().map(|pages| pages[..count].to_vec()).collect();
        let states = self.states[..count].to_vec();
        let recurrent = self.recurrent.as_ref().map(|state| Box::new(state.share(slots)));
        Self { layout: self.layout.clone(), pages, states, recurrent }
    }

    /// Drops the pages after the one with slot `slots - 1`.
    pub fn truncate(&mut self, slots: usize) {
        self.pages.iter_mut().for_each(|pages| pages.truncate(slots.div_ceil(PAGE_SLOTS)));
        self.states.truncate(slots.div_ceil(PAGE_SLOTS));
        if let Some(recurrent) = &mut self.recurrent {
            recurrent.truncate(slots);
        }
    }

    /// Writes hidden states of a slot, from index `first` on.
    pub fn capture_hidden_states(&mut self, slot: usize, first: usize, state: &[f32]) {
        if !state.is_empty() {
            let start = self.layout.states(slot).start + first;
            Arc::make_mut(&mut self.states[slot / PAGE_SLOTS])[start..start + state.len()]
                .copy_from_slice(state);
        }
    }

    fn slot_states(&self, slot: usize) -> &[f32] {
        &self.states[slot / PAGE_SLOTS][self.layout.states(slot)]
    }

    /// Hidden states of the given slots, `[slots, captured_width]`.
    pub fn hidden_states(&self, slots: Range<usize>) -> Vec<f32> {
        slots.flat_map(|slot| self.slot_states(slot)).copied().collect()
    }

    /// Size in bytes, including pages that are shared with other sequences.
    pub fn bytes(&self) -> usize {
        let state = self.recurrent.as_ref().map_or(0, |recurrent| recurrent.bytes());
        self.states.len() * self.layout.page_bytes() + state
    }
}

#[cfg(test)]
mod tests {
    use polydraft_kernels::CacheType;

    use super::*;

    /// Two layers of one shape, one of another; head widths that do not fill cache lines.
    const LAYOUTS: [PageLayout; 2] = [
        PageLayout { layers: 2, heads: 2, head_size: 40, cache_type: CacheType::F32 },
        PageLayout { layers: 1, heads: 1, head_size: 80, cache_type: CacheType::F32 },
    ];
    const LAYERS: [CacheIndex; 3] = [
        CacheIndex { shape: 0, layer: 0 },
        CacheIndex { shape: 0, layer: 1 },
        CacheIndex { shape: 1, layer: 0 },
    ];

    /// Integers that are exact in f16.
    fn numbers(seed: usize) -> Vec<f32> {
        (0..80).map(|i| ((7919 * seed + i) % 2048) as f32).collect()
    }

    fn entry(slot: usize, layer: usize) -> [Vec<f32>; 2] {
        [numbers(3 * slot + layer), numbers(500 + 3 * slot + layer)]
    }

    fn filled(slots: usize, cache_type: CacheType) -> Cache {
        let layouts = LAYOUTS.map(|layout| PageLayout { cache_type, ..layout }).to_vec();
        let mut cache = Cache::new(CacheLayout { layouts, captured_width: 33, recurrent: None });
        cache.reserve(slots).unwrap();
        for slot in 0..slots {
            for (number, index) in LAYERS.into_iter().enumerate() {
                let [key, value] = entry(slot, number);
                cache.write(index, slot, &key, &value);
            }
            cache.capture_hidden_states(slot, 0, &numbers(900 + slot)[..20]);
            cache.capture_hidden_states(slot, 20, &numbers(900 + slot)[20..33]);
        }
        cache
    }

    /// Whether `slot` has the contents that [`filled`] wrote to slot `original`.
    fn has_contents(cache: &Cache, slot: usize, original: usize) -> bool {
        LAYERS.into_iter().enumerate().all(|(number, index)| {
            let page = &cache.pages(index.shape)[slot / PAGE_SLOTS];
            page.read(index.layer, slot % PAGE_SLOTS) == entry(original, number)
        }) && cache.hidden_states(slot..slot + 1) == numbers(900 + original)[..33]
    }

    #[test]
    fn compact_moves_slots_for_every_cache_type() {
        for cache_type in CacheType::ALL {
            let mut cache = filled(70, cache_type);
            cache.compact(30, &[30, 33, 34, 69]);
            for (slot, original) in
                [(0, 0), (29, 29), (30, 30), (31, 33), (32, 34), (33, 69), (40, 40)]
            {
                assert!(has_contents(&cache, slot, original), "{cache_type} {slot}");
            }
        }
    }

    #[test]
    fn writes_do_not_change_shared_pages() {
        let mut cache = filled(70, CacheType::F32);
        let mut other = cache.share(40);
        assert_eq!(other.bytes(), cache.bytes() / 3 * 2);
        for index in LAYERS {
            cache.write(index, 33, &numbers(7), &numbers(8));
            other.write(index, 34, &numbers(9), &numbers(10));
        }
        cache.capture_hidden_states(32, 0, &[7.0]);
        assert!(has_contents(&other, 32, 32) && !has_contents(&cache, 32, 32));
        assert!(has_contents(&other, 33, 33) && has_contents(&cache, 34, 34));
        assert!(!has_contents(&other, 34, 34) && !has_contents(&cache, 33, 33));
        other.truncate(32);
        assert!(other.bytes() == cache.bytes() / 3 && has_contents(&other, 31, 31));
    }
}
