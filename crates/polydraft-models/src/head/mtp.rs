//! Multi-token prediction (MTP): a model's own module for further tokens, as its drafter.
//!
//! Problem: the model's files have a draft head that was trained with the model, but plain decoding
//! does not use it.
//! Source: DeepSeek-AI 2024 (V3, section 2.2: multi-token prediction); GLM-4.5 Team 2025; NVIDIA
//! 2025 (Nemotron 3, whose layers have one block each, so that it takes two). Names as published,
//! and as llama.cpp has them (`nextn`).
//! Method: a single module is unrolled: its output state for a token is the input state of the next
//! step. It reads the target's state after its last norm, and shares the target's embedding and
//! output matrix; the copies of these in files are not used. Of several modules each drafts its own
//! token: module k reads the state that module k − 1 has of the token before, so it has read all
//! tokens, and the draft ends after the last module, as in transformers 5.24 (`MtpModel`).
//! Deviations: 1. It returns its full distribution at every node of a tree. 2. The last norm of
//! Nemotron 3's module is RMS, as in vLLM, SGLang and TensorRT-LLM; llama.cpp also subtracts the
//! mean. 3. In sequences of at most k tokens module k has no state: its distribution is uniform. 4.
//! The state that GLM's and DeepSeek's modules pass on is that before their last norm; `MtpModel`
//! norms it. As the next module norms it again, only the norm's weights make a difference.
//! Complexity: a layer and the output matrix for each drafted token.

use std::ops::{Range, RangeInclusive};
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

/// Loads the MTP modules from the target's files. From then on the target captures the hidden
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
    let (modules, per_module) = (config.mtp_modules, config.layers_per_mtp_module().len());
    let numbers = config.mtp_layer_numbers();
    let all = config.clone().with_mtp_modules(modules);
    check_size(path, &all, numbers.clone(), &weights, options)?;
    let vocabulary = target.info().vocabulary.size();
    let (tokens, transformer) = (options.allowed_tokens(path, vocabulary)?, target.transformer());
    let output = match tokens.len() == vocabulary {
        true => Arc::clone(transformer.lm_head()),
        false => target_output_rows(transformer, &tokens, options.precision)?,
    };
    let mut loader = Loader { config: &all, weights, precision: options.precision };
    let mut nets = Vec::with_capacity(modules);
    for (number, first) in numbers.step_by(per_module).enumerate() {
        let config = config.clone().with_mtp_modules(number + 1);
        let layers = first..=first + per_module - 1;
        let mut decoder = decoder(path, &mut loader, config, layers, transformer)?;
        decoder.set_lm_head(Arc::clone(&output));
        let join = join(&mut loader, first)?;
        nets.push(Net {
            decoder,
            join,
            tokens: tokens.clone(),
            logit_scale: all.logit_scale,
            hidden_states: vec![HiddenState::Output],
            feature_width: all.hidden,
        });
    }
    let context = target.info().context;
    target.capture_hidden_states(&[HiddenState::Output])?;
    Ok(DraftHead::new("mtp".to_owned(), vocabulary, context, nets))
}

/// Loads what combines the state and the token before the first layer of a module.
fn join(loader: &mut Loader, first: usize) -> Result<Join> {
    let config = loader.config;
    let (hidden, names) = (config.hidden, &config.names.mtp);
    let name = |part: &str| format!("{}.{first}.{part}", config.names.layers);
    let fc = loader.linear(&[(name(names.join), hidden)], 2 * hidden, false)?;
    let token_norm = loader.norm(&name(names.token_norm), hidden)?;
    let state_norm = loader.norm(&name(names.state_norm), hidden)?;
    let (state_first, feedback) = (names.state_first, config.feedback);
    Ok(Join::Mtp { fc, token_norm, state_norm, state_first, feedback })
}

/// Loads the layers and the last norm of a module; the last layers of `config` are the module's.
fn decoder(
    path: &Path,
    loader: &mut Loader,
    config: Config,
    numbers: RangeInclusive<usize>,
    target: &Transformer,
) -> Result<Transformer> {
    let names = &config.names;
    let norm = format!("{}.{}.{}", names.layers, numbers.end(), names.mtp.norm);
    let norm = loader.norm(&norm, config.hidden)?;
    let mut layers = numbers.map(|i| loader.layer(i)).collect::<Result<Vec<_>>>()?;
    // The module's KV cache has only its own layers.
    let attending = layers.iter_mut().filter(|layer| layer.attention.is_some());
    for (number, layer) in attending.enumerate() {
        layer.cache_index = CacheIndex { shape: 0, layer: number };
    }
    let positions = match &config.positions {
        Positions::Rotary(rope) => {
            PositionEncoding::Rotary(rope.frequencies(config.head_shape_for(false).head_dim), None)
        }
        Positions::Learned { .. } => {
            let problem = "expected rotary positions".to_owned();
            return Err(Error::File { path: path.to_owned(), problem });
        }
    };
    let embedding = Arc::clone(target.embedding());
    let mut decoder =
        Transformer::from_parts(config.mtp_layers_only(), embedding, positions, layers);
    decoder.set_norm(Some(norm));
    Ok(decoder)
}

/// Checks that the available memory is enough for the weights of all modules.
fn check_size(
    path: &Path,
    config: &Config,
    numbers: Range<usize>,
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
