//! Loading of EAGLE heads, with the tensors that they share with the target.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use polydraft::Token;
use polydraft_engine::{HiddenState, ModelInfo};
use polydraft_kernels::{CacheType, available_memory};

use super::DraftHead;
use super::assistant;
use super::block::config::Block;
use super::config::{FeatureNorms, HeadConfig, Kind, NAMES};
use super::hidden_states::{default_hidden_states, states_after};
use super::net::{Combine, Join, Net};
use super::options::HeadOptions;
use super::target::{HeadTarget, target_output_rows};
use super::{mtp, mtp_file, source};
use crate::config::{Config, Positions, QkNorm};
use crate::description::{TensorSizes, check_memory, is_gguf};
use crate::error::{Error, Result};
use crate::family::gguf::eagle3;
use crate::linear::{Linear, Matrix};
use crate::transformer::load::Loader;
use crate::transformer::norms::Norms;
use crate::transformer::{PositionEncoding, Transformer};
use crate::weights::{TensorRows, Weights};

/// Whether a directory or a GGUF file has a draft head rather than a model.
pub fn is_head(directory: &Path) -> bool {
    if is_gguf(directory) {
        return source::is_head_file(directory);
    }
    let config = source::config(directory).unwrap_or_default();
    let markers = ["draft_vocab_size", "speculators_model_type", "eagle_config", "dflash_config"];
    Config::is_assistant(&config)
        || markers.iter().any(|field| config.get(field).is_some())
        || open(directory).is_ok_and(|weights| weights.shape("fc.weight").is_some())
}

/// Loads an EAGLE head or an assistant from a directory with `config.json` and `model.safetensors`
/// (or shards with an index) or `pytorch_model.bin`, or from a GGUF file (EAGLE-3, assistants, MTP
/// layers without their model).
/// From then on the target captures the hidden states that the draft head reads. Tensors that its
/// files omit are shared with the target.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use polydraft_models::{HeadOptions, LoadOptions, load, load_head};
/// use polydraft_engine::Engine;
///
/// let mut target = load("models/big".as_ref(), LoadOptions::default())?;
/// let head = load_head("models/big-eagle3".as_ref(), &mut target.model, &HeadOptions::default())?;
/// let engine = Engine::new(Box::new(target.model), Some(Box::new(head)));
/// # Ok(()) }
/// ```
///
/// # Errors
/// Missing or invalid files; unknown options; tensors whose shapes do not match the configuration;
/// a draft head for another target, or one that does not fit into memory; a target on another
/// backend that does not provide the hidden states, or the KV cache for an assistant. The message
/// names the field or the tensor.
pub fn load_head<'a>(
    directory: &Path,
    target: impl Into<HeadTarget<'a>>,
    options: &HeadOptions,
) -> Result<DraftHead> {
    let mut target = target.into();
    if let HeadTarget::Native(model) = &mut target
        && let Some(parts) = mtp_file::open_for(directory, model.config())?
    {
        return mtp::from_parts(directory, parts, model, options);
    }
    let head = match (source::assistant(directory)?, &mut target) {
        (Some(json), HeadTarget::Native(model)) => {
            assistant::read(directory, &json, model, options)?
        }
        (Some(_), HeadTarget::Other(..)) => {
            let problem =
                "expected a target on the native backend: an assistant reads its KV cache";
            return Err(Error::File { path: directory.to_owned(), problem: problem.to_owned() });
        }
        (None, target) => read(directory, target.transformer(), target.info(), options)?,
    };
    target.capture(head.hidden_states())?;
    Ok(head)
}

