//! Multi-token prediction (MTP): modules of a model that predict further tokens.

use std::ops::Range;

use super::{Config, LayerBlocks};
use crate::names::Names;

/// A layer of an MTP module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MtpLayer {
    pub blocks: LayerBlocks,
    /// Whether its feed-forward block has experts, if the model has experts.
    pub experts: bool,
    /// Whether it has a recurrent state instead of a KV cache.
    pub recurrent: bool,
}

impl MtpLayer {
    /// The only layer of a module in most models: like the last layer of the model.
    const USUAL: Self = Self { blocks: LayerBlocks::Both, experts: true, recurrent: false };
}

impl Config {
    /// Layers of an MTP module, in order.
    pub(crate) fn layers_per_mtp_module(&self) -> &[MtpLayer] {
        match &self.mtp_layers[..] {
            [] => &[MtpLayer::USUAL],
            listed => listed,
        }
    }

    /// Layer numbers of all MTP modules, after those of the model's layers.
    pub(crate) fn mtp_layer_numbers(&self) -> Range<usize> {
        self.layers..self.layers + self.mtp_modules * self.layers_per_mtp_module().len()
    }

    /// Whether there are MTP modules that can draft: modules without recurrent layers.
    pub(crate) fn can_draft_with_mtp(&self) -> bool {
        self.mtp_modules > 0 && self.layers_per_mtp_module().iter().all(|layer| !layer.recurrent)
    }

    /// Reduces the number of MTP modules to those that have tensors: files may omit some.
    pub(crate) fn count_mtp_modules(&mut self, has: impl Fn(&str) -> bool) {
        let Names { layers, mtp, .. } = self.names;
        let is_there = |layer: &usize| has(&format!("{layers}.{layer}.{}.weight", mtp.join));
        let first = self.mtp_layer_numbers().step_by(self.layers_per_mtp_module().len());
        self.mtp_modules = first.take_while(is_there).count();
    }

    /// Appends the layers of the first MTP modules to the model's layers.
    pub(crate) fn with_mtp_modules(self, count: usize) -> Self {
        (0..count).fold(self, |config, _| config.with_next_mtp_module())
    }

    fn with_next_mtp_module(mut self) -> Self {
        let first = self.layers;
        let listed = self.layers_per_mtp_module().to_vec();
        self.layers += listed.len();
        self.mtp_modules -= 1;
        if self.blocks.len() == first {
            self.blocks.extend(listed.iter().map(|layer| layer.blocks));
        }
        if let Some(experts) = &mut self.experts {
            experts.layers.extend(listed.iter().map(|layer| layer.experts));
        }
        // Like the last layer of the model.
        if let Some(last) = self.attention.unrotated.last().copied() {
            self.attention.unrotated.resize(self.layers, last);
        }
        self
    }

    /// Drops all layers but those of the last module that
    /// [`with_mtp_modules`](Self::with_mtp_modules) appended.
    pub(crate) fn mtp_layers_only(mut self) -> Self {
        let count = self.layers_per_mtp_module().len();
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
