//! Keys and values in tensors, for a card.

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor};

use super::Form;

/// Slots are taken in rounds of so many.
const ROUND: usize = 256;

/// For every layer keys and values of shape `[key-value heads, slots, head]`.
#[derive(Debug)]
pub(crate) struct Tensors {
    layers: Vec<(Tensor, Tensor)>,
    /// Hidden states, `[slots, watched]`: in memory, where drafters read them from.
    states: Vec<f32>,
    form: Form,
    slots: usize,
    dtype: DType,
    device: Device,
}

impl Tensors {
    pub fn new(form: Form, dtype: DType, device: &Device) -> Result<Self> {
        let empty = || Tensor::zeros((form.heads, 0, form.head), dtype, device);
        let layers = (0..form.layers).map(|_| Ok((empty()?, empty()?))).collect::<Result<_>>()?;
        Ok(Self { layers, states: Vec::new(), form, slots: 0, dtype, device: device.clone() })
    }

    pub fn reserve(&mut self, slots: usize) -> Result<()> {
        if slots > self.slots {
            let slots = slots.max(self.slots + self.slots / 2).next_multiple_of(ROUND);
            *self = self.resized(slots, self.slots)?;
        }
        Ok(())
    }

    /// A copy of the first `kept` slots with room for `slots`.
    fn resized(&self, slots: usize, kept: usize) -> Result<Self> {
        let Form { heads, head, watched, .. } = self.form;
        let resized = |tensor: &Tensor| {
            let new = Tensor::zeros((heads, slots, head), self.dtype, &self.device)?;
            if kept > 0 {
                new.slice_set(&tensor.narrow(1, 0, kept)?.contiguous()?, 1, 0)?;
            }
            Ok::<_, candle_core::Error>(new)
        };
        let layers = self
            .layers
            .iter()
            .map(|(k, v)| Ok((resized(k)?, resized(v)?)))
            .collect::<Result<_>>()?;
        let mut states = self.states[..kept * watched].to_vec();
        states.resize(slots * watched, 0.0);
        Ok(Self {
            layers,
            states,
            form: self.form,
            slots,
            dtype: self.dtype,
            device: self.device.clone(),
        })
    }

    pub fn copy(&self, slots: usize) -> Result<Self> {
        self.resized(slots.next_multiple_of(ROUND), slots)
    }

    pub fn bytes(&self) -> usize {
        let Form { layers, heads, head, .. } = self.form;
        2 * layers * heads * head * self.slots * self.dtype.size_in_bytes() + 4 * self.states.len()
    }

    pub fn watch(&mut self, slot: usize, first: usize, state: &[f32]) {
        self.states[slot * self.form.watched + first..][..state.len()].copy_from_slice(state);
    }

    pub fn watched(&self, slots: Range<usize>) -> &[f32] {
        &self.states[slots.start * self.form.watched..slots.end * self.form.watched]
    }

    /// Writes keys and values `[heads, n, head]` from slot `start` on; returns those of all slots
    /// up to there.
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

    pub fn keep(&mut self, start: usize, slots: &[usize]) -> Result<()> {
        let width = self.form.watched;
        for (to, from) in (start..).zip(slots) {
            self.states.copy_within(from * width..(from + 1) * width, to * width);
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