fn read(
    directory: &Path,
    target: &Transformer,
    info: &ModelInfo,
    options: &HeadOptions,
) -> Result<DraftHead> {
    let vocabulary = info.vocabulary.size();
    let (layers, allowed) = (options.layers.as_deref(), options.tokens.as_deref());
    let Headers { weights, config, hidden_states, tokens } =
        Headers::read(directory, &target.config, vocabulary, layers, allowed)?;
    check_size(directory, info, options, &weights, &config.layers)?;

    let hidden = config.layers.hidden;
    let precision = options.precision;
    let mut loader = Loader { config: &config.layers, weights, precision };
    let width = hidden_states.len() * target.config.hidden;
    let (join, first) = match &config.kind {
        Kind::Eagle1 => {
            let fc = fc(&mut loader, 2 * hidden, config.bias.unwrap_or(true))?;
            (Join::Embedding(fc), loader.block(0, Norms::default(), hidden)?)
        }
        Kind::Eagle3 { norms, residual, feedback } => {
            let combine = combine(
                &mut loader,
                *norms,
                hidden_states.len(),
                width,
                config.bias.unwrap_or(false),
            )?;
            let join = Join::Features {
                combine,
                token_norm: loader.norm("layers.0.input_layernorm", hidden)?,
                state_norm: loader.norm("layers.0.hidden_norm", hidden)?,
                residual: *residual,
                feedback: *feedback,
            };
            (join, loader.block(0, Norms::default(), 2 * hidden)?)
        }
        Kind::Block(Block { name, .. }) => {
            let problem =
                format!("expected an autoregressive draft head, got {name}, a block head");
            return Err(Error::File { path: source::config_path(directory), problem });
        }
    };
    let mut layers = vec![first];
    for number in 1..config.layers.layers {
        layers.push(loader.layer(number)?);
    }
    let norm = match config.layers.final_norm {
        true => Some(loader.norm(NAMES.norm, hidden)?),
        false => None,
    };
    let embedding = embedding(&mut loader, target, vocabulary)?;
    let output = output(&mut loader, target, &tokens)?;
    let Positions::Rotary(rope) = &config.layers.positions else {
        let problem = "expected rotary positions".to_owned();
        return Err(Error::File { path: source::config_path(directory), problem });
    };
    let positions = PositionEncoding::Rotary(rope.frequencies(config.layers.head_dim), None);
    loader.weights.check_all_read(is_unread)?;

    let mut decoder = Transformer::from_parts(config.layers.clone(), embedding, positions, layers);
    decoder.set_norm(norm);
    decoder.set_lm_head(output);
    let net = Net {
        decoder,
        join,
        tokens: tokens.ids,
        logit_scale: config.logit_scale,
        feature_width: width,
        hidden_states,
    };
    let name =
        directory.file_name().unwrap_or(directory.as_os_str()).to_string_lossy().into_owned();
    Ok(DraftHead::new(name, vocabulary, info.context, vec![net]))
}

/// Checks that the available memory is enough for the weights and a context of 1,000 tokens.
pub(super) fn check_size(
    directory: &Path,
    info: &ModelInfo,
    options: &HeadOptions,
    weights: &Weights,
    config: &Config,
) -> Result<()> {
    let mut sizes = TensorSizes::default();
    for tensor in weights.tensors().iter().filter(|tensor| !is_unread(&tensor.name)) {
        sizes.add(tensor, config.matrix_use(&tensor.name));
    }
    let cache = config.cache_bytes(CacheType::default().bytes());
    let cache = cache.saturating_mul(info.context.min(1_000) as u64);
    let needed = |precision| sizes.bytes(precision).saturating_add(cache);
    check_memory(directory, options.precision, options.memory.or_else(available_memory), needed)
}

/// Whether a tensor with this name is not loaded.
pub(super) fn is_unread(name: &str) -> bool {
    ["t2d", eagle3::DIVISORS].contains(&name)
        || name.ends_with("rotary_emb.inv_freq")
        || name.starts_with("verifier_")
}

/// Configuration and tensor headers of a draft head.
pub(super) struct Headers {
    pub weights: Weights,
    pub config: HeadConfig,
    /// Hidden states of the target that it reads.
    pub hidden_states: Vec<HiddenState>,
    pub tokens: Tokens,
}

impl Headers {
    /// Reads the headers and checks them against the target: its configuration `target` and the
    /// size of its vocabulary. `layers` and `allowed` override the layers and tokens of the files.
    pub fn read(
        directory: &Path,
        target: &Config,
        vocabulary: usize,
        layers: Option<&[usize]>,
        allowed: Option<&[Token]>,
    ) -> Result<Self> {
        let mut weights = open(directory)?;
        let fc_columns = weights.shape("fc.weight").and_then(|shape| shape.get(1).copied());
        let mut config = HeadConfig::read(directory, fc_columns)?;
        if weights.shape("mask_hidden").is_some() {
            let expected = "no such tensor, as in an autoregressive draft head".to_owned();
            return Err(weights.tensor_error(
                "mask_hidden",
                expected,
                "a draft head that drafts several tokens in one pass".to_owned(),
            ));
        }
        let hidden_states = check(&config, target, vocabulary, layers)
            .map_err(|problem| Error::File { path: source::config_path(directory), problem })?;
        config.layers.attention.qk_norm = match weights.shape("layers.0.self_attn.q_norm.weight") {
            Some(_) => QkNorm::PerHead,
            None => QkNorm::None,
        };
        let tokens = tokens(&mut weights, &config, vocabulary, allowed)?;
        Ok(Self { weights, config, hidden_states, tokens })
    }
}

