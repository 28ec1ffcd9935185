//! Multi-token prediction (MTP): a model's own module for further tokens, as its drafter.
//!
//! Problem: the model's files have a draft head that was trained with the model, but plain decoding
//! does not use it.
//! Source: DeepSeek-AI 2024 (V3, section 2.2: multi-token prediction); GLM-4.5 Team 2025; NVIDIA
//! 2025 (Nemotron 3, whose layers have one block each, so that it takes two). Names as published,
//! and as llama.cpp has them (`nextn`).
//! Method: the first module, unrolled: its output state for a token is the input state of the next
//! step. It reads the target's state after its last norm, and shares the target's embedding and
//! output matrix; the copies of these in files are not used.
//! Deviations: 1. In models with several modules, one per further token, only the first is used. 2.
//! It returns its full distribution at every node of a tree. 3. The last norm of Nemotron 3's
//! module is RMS, as in vLLM, SGLang and TensorRT-LLM; llama.cpp also subtracts the mean.
//! Complexity: a layer and the output matrix for each drafted token.

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

use polydraft_engine::{HiddenState, HiddenStates, Model};
use polydraft_kernels::available_memory;

use super::DraftHead;
use super::net::{Join, Net};
use super::options::HeadOptions;
use super::target::target_output_rows;
use crate::cache::CacheIndex;
use crate::config::{Config, Positions};
use crate::description::{TensorSizes, check_memory, open};
use crate::error::{Error, Result};
use crate::model::TransformerModel;
use crate::precision::MatrixUse;
use crate::transformer::load::Loader;
use crate::transformer::{PositionEncoding, Transformer};
use crate::weights::Weights;

/// Loads the first MTP module from the target's files. From then on the target captures the hidden
/// states that it reads.
///
/// # Errors
/// A model without an MTP module; otherwise as for [`load_head`](crate::load_head).
pub fn load_mtp(
    path: &Path,
    target: &mut TransformerModel,
    options: &HeadOptions,
) -> Result<DraftHead> {
    let (config, _, weights) = open(path)?;
    from_parts(path, (config, weights), target, options)
}

/// Makes the drafter of a configuration with MTP modules and their tensors.
pub(super) fn from_parts(
    path: &Path,
    (config, weights): (Config, Weights),
    target: &mut TransformerModel,
    options: &HeadOptions,
) -> Result<DraftHead> {
    if config.mtp_modules == 0 {
        let problem = "expected a model with multi-token prediction (MTP), got none: its weights \
                       in fewer bits (self), n-grams, a smaller model or a draft head can draft \
                       for it";
        return Err(Error::File { path: path.to_owned(), problem: problem.to_owned() });
    }
    if !config.can_draft_with_mtp() {
        let problem = "expected layers for multi-token prediction (MTP) with attention, experts or \
                       feed-forward blocks, got a recurrent layer: the model's weights in fewer \
                       bits (self), n-grams, a smaller model or a draft head can draft for it";
        return Err(Error::File { path: path.to_owned(), problem: problem.to_owned() });
    }
    let first = config.layers;
    let config = config.with_first_mtp_module();
    let last = config.layers - 1;
    let within = |number: usize, part: &str| format!("{}.{number}.{part}", config.names.layers);
    let name = |part: &str| within(first, part);
    let names = &config.names.mtp;
    let hidden = config.hidden;
    check_size(path, &config, first..=last, &weights, options)?;
    let mut loader = Loader { config: &config, weights, precision: options.precision };
    let fc = loader.linear(&[(name(names.join), hidden)], 2 * hidden, false)?;
    let token_norm = loader.norm(&name(names.token_norm), hidden)?;
    let state_norm = loader.norm(&name(names.state_norm), hidden)?;
    let norm = loader.norm(&within(last, names.norm), hidden)?;
    let mut layers = (first..=last).map(|i| loader.layer(i)).collect::<Result<Vec<_>>>()?;
    // The module's KV cache has only its own layers.
    let attending = layers.iter_mut().filter(|layer| layer.attention.is_some());
    for (number, layer) in attending.enumerate() {
        layer.cache_index = CacheIndex { shape: 0, layer: number };
    }

    let vocabulary = target.info().vocabulary.size();
    let (tokens, transformer) = (options.allowed_tokens(path, vocabulary)?, target.transformer());
    let output = match tokens.len() == vocabulary {
        true => Arc::clone(transformer.lm_head()),
        false => target_output_rows(transformer, &tokens, options.precision)?,
    };
    let positions = match &config.positions {
        Positions::Rotary(rope) => {
            PositionEncoding::Rotary(rope.frequencies(config.head_shape_for(false).head_dim), None)
        }
        Positions::Learned { .. } => {
            let problem = "expected rotary positions".to_owned();
            return Err(Error::File { path: path.to_owned(), problem });
        }
    };
    let logit_scale = config.logit_scale;
    let embedding = Arc::clone(transformer.embedding());
    let feedback = config.feedback;
    let mut decoder =
        Transformer::from_parts(config.mtp_layers_only(), embedding, positions, layers);
    decoder.set_norm(Some(norm));
    decoder.set_lm_head(output);
    let net = Net {
        decoder,
        join: Join::Mtp { fc, token_norm, state_norm, state_first: names.state_first, feedback },
        tokens,
        logit_scale,
        hidden_states: vec![HiddenState::Output],
        feature_width: hidden,
    };
    let context = target.info().context;
    target.capture_hidden_states(&net.hidden_states)?;
    Ok(DraftHead::new("mtp".to_owned(), vocabulary, context, net))
}

/// Checks that the available memory is enough for the module's weights.
fn check_size(
    path: &Path,
    config: &Config,
    numbers: RangeInclusive<usize>,
    weights: &Weights,
    options: &HeadOptions,
) -> Result<()> {
    let prefixes: Vec<String> =
        numbers.map(|number| format!("{}.{number}.", config.names.layers)).collect();
    let copies = config.names.mtp.copies;
    let mut sizes = TensorSizes::default();
    for tensor in weights.tensors() {
        let inner = prefixes.iter().find_map(|prefix| tensor.name.strip_prefix(prefix));
        if inner.is_some_and(|inner| !copies.iter().any(|copy| inner.starts_with(copy))) {
            sizes.add(&tensor, MatrixUse::Product);
        }
    }
    let available = options.memory.or_else(available_memory);
    check_memory(path, options.precision, available, |precision| sizes.bytes(precision))
}
