//! From a head's directory to a drafter, with what it borrows from its target.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use polydraft::Token;
use polydraft_engine::{HiddenState, ModelInfo};
use polydraft_kernels::{CacheType, available_memory};

use super::Head;
use super::assistant;
use super::block::config::Block;
use super::config::{FeatureNorms, HeadConfig, Kind, NAMES};
use super::net::{Combine, Join, Net};
use super::options::HeadOptions;
use super::reads::{default_features, in_order};
use super::source;
use super::target::HeadTarget;
use crate::config::{Config, HeadNorms, Positions};
use crate::description::{Sizes, check_memory, is_gguf};
use crate::error::{Error, Result};
use crate::family::file::eagle3;
use crate::linear::{Linear, Matrix};
use crate::precision::Precision;
use crate::transformer::load::Loader;
use crate::transformer::norms::Norms;
use crate::transformer::{Place, Transformer};
use crate::weights::{Part, Weights};

/// Whether a directory, or a GGUF file, holds a draft head, and not a model of its own.
pub fn is_head(directory: &Path) -> bool {
    if is_gguf(directory) {
        return source::is_head_file(directory);
    }
    let config = source::config(directory).unwrap_or_default();
    let says = ["draft_vocab_size", "speculators_model_type", "eagle_config", "dflash_config"];
    Config::is_assistant(&config)
        || says.iter().any(|field| config.get(field).is_some())
        || open(directory).is_ok_and(|weights| weights.shape("fc.weight").is_some())
}

/// Loads an EAGLE head, or the assistant of a model: `config.json` with `model.safetensors` (or
/// shards with an index) or `pytorch_model.bin`, or a GGUF file (EAGLE-3, assistants). From then on
/// the target captures the hidden states that the head reads; tensors that the head's files leave
/// out are the target's.
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
/// Files that are missing or no such files; choices that are not known; tensors of other shapes
/// than the configuration says; another target's head; one that is too large for the memory; a
/// target on another backend that does not give the hidden states that the head reads, or whose KV
/// cache an assistant would read. Field or tensor are named.
pub fn load_head<'a>(
    directory: &Path,
    target: impl Into<HeadTarget<'a>>,
    options: &HeadOptions,
) -> Result<Head> {
    let mut target = target.into();
    let head = match (source::assistant(directory)?, &mut target) {
        (Some(said), HeadTarget::Native(model)) => {
            assistant::read(directory, &said, model, options)?
        }
        (Some(_), HeadTarget::Other(..)) => {
            let problem =
                "expected a target on the native backend: an assistant reads its KV cache";
            return Err(Error::File { path: directory.to_owned(), problem: problem.to_owned() });
        }
        (None, target) => read(directory, target.trunk(), target.info(), options)?,
    };
    target.capture(head.hidden_states())?;
    Ok(head)
}

