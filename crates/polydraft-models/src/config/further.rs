//! Layers that a model brings to predict further tokens (MTP).

use std::ops::Range;

use super::{Blocks, Config};

/// One of the layers that predict a further token together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FurtherLayer {
    pub blocks: Blocks,
    /// Whether its feed-forward block is one of experts, where the model has experts.
    pub experts: bool,
    /// Whether it keeps a state in the place of a KV cache.
    pub recurrent: bool,
}

impl FurtherLayer {
    /// As most models have it: one layer, like the last of the others.
    const USUAL: Self = Self { blocks: Blocks::Both, experts: true, recurrent: false };
}

impl Config {
    /// The layers that predict one further token together, in order.
    pub(crate) fn further_layers(&self) -> &[FurtherLayer] {
        match &self.further[..] {
            [] => &[FurtherLayer::USUAL],
            listed => listed,
        }
    }

    /// The numbers of all such layers, after the model's own.
    pub(crate) fn further_numbers(&self) -> Range<usize> {
        self.layers..self.layers + self.extra_layers * self.further_layers().len()
    }

    /// Whether such layers are there that can draft: for none of them a state is kept.
    pub(crate) fn drafts_itself(&self) -> bool {
        self.extra_layers > 0 && self.further_layers().iter().all(|layer| !layer.recurrent)
    }

    /// With the layers that predict the first of the further tokens among its own.
    pub(crate) fn with_further(mut self) -> Self {
        let first = self.layers;
        let listed = self.further_layers().to_vec();
        self.layers += listed.len();
        self.extra_layers -= 1;
        if self.blocks.len() == first {
            self.blocks.extend(listed.iter().map(|layer| layer.blocks));
        }
        if let Some(experts) = &mut self.experts {
            experts.layers.extend(listed.iter().map(|layer| layer.experts));
        }
        // As the last of the others.
        if let Some(last) = self.attention.unrotated.last().copied() {
            self.attention.unrotated.resize(self.layers, last);
        }
        self
    }

    /// Of one [with them](Self::with_further) those layers alone.
    pub(crate) fn further_alone(mut self) -> Self {
        let count = self.further_layers().len();
        let before = self.layers - count;
        if !self.blocks.is_empty() {
            self.blocks.drain(..before);
        }
        if let Some(experts) = &mut self.experts {
            experts.layers.drain(..before);
        }
        if !self.attention.unrotated.is_empty() {
            self.attention.unrotated.drain(..before);
        }
        self.recurrent = None;
        self.layers = count;
        self
    }
}
