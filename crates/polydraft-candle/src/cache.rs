//! Keys and values of past tokens, in slots that can be kept selectively.

use candle_core::{DType, Device, Result, Tensor};

/// Slots are taken in rounds of so many.
const ROUND: usize = 256;

/// For every layer keys and values of shape `[key-value heads, slots, head]`.
///
/// The caller counts: which slots are the context and which a speculative tree behind it.
#[derive(Debug)]
pub(crate) struct Cache {
    layers: Vec<(Tensor, Tensor)>,
    heads: usize,
    head: usize,
    slots: usize,
    dtype: DType,
    device: Device,
}

impl Cache {
    pub fn new(layers: usize, heads: usize, head: usize, dtype: DType, device: &Device) -> Result<Self> {
        let empty = || Tensor::zeros((heads, 0, head), dtype, device);
        let layers = (0..layers).map(|_| Ok((empty()?, empty()?))).collect::<Result<_>>()?;
        Ok(Self { layers, heads, head, slots: 0, dtype, device: device.clone() })
    }

    /// Makes room for so many slots; what is there stays.
    pub fn reserve(&mut self, slots: usize) -> Result<()> {
        if slots <= self.slots {
            return Ok(());
        }
        let slots = slots.max(self.slots + self.slots / 2).next_multiple_of(ROUND);
        for (keys, values) in &mut self.layers {
            for tensor in [keys, values] {
                let larger = Tensor::zeros((self.heads, slots, self.head), self.dtype, &self.device)?;
                if self.slots > 0 {
                    larger.slice_set(tensor, 1, 0)?;
                }
                *tensor = larger;
            }
        }
        self.slots = slots;
        Ok(())
    }

    /// Writes keys and values `[heads, n, head]` from slot `start` on; returns those of all slots up to there.
    pub fn append(
        &self,
        layer: usize,
        keys: &Tensor,
        values: &Tensor,
        start: usize,
    ) -> Result<(Tensor, Tensor)> {
        let (all_keys, all_values) = &self.layers[layer];
        all_keys.slice_set(keys, 1, start)?;
        all_values.slice_set(values, 1, start)?;
        let end = start + keys.dim(1)?;
        Ok((all_keys.narrow(1, 0, end)?, all_values.narrow(1, 0, end)?))
    }

    /// Moves the contents of `slots`, which ascend and are not below `start`, to the slots from `start` on.
    pub fn keep(&self, start: usize, slots: &[usize]) -> Result<()> {
        if slots.iter().copied().eq(start..start + slots.len()) {
            return Ok(());
        }
        let ids: Vec<u32> = slots.iter().map(|&slot| slot as u32).collect();
        let ids = Tensor::from_vec(ids, slots.len(), &self.device)?;
        for (keys, values) in &self.layers {
            for tensor in [keys, values] {
                tensor.slice_set(&tensor.index_select(&ids, 1)?, 1, start)?;
            }
        }
        Ok(())
    }
}
