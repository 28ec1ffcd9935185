//! Layers that a model brings to predict further tokens (MTP), as its drafter.
//!
//! Problem: a draft head that was trained with the model itself lies in its files, and is left
//! unused.
//! Source: DeepSeek-AI 2024 (V3, section 2.2: multi-token prediction); GLM-4.5 Team 2025; NVIDIA
//! 2025 (Nemotron 3, whose layers have one block each, so that it takes two). Names as published,
//! and as llama.cpp has them (`nextn`).
//! Method: the first such layer, unrolled: what it leaves for a token is what the next step begins
//! with. It reads the target's state after its last norm, and shares the target's embedding and
//! output matrix, of which files have copies.
//! Deviations: 1. Models with several such layers, one for each further token, are drafted for with
//! the first alone. 2. It gives its whole distribution at every node of a tree, where published
//! engines run it as one chain of its most likely tokens. 3. The last norm of Nemotron 3's is by
//! the root mean square, as in vLLM, SGLang and TensorRT-LLM; llama.cpp takes the mean away too.
//! Complexity: a layer and the output matrix for each drafted token.

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

use polydraft_engine::{HiddenState, HiddenStates, Model};
use polydraft_kernels::available_memory;

use super::Head;
use super::load::of_target;
use super::net::{Join, Net};
use super::options::HeadOptions;
use crate::cache::CachePlace;
use crate::config::{Config, Positions};
use crate::description::{Sizes, check_memory, open};
use crate::error::{Error, Result};
use crate::model::TransformerModel;
use crate::precision::Use;
use crate::transformer::load::Loader;
use crate::transformer::{Place, Transformer};
use crate::weights::Weights;

/// Loads the layer that predicts further tokens from the target's own files. From then on the
/// target captures the hidden states that it reads.
///
/// # Errors
/// A model without such a layer; what [`load_head`](crate::load_head) says.
pub fn load_mtp(path: &Path, target: &mut TransformerModel, options: &HeadOptions) -> Result<Head> {
    let (config, _, weights) = open(path)?;
    if config.extra_layers == 0 {
        let problem = "expected a model with layers that predict further tokens (MTP), got none: \
                       its own weights in fewer bits (self), n-grams, a smaller model or a head \
                       can draft for it";
        return Err(Error::File { path: path.to_owned(), problem: problem.to_owned() });
    }
    if !config.drafts_itself() {
        let problem = "expected layers that predict further tokens (MTP) of attention, experts or \
                       feed-forward blocks, got one that keeps a state: its own weights in fewer \
                       bits (self), n-grams, a smaller model or a head can draft for it";
        return Err(Error::File { path: path.to_owned(), problem: problem.to_owned() });
    }
    let first = config.layers;
    let config = config.with_further();
    let last = config.layers - 1;
    let within = |number: usize, part: &str| format!("{}.{number}.{part}", config.names.layers);
    let name = |part: &str| within(first, part);
    let further = &config.names.further;
    let hidden = config.hidden;
    check_size(path, &config, first..=last, &weights, options)?;
    let mut loader = Loader { config: &config, weights, precision: options.precision };
    let fc = loader.linear(&[(name(further.join), hidden)], 2 * hidden, false)?;
    let token_norm = loader.norm(&name(further.token_norm), hidden)?;
    let state_norm = loader.norm(&name(further.state_norm), hidden)?;
    let norm = loader.norm(&within(last, further.norm), hidden)?;
    let mut layers = (first..=last).map(|i| loader.layer(i)).collect::<Result<Vec<_>>>()?;
    // Its KV cache has no other layers.
    let attending = layers.iter_mut().filter(|layer| layer.attention.is_some());
    for (number, layer) in attending.enumerate() {
        layer.place = CachePlace { shape: 0, layer: number };
    }

    let vocabulary = target.info().vocabulary.size();
    let (tokens, trunk) = (options.drafted(path, vocabulary)?, target.transformer());
    let output = match tokens.len() == vocabulary {
        true => Arc::clone(trunk.head()),
        false => of_target(trunk, &tokens, options.precision)?,
    };
    let place = match &config.positions {
        Positions::Rotary(rope) => {
            Place::Rotary(rope.frequencies(config.heads_when(false).head), None)
        }
        Positions::Learned { .. } => {
            let problem = "expected rotary positions".to_owned();
            return Err(Error::File { path: path.to_owned(), problem });
        }
    };
    let logit_scale = config.logit_scale;
    let embedding = Arc::clone(trunk.embedding());
    let fed_back = config.fed_back;
    let mut decoder = Transformer::of_parts(config.further_alone(), embedding, place, layers);
    decoder.set_norm(Some(norm));
    decoder.set_head(output);
    let net = Net {
        decoder,
        join: Join::Further {
            fc,
            token_norm,
            state_norm,
            state_first: further.state_first,
            fed_back,
        },
        tokens,
        logit_scale,
        reads: vec![HiddenState::Output],
        features: hidden,
    };
    let context = target.info().context;
    target.capture_hidden_states(&net.reads)?;
    Ok(Head::new("mtp".to_owned(), vocabulary, context, net))
}

/// That there is memory enough for the layer's weights.
fn check_size(
    path: &Path,
    config: &Config,
    numbers: RangeInclusive<usize>,
    weights: &Weights,
    options: &HeadOptions,
) -> Result<()> {
    let own: Vec<String> =
        numbers.map(|number| format!("{}.{number}.", config.names.layers)).collect();
    let copies = config.names.further.copies;
    let mut sizes = Sizes::default();
    for tensor in weights.tensors() {
        let inner = own.iter().find_map(|own| tensor.name.strip_prefix(own));
        if inner.is_some_and(|inner| !copies.iter().any(|copy| inner.starts_with(copy))) {
            sizes.add(&tensor, Use::Products);
        }
    }
    let available = options.memory.or_else(available_memory);
    check_memory(path, options.precision, available, |precision| sizes.bytes(precision))
}
