//! Keys and values of a text's tokens, and hidden states where they are watched, in slots that can
//! be kept selectively.
//!
//! The caller counts: which slots are the context and which a speculative tree behind it. On a
//! processor slots lie in pages, which texts with a common beginning share; elsewhere in two
//! tensors a layer.

pub(crate) mod numbers;
pub(crate) mod pages;
mod tensors;

use std::ops::Range;

use candle_core::{DType, Device, Result};

pub use numbers::CacheType;
pub(crate) use pages::Pages;
pub(crate) use tensors::Tensors;

/// The numbers of a token's keys, and of its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Form {
    pub layers: usize,
    /// Of keys and values.
    pub heads: usize,
    /// Numbers of a head.
    pub head: usize,
    /// Numbers of the hidden states that are watched.
    pub watched: usize,
    /// On a processor; on a card as they are computed.
    pub held: CacheType,
}

/// The keys and values of one text.
#[derive(Debug)]
pub(crate) enum Cache {
    Pages(Pages),
    Tensors(Tensors),
}

impl Cache {
    /// An empty one.
    pub fn new(form: Form, dtype: DType, device: &Device) -> Result<Self> {
        Ok(match device.is_cpu() {
            true => Self::Pages(Pages::new(form)),
            false => Self::Tensors(Tensors::new(form, dtype, device)?),
        })
    }

    /// Makes room for so many slots; what is there stays.
    pub fn reserve(&mut self, slots: usize) -> Result<()> {
        match self {
            Self::Pages(pages) => pages.reserve(slots),
            Self::Tensors(tensors) => tensors.reserve(slots),
        }
    }

    /// Moves the contents of `slots`, which ascend and are not below `start`, to the slots from
    /// `start` on.
    pub fn keep(&mut self, start: usize, slots: &[usize]) -> Result<()> {
        if slots.iter().copied().eq(start..start + slots.len()) {
            return Ok(());
        }
        match self {
            Self::Pages(pages) => pages.keep(start, slots),
            Self::Tensors(tensors) => tensors.keep(start, slots)?,
        }
        Ok(())
    }

    /// Another one with the contents of the first `slots`. Changes of the one are not seen in the
    /// other.
    pub fn share(&self, slots: usize) -> Result<Self> {
        Ok(match self {
            Self::Pages(pages) => Self::Pages(pages.share(slots)),
            Self::Tensors(tensors) => Self::Tensors(tensors.copy(slots)?),
        })
    }

    /// Gives up what lies wholly behind the first `slots`, where that frees anything.
    pub fn shorten(&mut self, slots: usize) {
        if let Self::Pages(pages) = self {
            pages.shorten(slots);
        }
    }

    /// Writes the hidden states of a slot from number `first` on.
    pub fn watch(&mut self, slot: usize, first: usize, state: &[f32]) {
        match self {
            Self::Pages(pages) => pages.watch(slot, first, state),
            Self::Tensors(tensors) => tensors.watch(slot, first, state),
        }
    }

    /// The hidden states of these slots, `[slots, watched]`.
    pub fn watched(&self, slots: Range<usize>) -> Vec<f32> {
        match self {
            Self::Pages(pages) => slots.flat_map(|slot| pages.watched(slot)).copied().collect(),
            Self::Tensors(tensors) => tensors.watched(slots).to_vec(),
        }
    }

    /// Bytes held, those that other texts hold too included.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Pages(pages) => pages.bytes(),
            Self::Tensors(tensors) => tensors.bytes(),
        }
    }
}
