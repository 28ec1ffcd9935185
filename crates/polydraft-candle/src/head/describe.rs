//! What a head is, from its files' headers.

use std::path::Path;

use polydraft_engine::Feature;

use super::config::{HeadConfig, Kind};
use super::load::{check, open, tokens};
use crate::weights::Listed;
use crate::{Config, Error, Result};

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
    pub reads: Vec<Feature>,
}

impl HeadDescription {
    /// Reads the configuration and the headers of the weights. `target` is what the head is for, and `vocabulary` the number
    /// of its tokens.
    ///
    /// # Errors
    /// As of [`load_head`](crate::load_head), as far as headers tell.
    pub fn read(directory: &Path, target: &Config, vocabulary: usize) -> Result<Self> {
        let mut weights = open(directory)?;
        let fc_columns = weights.shape("fc.weight").and_then(|shape| shape.get(1)).copied();
        let config = HeadConfig::read(directory, fc_columns)?;
        let reads = check(&config, target, vocabulary, None)
            .map_err(|problem| Error::File { path: directory.join("config.json"), problem })?;
        let numbers =
            |Listed { shape, .. }: Listed| shape.iter().fold(1u64, |n, s| n.saturating_mul(*s as u64));
        let parameters = weights.tensors().into_iter().map(numbers).fold(0, u64::saturating_add);
        let tokens = tokens(&mut weights, &config, vocabulary, None)?.ids.len();
        let kind = match config.kind {
            Kind::Eagle1 => "EAGLE-1",
            Kind::Eagle3 { .. } => "EAGLE-3",
        };
        Ok(Self { kind, parameters, layers: config.layers.layers, tokens, reads })
    }
}
