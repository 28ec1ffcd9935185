//! Pages of the KV cache.

use super::lines::{CacheType, Line, Lines, PAGE_SLOTS};
use crate::error::Result;
use crate::fetch::PrefetchSlice;

/// Memory layout of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageLayout {
    /// Number of layers.
    pub layers: usize,
    /// Number of key heads, which equals the number of value heads.
    pub heads: usize,
    /// Width of a head.
    pub head_size: usize,
    /// Number type of keys and values.
    pub cache_type: CacheType,
}

impl PageLayout {
    /// Returns the number of lines of one head's value.
    pub(crate) fn value_lines(&self) -> usize {
        self.head_size.div_ceil(PAGE_SLOTS)
    }

    fn block_lines(&self) -> usize {
        self.head_size + PAGE_SLOTS * self.value_lines()
    }

    /// Returns the first line of a head's keys in one layer.
    fn keys(&self, layer: usize, head: usize) -> usize {
        (layer * self.heads + head) * self.block_lines()
    }

    /// Returns the first line of a head's values in one layer.
    fn values(&self, layer: usize, head: usize) -> usize {
        self.keys(layer, head) + self.head_size
    }

    fn lines(&self) -> usize {
        self.layers * self.heads * self.block_lines()
    }

    /// Returns the number of bytes of a page.
    pub fn page_bytes(&self) -> usize {
        self.lines() * PAGE_SLOTS * self.cache_type.bytes()
    }
}

/// A page of a KV cache: [`PAGE_SLOTS`] slots, for all layers.
///
/// Each layer and head has one block. Keys are stored by column: line i holds number i of the keys
/// of all slots. Values follow, stored by slot, each padded to whole lines.
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
    lines: Lines,
}

impl Page {
    /// Allocates an empty page.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn new(layout: PageLayout) -> Result<Self> {
        Ok(Self { layout, lines: Lines::new(layout.cache_type, layout.lines())? })
    }

    /// Returns the keys of one head in one layer, `[head size, slots]`, widened into `scratch` if
    /// they are stored in f16.
    #[inline(always)]
    pub(super) fn keys<'a>(
        &'a self,
        layer: usize,
        head: usize,
        scratch: &'a mut Vec<Line>,
    ) -> &'a [Line] {
        self.lines.get_f32(self.layout.keys(layer, head), self.layout.head_size, scratch)
    }

    /// Returns the values of one head in one layer, `[slots, head size]`, each slot padded to whole
    /// lines; widened into `scratch` if they are stored in f16.
    #[inline(always)]
    pub(super) fn values<'a>(
        &'a self,
        layer: usize,
        head: usize,
        scratch: &'a mut Vec<Line>,
    ) -> &'a [Line] {
        let count = PAGE_SLOTS * self.layout.value_lines();
        self.lines.get_f32(self.layout.values(layer, head), count, scratch)
    }

    /// Returns the memory of the [`keys`](Self::keys) and of the [`values`](Self::values), for
    /// prefetching.
    #[inline(always)]
    pub(super) fn prefetch(&self, layer: usize, head: usize) -> [PrefetchSlice; 2] {
        let values = PAGE_SLOTS * self.layout.value_lines();
        [
            self.lines.prefetch(self.layout.keys(layer, head), self.layout.head_size),
            self.lines.prefetch(self.layout.values(layer, head), values),
        ]
    }

    /// Writes the key and value, `[heads, head size]` each, of one slot in one layer.
    ///
    /// # Panics
    /// Layer or slot out of range; a key or a value that is too short.
    pub fn write(&mut self, layer: usize, slot: usize, key: &[f32], value: &[f32]) {
        let layout @ PageLayout { heads, head_size, .. } = self.layout;
        for number in 0..heads {
            let range = number * head_size..(number + 1) * head_size;
            self.lines.set_column(layout.keys(layer, number), slot, &key[range.clone()]);
            let first = layout.values(layer, number) + slot * layout.value_lines();
            self.lines.set_row(first, &value[range]);
        }
    }

    /// Returns the key and value of one slot in one layer.
    ///
    /// # Panics
    /// Layer or slot out of range.
    pub fn read(&self, layer: usize, slot: usize) -> [Vec<f32>; 2] {
        let layout @ PageLayout { heads, head_size, .. } = self.layout;
        let (mut key, mut value) =
            (Vec::with_capacity(heads * head_size), Vec::with_capacity(heads * head_size));
        for number in 0..heads {
            let keys = layout.keys(layer, number);
            key.extend((keys..keys + head_size).map(|line| self.lines.get(line, slot)));
            let first = layout.values(layer, number) + slot * layout.value_lines();
            value.extend(
                (0..head_size).map(|i| self.lines.get(first + i / PAGE_SLOTS, i % PAGE_SLOTS)),
            );
        }
        [key, value]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f16_pages_take_half_of_the_bytes() {
        let bytes =
            |cache_type| PageLayout { layers: 2, heads: 2, head_size: 40, cache_type }.page_bytes();
        assert_eq!(bytes(CacheType::F32), 2 * bytes(CacheType::F16));
    }
}
