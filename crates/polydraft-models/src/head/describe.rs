//! What a head is, from its files' headers.

use std::path::Path;

use polydraft_engine::HiddenState;

use super::assistant::Files;
use super::config::Kind;
use super::load::Headers;
use super::source;
use crate::config::Config;
use crate::error::Result;
use crate::weights::Listed;

/// A draft head beside the target that it is meant for.
#[derive(Debug, Clone, PartialEq)]
pub struct HeadDescription {
    /// Such as `EAGLE-3`.
    pub kind: &'static str,
    /// Of its own files; what it borrows from the target is not counted.
    pub parameters: u64,
    /// Decoder layers.
    pub layers: usize,
    /// Tokens that it can draft.
    pub tokens: usize,
    /// The hidden states of the target that it reads, in order.
    pub reads: Vec<HiddenState>,
}

impl HeadDescription {
    /// Reads the configuration and the headers of the weights. `target` is what the head is for,
    /// and `vocabulary` the number of its tokens.
    ///
    /// # Errors
    /// As of [`load_head`](crate::load_head), as far as headers tell.
    pub fn read(directory: &Path, target: &Config, vocabulary: usize) -> Result<Self> {
        if let Some(said) = source::assistant(directory)? {
            let files = Files::open(directory, &said, target, vocabulary)?;
            return Ok(Self {
                kind: "an assistant on the target's KV cache",
                parameters: files.parameters(),
                layers: files.config.layers,
                tokens: vocabulary,
                reads: vec![HiddenState::Output],
            });
        }
        let Headers { weights, config, reads, tokens } =
            Headers::read(directory, target, vocabulary, None, None)?;
        let parameters = weights.tensors().iter().map(Listed::numbers).fold(0, u64::saturating_add);
        let kind = match config.kind {
            Kind::Eagle1 => "EAGLE-1",
            Kind::Eagle3 { .. } => "EAGLE-3",
            Kind::Block(block) => block.name,
        };
        Ok(Self { kind, parameters, layers: config.layers.layers, tokens: tokens.ids.len(), reads })
    }
}
