//! Assistants: drafters that come with a model and attend to its KV cache.
//!
//! Problem: a drafter with its own KV cache must prefill the prompt too, and store a second cache.
//! Source: Gemma Team 2026 (Gemma 4); computed as in Hugging Face transformers (`gemma4_assistant`
//! and its candidate generator).
//! Method: as with EAGLE-1, position i joins the target's last normed state s of token i with the
//! target's embedding e of token i + 1: x = before·[e, s]. Its layers have queries only. They
//! attend to the KV cache of the target's last layer of the same kind for the tokens up to i; in
//! all nodes of a tree, queries are rotated as for token i + 1. Logits are output·norm(x), and the
//! output state is after·norm(x).
//! Deviations: 1. If files have clusters of tokens, which restrict the output, they are ignored:
//! logits are computed for all tokens. 2. It returns its full distribution at every node of a tree.
//! Complexity: a few narrow layers and the output matrix for each drafted token; no prefill.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use polydraft::Token;
use polydraft_engine::{HiddenState, Model};
use polydraft_kernels::available_memory;
use serde_json::Value;

use super::DraftHead;
use super::net::{Join, Net};
use super::options::HeadOptions;
use super::source;
use crate::config::{Config, HeadShape, Positions};
use crate::description::{TensorSizes, check_memory};
use crate::error::{Error, Result};
use crate::linear::Matrix;
use crate::model::TransformerModel;
use crate::transformer::load::Loader;
use crate::transformer::{PositionEncoding, Transformer};
use crate::weights::{TensorHeader, TensorRows, Weights};

/// Configuration and tensor headers of an assistant.
pub(super) struct AssistantFiles {
    pub weights: Weights,
    /// Configuration of the assistant's layers.
    pub config: Config,
}

impl AssistantFiles {
    /// Opens the files and checks them against the target: its configuration `target` and the size
    /// of its vocabulary.
    pub fn open(
        directory: &Path,
        json: &Value,
        target: &Config,
        vocabulary: usize,
    ) -> Result<Self> {
        let (config, mut weights) = source::assistant_parts(directory, json)?;
        check(json, &config, target, vocabulary)
            .map_err(|problem| Error::File { path: source::config_path(directory), problem })?;
        weights.drop_tensors(|name| is_unread(&config, name));
        Ok(Self { weights, config })
    }

    /// Tensors that are loaded.
    fn tensors(&self) -> impl Iterator<Item = TensorHeader> {
        let is_read = |tensor: &TensorHeader| !is_unread(&self.config, &tensor.name);
        self.weights.tensors().into_iter().filter(is_read)
    }

    /// Number of parameters in these tensors.
    pub fn parameters(&self) -> u64 {
        self.tensors().map(|tensor| tensor.numbers()).fold(0, u64::saturating_add)
    }
}

/// Whether a tensor with this name is not loaded.
fn is_unread(config: &Config, name: &str) -> bool {
    name.starts_with("masked_emb")
        || config.tied && name == format!("{}.weight", config.names.lm_head)
        || config.skips_tensor(name)
}

/// Checks that the assistant belongs to the target.
fn check(
    json: &Value,
    config: &Config,
    target: &Config,
    vocabulary: usize,
) -> std::result::Result<(), String> {
    let backbone = json.get("backbone_hidden_size").and_then(Value::as_u64).unwrap_or(1536);
    if backbone != target.hidden as u64 {
        let expected = target.hidden;
        return Err(format!(
            "backbone_hidden_size: expected the target's {expected}, got {backbone}"
        ));
    }
    if ![target.vocabulary, vocabulary].contains(&config.vocabulary) {
        let (expected, got) = (target.vocabulary, config.vocabulary);
        return Err(format!("vocab_size: expected the target's {expected}, got {got}"));
    }
    for layer in 0..config.layers {
        let windowed = config.is_windowed(layer);
        let kind = if windowed { "with a window" } else { "with full attention" };
        let Some(source_layer) = target.last_cached_layer(windowed) else {
            return Err(format!("layer_types: expected a target with layers {kind}, got none"));
        };
        let [own, expected] = [config.head_shape(layer), target.head_shape(source_layer)].map(
            |HeadShape { key_value_heads, head_dim, .. }| {
                format!("{key_value_heads} of {head_dim} numbers")
            },
        );
        if own != expected {
            return Err(format!(
                "num_key_value_heads: expected, in layers {kind}, the target's {expected}, got \
                 {own}"
            ));
        }
    }
    Ok(())
}