fn read(
    directory: &Path,
    trunk: &Transformer,
    info: &ModelInfo,
    options: &HeadOptions,
) -> Result<Head> {
    let vocabulary = info.vocabulary.size();
    let (layers, allowed) = (options.layers.as_deref(), options.tokens.as_deref());
    let Headers { weights, config, reads, tokens } =
        Headers::read(directory, &trunk.config, vocabulary, layers, allowed)?;
    check_size(directory, info, options, &weights, &config.layers)?;

    let hidden = config.layers.hidden;
    let precision = options.precision;
    let mut loader = Loader { config: &config.layers, weights, precision };
    let width = reads.len() * trunk.config.hidden;
    let (join, first) = match &config.kind {
        Kind::Eagle1 => {
            let fc = fc(&mut loader, 2 * hidden, config.bias.unwrap_or(true))?;
            (Join::Embedding(fc), loader.block(0, Norms::default(), hidden)?)
        }
        Kind::Eagle3 { norms, residual, fed_back } => {
            let combine =
                combine(&mut loader, *norms, reads.len(), width, config.bias.unwrap_or(false))?;
            let join = Join::Features {
                combine,
                token_norm: loader.norm("layers.0.input_layernorm", hidden)?,
                state_norm: loader.norm("layers.0.hidden_norm", hidden)?,
                residual: *residual,
                fed_back: *fed_back,
            };
            (join, loader.block(0, Norms::default(), 2 * hidden)?)
        }
        Kind::Block(Block { name, .. }) => {
            let problem = format!("expected a head of single tokens, got {name}, one of blocks");
            return Err(Error::File { path: source::settings(directory), problem });
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
    let embedding = embedding(&mut loader, trunk, vocabulary)?;
    let output = output(&mut loader, trunk, &tokens)?;
    let Positions::Rotary(rope) = &config.layers.positions else {
        let problem = "expected rotary positions".to_owned();
        return Err(Error::File { path: source::settings(directory), problem });
    };
    let place = Place::Rotary(rope.frequencies(config.layers.head), None);
    loader.weights.finish(is_unread)?;

    let mut decoder = Transformer::of_parts(config.layers.clone(), embedding, place, layers);
    decoder.set_norm(norm);
    decoder.set_head(output);
    let net = Net {
        decoder,
        join,
        tokens: tokens.ids,
        logit_scale: config.logit_scale,
        features: width,
        reads,
    };
    let name =
        directory.file_name().unwrap_or(directory.as_os_str()).to_string_lossy().into_owned();
    Ok(Head::new(name, vocabulary, info.context, net))
}

/// That there is memory enough for its weights and a context of 1,000 tokens.
pub(super) fn check_size(
    directory: &Path,
    info: &ModelInfo,
    options: &HeadOptions,
    weights: &Weights,
    config: &Config,
) -> Result<()> {
    let mut sizes = Sizes::default();
    for tensor in weights.tensors().iter().filter(|tensor| !is_unread(&tensor.name)) {
        sizes.add(tensor, config.use_of(&tensor.name));
    }
    let cache = config.cache_bytes(CacheType::default().bytes());
    let cache = cache.saturating_mul(info.context.min(1_000) as u64);
    let needed = |precision| sizes.bytes(precision).saturating_add(cache);
    check_memory(directory, options.precision, options.memory.or_else(available_memory), needed)
}

/// Whether a tensor of this name is not needed.
pub(super) fn is_unread(name: &str) -> bool {
    ["t2d", eagle3::DIVISORS].contains(&name)
        || name.ends_with("rotary_emb.inv_freq")
        || name.starts_with("verifier_")
}

/// What a head's files say before weights are read.
pub(super) struct Headers {
    pub weights: Weights,
    pub config: HeadConfig,
    /// The hidden states of the target that it reads.
    pub reads: Vec<HiddenState>,
    pub tokens: Tokens,
}

impl Headers {
    /// `trunk` is the target, of so many tokens; `layers` are read and tokens `allowed` where the
    /// files are overruled.
    pub fn read(
        directory: &Path,
        trunk: &Config,
        vocabulary: usize,
        layers: Option<&[usize]>,
        allowed: Option<&[Token]>,
    ) -> Result<Self> {
        let mut weights = open(directory)?;
        let fc_columns = weights.shape("fc.weight").and_then(|shape| shape.get(1).copied());
        let mut config = HeadConfig::read(directory, fc_columns)?;
        if weights.shape("mask_hidden").is_some() {
            let expected =
                "no such tensor: a head that drafts one token after the other".to_owned();
            return Err(weights.wrong(
                "mask_hidden",
                expected,
                "a head that drafts several at once".to_owned(),
            ));
        }
        let reads = check(&config, trunk, vocabulary, layers)
            .map_err(|problem| Error::File { path: source::settings(directory), problem })?;
        config.layers.attention.head_norms = match weights.shape("layers.0.self_attn.q_norm.weight")
        {
            Some(_) => HeadNorms::Each,
            None => HeadNorms::None,
        };
        let tokens = tokens(&mut weights, &config, vocabulary, allowed)?;
        Ok(Self { weights, config, reads, tokens })
    }
}

/// The tensors of a head under the names of one form.
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

/// That the head is for this target; the states that it reads.
fn check(
    config: &HeadConfig,
    trunk: &Config,
    vocabulary: usize,
    layers: Option<&[usize]>,
) -> std::result::Result<Vec<HiddenState>, String> {
    if ![trunk.vocabulary, vocabulary].contains(&config.layers.vocabulary) {
        let (expected, got) = (trunk.vocabulary, config.layers.vocabulary);
        return Err(format!("vocab_size: expected the target's {expected}, got {got}"));
    }
    let (field, got) = match config.target_hidden {
        Some(got) => ("target_hidden_size", got),
        None => ("hidden_size", config.layers.hidden),
    };
    if got != trunk.hidden {
        return Err(format!("{field}: expected the target's {}, got {got}", trunk.hidden));
    }
    let reads = match (layers, &config.features, &config.kind) {
        (Some(layers), _, Kind::Eagle3 { .. } | Kind::Block(_)) => in_order(layers.to_vec())?,
        (_, Some(features), _) => features.clone(),
        (_, None, Kind::Block(_)) => {
            return Err("target_layer_ids: expected layers of the target, got none".to_owned());
        }
        (_, None, _) => default_features(trunk.layers)?,
    };
    if let Some(got) = config.feature_count.filter(|count| *count != reads.len()) {
        return Err(format!(
            "num_aux_hidden_states: expected {}, one a layer, got {got}",
            reads.len()
        ));
    }
    match reads.iter().find(|feature| matches!(feature, HiddenState::After(n) if *n > trunk.layers))
    {
        Some(HiddenState::After(got)) => {
            Err(format!("layers of the target: expected at most its {}, got {got}", trunk.layers))
        }
        _ => Ok(reads),
    }
}

/// Which tokens the head has logits of.
pub(super) struct Tokens {
    /// Ascending.
    pub ids: Vec<Token>,
    /// The row of each in the output matrix,
    pub rows: Vec<u32>,
    /// which has so many.
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
    // A directory has how far each token is from its row's number.
    let is_file = weights.is_file();
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
            return Err(weights.wrong("d2t", expected, format!("{id} at entry {j}")));
        }
        if !seen.insert(*id) {
            let expected = "every token once".to_owned();
            return Err(weights.wrong("d2t", expected, format!("{id} again at entry {j}")));
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
        return Err(weights.wrong("lm_head.weight", expected, "none".to_owned()));
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
        FeatureNorms::Together => vec![loader.norm("input_norm", width)?],
        FeatureNorms::Each => {
            let each = (0..count).map(|i| loader.norm(&format!("fc_norm.{i}"), width / count));
            each.collect::<Result<_>>()?
        }
    };
    Ok(Combine { norms, fc: fc(loader, width, biased)? })
}

/// The head's own embedding, or the target's.
pub(super) fn embedding(
    loader: &mut Loader,
    trunk: &Transformer,
    vocabulary: usize,
) -> Result<Arc<Matrix>> {
    let Config { hidden, vocabulary: rows, .. } = *loader.config;
    let name = format!("{}.weight", NAMES.embedding);
    if loader.weights.shape(&name).is_some() {
        let wanted = vocabulary.min(rows);
        return Ok(Arc::new(loader.looked_up(&[Part::of(name, rows, wanted)], hidden)?));
    }
    match trunk.config.embedding == hidden {
        true => Ok(Arc::clone(trunk.embedding())),
        false => Err(borrowed(loader, &name, trunk.config.embedding)),
    }
}

/// The head's own output matrix, or rows of the target's.
pub(super) fn output(
    loader: &mut Loader,
    trunk: &Transformer,
    tokens: &Tokens,
) -> Result<Arc<Matrix>> {
    let hidden = loader.config.hidden;
    let name = format!("{}.weight", NAMES.head);
    if loader.weights.shape(&name).is_some() {
        let all = loader.stacked(&[Part::of(name, tokens.count, tokens.count)], hidden)?;
        return Ok(Arc::new(match tokens.rows.len() == tokens.count && tokens.rows.is_sorted() {
            true => all,
            false => all.select(&tokens.rows)?,
        }));
    }
    if trunk.config.embedding != hidden {
        return Err(borrowed(loader, &name, trunk.config.embedding));
    }
    let every = (0..trunk.config.vocabulary as Token).eq(tokens.ids.iter().copied());
    match every {
        true => Ok(Arc::clone(trunk.head())),
        false => of_target(trunk, &tokens.ids, loader.precision),
    }
}

/// Rows of the target's output matrix, in fewer bits where that is less.
pub(super) fn of_target(
    trunk: &Transformer,
    ids: &[Token],
    precision: Precision,
) -> Result<Arc<Matrix>> {
    let own = trunk.head().select(ids)?;
    let rounded = own.rounded(precision, None)?;
    Ok(Arc::new(if rounded.bytes() < own.bytes() { rounded } else { own }))
}

/// The error of a tensor that the target cannot stand in for.
fn borrowed(loader: &Loader, name: &str, width: usize) -> Error {
    let expected = format!("one of {} columns", loader.config.hidden);
    loader.weights.wrong(
        name,
        expected,
        format!("no tensor of that name, and a target's of {width}"),
    )
}