/// Opens the tensors of a draft head and renames them to a common form.
fn open(directory: &Path) -> Result<Weights> {
    let mut weights = source::weights(directory)?;
    weights.rename(|name| {
        let name = name.strip_prefix("model.").unwrap_or(name);
        let name = match name.strip_prefix("midlayer.") {
            Some(rest) => format!("layers.0.{rest}"),
            None => name.to_owned(),
        };
        match name.as_str() {
            "draft_id_to_target_id" => "d2t".to_owned(),
            "aux_norm_low.weight" => "fc_norm.0.weight".to_owned(),
            "aux_norm_mid.weight" => "fc_norm.1.weight".to_owned(),
            "aux_norm_high.weight" => "fc_norm.2.weight".to_owned(),
            _ => name,
        }
    });
    Ok(weights)
}

/// Checks that the draft head is for this target; returns the hidden states that it reads.
fn check(
    config: &HeadConfig,
    target: &Config,
    vocabulary: usize,
    layers: Option<&[usize]>,
) -> std::result::Result<Vec<HiddenState>, String> {
    if ![target.vocabulary, vocabulary].contains(&config.layers.vocabulary) {
        let (expected, got) = (target.vocabulary, config.layers.vocabulary);
        return Err(format!("vocab_size: expected the target's {expected}, got {got}"));
    }
    let (field, got) = match config.target_hidden {
        Some(got) => ("target_hidden_size", got),
        None => ("hidden_size", config.layers.hidden),
    };
    if got != target.hidden {
        return Err(format!("{field}: expected the target's {}, got {got}", target.hidden));
    }
    let hidden_states = match (layers, &config.hidden_states, &config.kind) {
        (Some(layers), _, Kind::Eagle3 { .. } | Kind::Block(_)) => states_after(layers.to_vec())?,
        (_, Some(features), _) => features.clone(),
        (_, None, Kind::Block(_)) => {
            return Err("target_layer_ids: expected layers of the target, got none".to_owned());
        }
        (_, None, _) => default_hidden_states(target.layers)?,
    };
    if let Some(got) = config.hidden_state_count.filter(|count| *count != hidden_states.len()) {
        return Err(format!(
            "num_aux_hidden_states: expected {}, one per layer, got {got}",
            hidden_states.len()
        ));
    }
    match hidden_states
        .iter()
        .find(|feature| matches!(feature, HiddenState::After(n) if *n > target.layers))
    {
        Some(HiddenState::After(got)) => {
            Err(format!("layers of the target: expected at most its {}, got {got}", target.layers))
        }
        _ => Ok(hidden_states),
    }
}

/// Draft vocabulary: the tokens that the draft head has logits for.
pub(super) struct Tokens {
    /// Token ids, ascending.
    pub ids: Vec<Token>,
    /// Row of each token in the output matrix.
    pub rows: Vec<u32>,
    /// Number of rows of the output matrix.
    pub count: usize,
}