/// Loads an assistant for a target on the native backend.
pub(super) fn read(
    directory: &Path,
    json: &Value,
    model: &TransformerModel,
    options: &HeadOptions,
) -> Result<DraftHead> {
    if options.layers.is_some() {
        let problem = "expected no option for layers of the target: an assistant reads the last";
        return Err(Error::File { path: directory.to_owned(), problem: problem.to_owned() });
    }
    let (target, info) = (model.transformer(), model.info());
    let vocabulary = info.vocabulary.size();
    let files = AssistantFiles::open(directory, json, &target.config, vocabulary)?;
    let mut sizes = TensorSizes::default();
    files.tensors().for_each(|tensor| sizes.add(&tensor, files.config.matrix_use(&tensor.name)));
    let AssistantFiles { weights, config } = files;
    let available = options.memory.or_else(available_memory);
    check_memory(directory, options.precision, available, |precision| sizes.bytes(precision))?;

    let mut loader = Loader { config: &config, weights, precision: options.precision };
    let (hidden, backbone) = (config.hidden, target.config.hidden);
    let before = loader.linear(&[("pre_projection".to_owned(), hidden)], 2 * backbone, false)?;
    let after = loader.linear(&[("post_projection".to_owned(), backbone)], hidden, false)?;
    let mut layers = Vec::with_capacity(config.layers);
    for number in 0..config.layers {
        let mut layer = loader.layer(number)?;
        // `check` made sure that there is one.
        let source_layer = target.config.last_cached_layer(config.is_windowed(number)).unwrap_or(0);
        layer.cache_index = target.config.cache_index(source_layer);
        layers.push(layer);
    }
    let norm = loader.norm(config.names.norm, hidden)?;
    let tokens = options.allowed_tokens(directory, vocabulary)?;
    let output = output(&mut loader, vocabulary, &tokens)?;
    let positions = match &config.positions {
        Positions::Rotary(rope) => PositionEncoding::rotary(&config, rope),
        Positions::Learned { .. } => {
            let problem = "expected rotary positions".to_owned();
            return Err(Error::File { path: source::config_path(directory), problem });
        }
    };
    loader.weights.check_all_read(|name| is_unread(&config, name))?;

    let embedding = Arc::clone(target.embedding());
    let mut decoder = Transformer::from_parts(config.clone(), embedding, positions, layers);
    decoder.set_norm(Some(norm));
    decoder.set_lm_head(Arc::new(output));
    let scale = target.config.embedding_scale;
    let net = Net {
        decoder,
        join: Join::Assistant { before, after, scale },
        tokens,
        logit_scale: 1.0,
        hidden_states: vec![HiddenState::Output],
        feature_width: backbone,
    };
    let name = directory.file_name().map_or_else(|| directory.to_owned(), PathBuf::from);
    Ok(DraftHead::new(name.to_string_lossy().into_owned(), vocabulary, info.context, vec![net]))
}

/// Loads the rows of the output matrix for `tokens`.
fn output(loader: &mut Loader, vocabulary: usize, tokens: &[Token]) -> Result<Matrix> {
    let Config { hidden, vocabulary: rows, names, tied, .. } = *loader.config;
    let name = if tied { names.embedding } else { names.lm_head };
    let part = TensorRows::first_rows(format!("{name}.weight"), rows, vocabulary.min(rows));
    let all = loader.stacked(&[part], hidden)?;
    match tokens.len() == vocabulary {
        true => Ok(all),
        false => all.select(tokens),
    }
}
