//! Description of a draft head from the headers of its files.

use std::path::Path;

use polydraft_engine::HiddenState;

use super::assistant::AssistantFiles;
use super::config::Kind;
use super::load::Headers;
use super::{mtp_file, source};
use crate::config::Config;
use crate::error::Result;
use crate::weights::TensorHeader;

/// Description of a draft head for a target.
#[derive(Debug, Clone, PartialEq)]
pub struct HeadDescription {
    /// Name of the kind, such as `EAGLE-3`.
    pub kind: &'static str,
    /// Number of parameters in its files, without tensors that it shares with the target.
    pub parameters: u64,
    /// Decoder layers.
    pub layers: usize,
    /// Number of tokens that it can draft.
    pub tokens: usize,
    /// Hidden states of the target that it reads, in order.
    pub hidden_states: Vec<HiddenState>,
}

impl HeadDescription {
    /// Reads the configuration and the headers of the weights. `target` is the configuration of the
    /// target, `vocabulary` the size of its vocabulary.
    ///
    /// # Errors
    /// The errors of [`load_head`](crate::load_head), except errors that only the weights reveal.
    pub fn read(directory: &Path, target: &Config, vocabulary: usize) -> Result<Self> {
        if let Some(json) = source::assistant(directory)? {
            let files = AssistantFiles::open(directory, &json, target, vocabulary)?;
            return Ok(Self {
                kind: "an assistant on the target's KV cache",
                parameters: files.parameters(),
                layers: files.config.layers,
                tokens: vocabulary,
                hidden_states: vec![HiddenState::Output],
            });
        }
        if let Some((config, weights)) = mtp_file::open_for(directory, target)? {
            return Ok(Self {
                kind: "multi-token prediction (MTP) layers",
                parameters: mtp_file::parameters(&config, &weights),
                layers: config.layers_per_mtp_module().len(),
                tokens: vocabulary,
                hidden_states: vec![HiddenState::Output],
            });
        }
        let Headers { weights, config, hidden_states, tokens } =
            Headers::read(directory, target, vocabulary, None, None)?;
        let parameters =
            weights.tensors().iter().map(TensorHeader::numbers).fold(0, u64::saturating_add);
        let kind = match config.kind {
            Kind::Eagle1 => "EAGLE-1",
            Kind::Eagle3 { .. } => "EAGLE-3",
            Kind::Block(block) => block.name,
        };
        Ok(Self {
            kind,
            parameters,
            layers: config.layers.layers,
            tokens: tokens.ids.len(),
            hidden_states,
        })
    }
}