fn tokens(
    weights: &mut Weights,
    config: &HeadConfig,
    vocabulary: usize,
    allowed: Option<&[Token]>,
) -> Result<Tokens> {
    let all = config.layers.vocabulary;
    let count = config.draft_vocabulary.unwrap_or(all);
    // Directories store the difference of each token id and its row number.
    let is_file = weights.is_gguf();
    let from = |row: i64| if is_file { 0 } else { row };
    let ids: Vec<i64> = match weights.shape("d2t").is_some() || count != all {
        true => (0..)
            .zip(weights.integers("d2t", count)?)
            .map(|(j, d)| from(j).saturating_add(d))
            .collect(),
        false => (0..count as i64).collect(),
    };
    let mut seen = BTreeSet::new();
    for (j, id) in ids.iter().enumerate() {
        if !(0..all as i64).contains(id) {
            let expected = format!("tokens below the target's {all}");
            return Err(weights.tensor_error("d2t", expected, format!("{id} at entry {j}")));
        }
        if !seen.insert(*id) {
            let expected = "every token once".to_owned();
            return Err(weights.tensor_error("d2t", expected, format!("{id} again at entry {j}")));
        }
    }
    let allowed: Option<BTreeSet<Token>> = allowed.map(|allowed| allowed.iter().copied().collect());
    // Rows beyond the tokenizer's tokens are padding.
    let mut pairs: Vec<(Token, u32)> = (ids.iter().zip(0..).map(|(id, row)| (*id as Token, row)))
        .filter(|(id, _)| (*id as usize) < vocabulary)
        .filter(|(id, _)| allowed.as_ref().is_none_or(|allowed| allowed.contains(id)))
        .collect();
    if pairs.is_empty() {
        let expected = "at least one token that may be drafted".to_owned();
        return Err(weights.tensor_error("lm_head.weight", expected, "none".to_owned()));
    }
    pairs.sort_unstable();
    let (ids, rows) = pairs.into_iter().unzip();
    Ok(Tokens { ids, rows, count })
}

pub(super) fn fc(loader: &mut Loader, columns: usize, biased: bool) -> Result<Linear> {
    loader.linear(&[("fc".to_owned(), loader.config.hidden)], columns, biased)
}

fn combine(
    loader: &mut Loader,
    norms: FeatureNorms,
    count: usize,
    width: usize,
    biased: bool,
) -> Result<Combine> {
    let norms = match norms {
        FeatureNorms::None => Vec::new(),
        FeatureNorms::Concatenated => vec![loader.norm("input_norm", width)?],
        FeatureNorms::PerState => {
            let each = (0..count).map(|i| loader.norm(&format!("fc_norm.{i}"), width / count));
            each.collect::<Result<_>>()?
        }
    };
    Ok(Combine { norms, fc: fc(loader, width, biased)? })
}

/// Loads the embedding, or shares the target's.
pub(super) fn embedding(
    loader: &mut Loader,
    target: &Transformer,
    vocabulary: usize,
) -> Result<Arc<Matrix>> {
    let Config { hidden, vocabulary: rows, .. } = *loader.config;
    let name = format!("{}.weight", NAMES.embedding);
    if loader.weights.shape(&name).is_some() {
        let wanted = vocabulary.min(rows);
        return Ok(Arc::new(
            loader.unquantised_matrix(&[TensorRows::first_rows(name, rows, wanted)], hidden)?,
        ));
    }
    match target.config.embedding == hidden {
        true => Ok(Arc::clone(target.embedding())),
        false => Err(cannot_share(loader, &name, target.config.embedding)),
    }
}

/// Loads the output matrix, or takes rows of the target's.
pub(super) fn output(
    loader: &mut Loader,
    target: &Transformer,
    tokens: &Tokens,
) -> Result<Arc<Matrix>> {
    let hidden = loader.config.hidden;
    let name = format!("{}.weight", NAMES.lm_head);
    if loader.weights.shape(&name).is_some() {
        let all =
            loader.stacked(&[TensorRows::first_rows(name, tokens.count, tokens.count)], hidden)?;
        return Ok(Arc::new(match tokens.rows.len() == tokens.count && tokens.rows.is_sorted() {
            true => all,
            false => all.select(&tokens.rows)?,
        }));
    }
    if target.config.embedding != hidden {
        return Err(cannot_share(loader, &name, target.config.embedding));
    }
    let every = (0..target.config.vocabulary as Token).eq(tokens.ids.iter().copied());
    match every {
        true => Ok(Arc::clone(target.lm_head())),
        false => target_output_rows(target, &tokens.ids, loader.precision),
    }
}

/// Error for a missing tensor whose counterpart in the target has another width.
fn cannot_share(loader: &Loader, name: &str, width: usize) -> Error {
    let expected = format!("one of {} columns", loader.config.hidden);
    loader.weights.tensor_error(
        name,
        expected,
        format!("no tensor with that name, and {width} columns in the target"),
    )
}
