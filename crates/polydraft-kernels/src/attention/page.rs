//! A page of the KV cache: a few slots, for every layer.

use super::lines::{CacheType, Line, Numbers, PAGE_SLOTS};
use crate::error::Result;
use crate::fetch::PrefetchSlice;

/// The memory layout of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageLayout {
    /// Layers of the model.
    pub layers: usize,
    /// Heads of keys, and of values.
    pub heads: usize,
    /// Numbers of a head.
    pub head_size: usize,
    /// The type that they are stored in.
    pub cache_type: CacheType,
}

impl PageLayout {
    /// Lines that a head's value fills.
    pub(crate) fn value_lines(&self) -> usize {
        self.head_size.div_ceil(PAGE_SLOTS)
    }

    fn block_lines(&self) -> usize {
        self.head_size + PAGE_SLOTS * self.value_lines()
    }

    /// The first line of a head's keys in one layer.
    fn keys(&self, layer: usize, head: usize) -> usize {
        (layer * self.heads + head) * self.block_lines()
    }

    /// The first line of its values.
    fn values(&self, layer: usize, head: usize) -> usize {
        self.keys(layer, head) + self.head_size
    }

    fn lines(&self) -> usize {
        self.layers * self.heads * self.block_lines()
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> usize {
        self.lines() * PAGE_SLOTS * self.cache_type.bytes()
    }
}

/// [`PAGE_SLOTS`] slots of a KV cache. For every layer and head a block: of each number of a key one
/// line, with the page's slots side by side; then of each slot's value as many lines as it fills.
///
/// ```
/// use polydraft_kernels::{CacheType, PageLayout, Page};
///
/// let layout = PageLayout { layers: 1, heads: 1, head_size: 2, cache_type: CacheType::F32 };
/// let mut page = Page::new(layout)?;
/// page.write(0, 5, &[1.0, 2.0], &[3.0, 4.0]);
/// assert_eq!(page.read(0, 5), [[1.0, 2.0], [3.0, 4.0]]);
/// # Ok::<(), polydraft_kernels::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Page {
    layout: PageLayout,
    numbers: Numbers,
}

impl Page {
    /// An empty one.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn new(layout: PageLayout) -> Result<Self> {
        Ok(Self { layout, numbers: Numbers::new(layout.cache_type, layout.lines())? })
    }

    /// The keys of one head in one layer, `[head, slots]`; in `room` where they are stored in fewer
    /// bits.
    #[inline(always)]
    pub(super) fn keys<'a>(
        &'a self,
        layer: usize,
        head: usize,
        room: &'a mut Vec<Line>,
    ) -> &'a [Line] {
        self.numbers.lines(self.layout.keys(layer, head), self.layout.head_size, room)
    }

    /// Its values, `[slots, head]`, each slot's in whole lines; likewise.
    #[inline(always)]
    pub(super) fn values<'a>(
        &'a self,
        layer: usize,
        head: usize,
        room: &'a mut Vec<Line>,
    ) -> &'a [Line] {
        let count = PAGE_SLOTS * self.layout.value_lines();
        self.numbers.lines(self.layout.values(layer, head), count, room)
    }

    /// The lines of [`keys`](Self::keys), and those of [`values`](Self::values), as they are
    /// stored.
    #[inline(always)]
    pub(super) fn prefetch(&self, layer: usize, head: usize) -> [PrefetchSlice; 2] {
        let values = PAGE_SLOTS * self.layout.value_lines();
        [
            self.numbers.prefetch(self.layout.keys(layer, head), self.layout.head_size),
            self.numbers.prefetch(self.layout.values(layer, head), values),
        ]
    }

    /// Writes the key and value, `[heads, head]` each, of one slot in one layer.
    ///
    /// # Panics
    /// A layer or a slot that the page does not have; a key or a value that is too short.
    pub fn write(&mut self, layer: usize, slot: usize, key: &[f32], value: &[f32]) {
        let layout @ PageLayout { heads, head_size, .. } = self.layout;
        for number in 0..heads {
            let own = number * head_size..(number + 1) * head_size;
            self.numbers.set_column(layout.keys(layer, number), slot, &key[own.clone()]);
            let first = layout.values(layer, number) + slot * layout.value_lines();
            self.numbers.set_row(first, &value[own]);
        }
    }

    /// The key and value of one slot in one layer.
    ///
    /// # Panics
    /// A layer or a slot that the page does not have.
    pub fn read(&self, layer: usize, slot: usize) -> [Vec<f32>; 2] {
        let layout @ PageLayout { heads, head_size, .. } = self.layout;
        let (mut key, mut value) =
            (Vec::with_capacity(heads * head_size), Vec::with_capacity(heads * head_size));
        for number in 0..heads {
            let keys = layout.keys(layer, number);
            key.extend((keys..keys + head_size).map(|line| self.numbers.get(line, slot)));
            let first = layout.values(layer, number) + slot * layout.value_lines();
            value.extend(
                (0..head_size).map(|i| self.numbers.get(first + i / PAGE_SLOTS, i % PAGE_SLOTS)),
            );
        }
        [key, value]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_take_half() {
        let bytes =
            |cache_type| PageLayout { layers: 2, heads: 2, head_size: 40, cache_type }.page_bytes();
        assert_eq!(bytes(CacheType::F32), 2 * bytes(CacheType::F16));
    }
}
