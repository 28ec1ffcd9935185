//! Assistants: drafters that come with a model and attend to its KV cache.
//!
//! Problem: a drafter with a KV cache of its own reads the prompt once more, and keeps it.
//! Source: Gemma Team 2026 (Gemma 4); what is computed as in Hugging Face transformers
//! (`gemma4_assistant` and its candidate generator).
//! Method: as with EAGLE-1, position i joins the target's last normed state s of token i with the
//! target's embedding e of token i + 1: x = before·[e, s]. Its layers have queries alone. They
//! attend to what the target's last layers of their kinds cached of the tokens up to i, and queries
//! are turned as those of token i + 1, in all nodes of a tree. Logits are output·norm(x), and the
//! state left is after·norm(x).
//! Deviations: 1. Where files have clusters of tokens, to look at some of them only, all tokens get
//! their logits. 2. It gives its whole distribution at every node of a tree, where published
//! engines run it as one chain of its most likely tokens.
//! Complexity: a few narrow layers and the output matrix for each drafted token; no prefill.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use polydraft::Token;
use polydraft_engine::{HiddenState, Model};
use polydraft_kernels::available_memory;
use serde_json::Value;

use super::Head;
use super::net::{Join, Net};
use super::options::HeadOptions;
use super::source;
use crate::config::{Config, HeadShape, Positions};
use crate::description::{Sizes, check_memory};
use crate::error::{Error, Result};
use crate::linear::Matrix;
use crate::model::TransformerModel;
use crate::transformer::load::Loader;
use crate::transformer::{Place, Transformer};
use crate::weights::{Listed, Part, Weights};

/// What an assistant's files say before weights are read.
pub(super) struct Files {
    pub weights: Weights,
    /// Of its own layers.
    pub config: Config,
}

impl Files {
    /// `trunk` is the target, of so many tokens.
    pub fn open(directory: &Path, said: &Value, trunk: &Config, vocabulary: usize) -> Result<Self> {
        let (config, mut weights) = source::assistant_parts(directory, said)?;
        check(said, &config, trunk, vocabulary)
            .map_err(|problem| Error::File { path: source::settings(directory), problem })?;
        weights.drop_others(|name| is_unread(&config, name));
        Ok(Self { weights, config })
    }

    /// Tensors that are read.
    fn tensors(&self) -> impl Iterator<Item = Listed> {
        let is_read = |tensor: &Listed| !is_unread(&self.config, &tensor.name);
        self.weights.tensors().into_iter().filter(is_read)
    }

    /// Numbers in them.
    pub fn parameters(&self) -> u64 {
        self.tensors().map(|tensor| tensor.numbers()).fold(0, u64::saturating_add)
    }
}

/// Whether a tensor of this name is not needed.
fn is_unread(config: &Config, name: &str) -> bool {
    name.starts_with("masked_emb")
        || config.tied && name == format!("{}.weight", config.names.head)
        || config.is_read_elsewhere(name)
}

/// That it is this target's.
fn check(
    said: &Value,
    config: &Config,
    trunk: &Config,
    vocabulary: usize,
) -> std::result::Result<(), String> {
    let backbone = said.get("backbone_hidden_size").and_then(Value::as_u64).unwrap_or(1536);
    if backbone != trunk.hidden as u64 {
        let expected = trunk.hidden;
        return Err(format!(
            "backbone_hidden_size: expected the target's {expected}, got {backbone}"
        ));
    }
    if ![trunk.vocabulary, vocabulary].contains(&config.vocabulary) {
        let (expected, got) = (trunk.vocabulary, config.vocabulary);
        return Err(format!("vocab_size: expected the target's {expected}, got {got}"));
    }
    for layer in 0..config.layers {
        let windowed = config.is_windowed(layer);
        let kind = if windowed { "with a window" } else { "that see everything" };
        let Some(lender) = trunk.lender_when(windowed) else {
            return Err(format!("layer_types: expected a target with layers {kind}, got none"));
        };
        let [own, its] = [config.heads_of(layer), trunk.heads_of(lender)].map(
            |HeadShape { key_value_heads, head, .. }| {
                format!("{key_value_heads} of {head} numbers")
            },
        );
        if own != its {
            return Err(format!(
                "num_key_value_heads: expected, in layers {kind}, the target's {its}, got {own}"
            ));
        }
    }
    Ok(())
}

/// The drafter, for a target on the native backend, whose cache it reads.
pub(super) fn read(
    directory: &Path,
    said: &Value,
    target: &TransformerModel,
    options: &HeadOptions,
) -> Result<Head> {
    if options.layers.is_some() {
        let problem = "expected no choice of the target's layers: an assistant reads the last";
        return Err(Error::File { path: directory.to_owned(), problem: problem.to_owned() });
    }
    let (trunk, info) = (target.transformer(), target.info());
    let vocabulary = info.vocabulary.size();
    let files = Files::open(directory, said, &trunk.config, vocabulary)?;
    let mut sizes = Sizes::default();
    files.tensors().for_each(|tensor| sizes.add(&tensor, files.config.use_of(&tensor.name)));
    let Files { weights, config } = files;
    let available = options.memory.or_else(available_memory);
    check_memory(directory, options.precision, available, |precision| sizes.bytes(precision))?;

    let mut loader = Loader { config: &config, weights, precision: options.precision };
    let (hidden, backbone) = (config.hidden, trunk.config.hidden);
    let before = loader.linear(&[("pre_projection".to_owned(), hidden)], 2 * backbone, false)?;
    let after = loader.linear(&[("post_projection".to_owned(), backbone)], hidden, false)?;
    let mut layers = Vec::with_capacity(config.layers);
    for number in 0..config.layers {
        let mut layer = loader.layer(number)?;
        // There is one: `check` has seen it.
        let lender = trunk.config.lender_when(config.is_windowed(number)).unwrap_or(0);
        layer.place = trunk.config.place_of(lender);
        layers.push(layer);
    }
    let norm = loader.norm(config.names.norm, hidden)?;
    let tokens = options.drafted(directory, vocabulary)?;
    let output = output(&mut loader, vocabulary, &tokens)?;
    let place = match &config.positions {
        Positions::Rotary(rope) => Place::rotary(&config, rope),
        Positions::Learned { .. } => {
            let problem = "expected rotary positions".to_owned();
            return Err(Error::File { path: source::settings(directory), problem });
        }
    };
    loader.weights.finish(|name| is_unread(&config, name))?;

    let embedding = Arc::clone(trunk.embedding());
    let mut decoder = Transformer::of_parts(config.clone(), embedding, place, layers);
    decoder.set_norm(Some(norm));
    decoder.set_head(Arc::new(output));
    let scale = trunk.config.embedding_scale;
    let net = Net {
        decoder,
        join: Join::Following { before, after, scale },
        tokens,
        logit_scale: 1.0,
        reads: vec![HiddenState::Output],
        features: backbone,
    };
    let name = directory.file_name().map_or_else(|| directory.to_owned(), PathBuf::from);
    Ok(Head::new(name.to_string_lossy().into_owned(), vocabulary, info.context, net))
}

/// The rows of its own output matrix that are of these tokens.
fn output(loader: &mut Loader, vocabulary: usize, tokens: &[Token]) -> Result<Matrix> {
    let Config { hidden, vocabulary: rows, names, tied, .. } = *loader.config;
    let name = if tied { names.embedding } else { names.head };
    let part = Part::of(format!("{name}.weight"), rows, vocabulary.min(rows));
    let all = loader.stacked(&[part], hidden)?;
    match tokens.len() == vocabulary {
        true => Ok(all),
        false => all.select(tokens),
    }
}
