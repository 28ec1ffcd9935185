//! Loading of block heads, with the tensors that they share with the target.

use std::path::Path;

use polydraft_engine::ModelInfo;

use super::BlockHead;
use super::config::{Block, ConvolutionShape, LinkShape, is_block};
use super::convolution::Convolution;
use super::link::Link;
use super::net::Net;
use crate::config::Positions;
use crate::description::{Description, is_gguf};
use crate::error::{Error, Result};
use crate::head::config::{Kind, NAMES};
use crate::head::load::{Headers, check_size, embedding, fc, is_unread, output};
use crate::head::options::HeadOptions;
use crate::head::source;
use crate::head::target::HeadTarget;
use crate::transformer::load::Loader;
use crate::transformer::{PositionEncoding, Transformer};
use crate::weights::{TensorRows, Weights};

/// Whether a directory has a block head, by its `config.json`, or a GGUF file, by its architecture.
pub fn is_block_head(directory: &Path) -> bool {
    match is_gguf(directory) {
        true => source::is_block_file(directory),
        false => source::config(directory).is_ok_and(|config| is_block(&config)),
    }
}

/// Loads a block head (DFlash, DFlash-2, DSpark) for a target with files in `path`. As with
/// [`load_head`](crate::load_head), the target then captures the hidden states that it reads.
///
/// # Errors
/// The errors of [`load_head`](crate::load_head).
pub fn load_block_head<'a>(
    directory: &Path,
    target: impl Into<HeadTarget<'a>>,
    path: &Path,
    options: &HeadOptions,
) -> Result<BlockHead> {
    let mut target = target.into();
    let head = read(directory, target.transformer(), target.info(), path, options)?;
    target.capture(head.hidden_states())?;
    Ok(head)
}

fn read(
    directory: &Path,
    target: &Transformer,
    info: &ModelInfo,
    path: &Path,
    options: &HeadOptions,
) -> Result<BlockHead> {
    let vocabulary = info.vocabulary.size();
    let (layers, allowed) = (options.layers.as_deref(), options.tokens.as_deref());
    let Headers { weights, config, hidden_states, tokens } =
        Headers::read(directory, &target.config, vocabulary, layers, allowed)?;
    let invalid = |problem: String| Error::File { path: source::config_path(directory), problem };
    let Kind::Block(block) = &config.kind else {
        return Err(invalid("expected a block head, got an autoregressive draft head".into()));
    };
    let other = directory.join("mask_embedding.pt");
    if other.exists() {
        let problem = "expected the embedding of mask_token_id in the weights, got it in this file";
        return Err(Error::File { path: other, problem: problem.to_owned() });
    }
    check_size(directory, info, options, &weights, &config.layers)?;

    let hidden = config.layers.hidden;
    let precision = options.precision;
    let mut loader = Loader { config: &config.layers, weights, precision };
    let width = hidden_states.len() * target.config.hidden;
    let fc = fc(&mut loader, width, config.bias.unwrap_or(false))?;
    let context_norm = loader.norm("hidden_norm", hidden)?;
    let mut layers = Vec::with_capacity(config.layers.layers);
    let mut convolutions = Vec::new();
    for number in 0..config.layers.layers {
        layers.push(loader.layer(number)?);
        if let Some(shape) = block.convolution {
            convolutions.push([
                convolution(&mut loader, number, "attention_conv", shape)?,
                convolution(&mut loader, number, "mlp_conv", shape)?,
            ]);
        }
    }
    let norm = loader.norm(NAMES.norm, hidden)?;
    let mask = mask(&mut loader, target, path, block.mask)?;
    let embedding = embedding(&mut loader, target, vocabulary)?;
    let link = link(&mut loader, block, &tokens.rows, tokens.count)?;
    let output = output(&mut loader, target, &tokens)?;
    let Positions::Rotary(rope) = &config.layers.positions else {
        return Err(invalid("expected rotary positions".to_owned()));
    };
    let positions = PositionEncoding::rotary(&config.layers, rope);
    loader
        .weights
        .check_all_read(|name| is_unread(name) || name.starts_with("confidence_head."))?;

    let mut decoder = Transformer::from_parts(config.layers.clone(), embedding, positions, layers);
    decoder.set_norm(Some(norm));
    decoder.set_lm_head(output);
    let net = Net {
        decoder,
        fc,
        context_norm,
        block_attention: block.block_attention.clone(),
        convolutions,
        link,
        mask,
        embedding_scale: block.embedding_scale,
        block: block.length,
        from_anchor: block.from_anchor,
        logit_scale: config.logit_scale * block.logit_scale,
        softcap: block.softcap,
        tokens: tokens.ids,
        feature_width: width,
        hidden_states,
    };
    let name =
        directory.file_name().unwrap_or(directory.as_os_str()).to_string_lossy().into_owned();
    Ok(BlockHead::new(name, vocabulary, info.context, net))
}

fn convolution(
    loader: &mut Loader,
    layer: usize,
    name: &str,
    ConvolutionShape { taps, group }: ConvolutionShape,
) -> Result<Convolution> {
    let hidden = loader.config.hidden;
    let name = format!("{}.{layer}.{name}", NAMES.layers);
    let base = loader.weights.numbers(&format!("{name}.base_kernel"), &[2, taps, hidden])?;
    let project = (format!("{name}.kernel_projection"), 2 * taps * (hidden / group));
    Ok(Convolution { base, project: loader.linear(&[project], hidden, false)?, taps, group })
}

/// Loads the link between the tokens of a block. `rows` are the rows of the draft vocabulary among
/// the `count` rows of the output matrix.
fn link(loader: &mut Loader, block: &Block, rows: &[u32], count: usize) -> Result<Link> {
    let (hidden, vocabulary) = (loader.config.hidden, loader.config.vocabulary);
    match block.link {
        LinkShape::None => Ok(Link::None),
        LinkShape::Markov { rank } => {
            let from = TensorRows::first_rows(
                "markov_head.markov_w1.weight".to_owned(),
                vocabulary,
                vocabulary,
            );
            let from = loader.unquantised_matrix(&[from], rank)?;
            let mut to =
                loader.linear(&[("markov_head.markov_w2".to_owned(), count)], rank, false)?;
            if rows.len() != count || !rows.is_sorted() {
                to.matrix = to.matrix.select(rows)?;
            }
            Ok(Link::Markov { from, to })
        }
        LinkShape::Lattice { rank, candidates } => {
            let mut table = |name: &str| {
                let name = format!("candidate_selector.{name}_codebook");
                loader.unquantised_matrix(
                    &[TensorRows::first_rows(name, vocabulary, vocabulary)],
                    rank,
                )
            };
            let (before, after) = (table("predecessor")?, table("successor")?);
            let project = ("candidate_selector.hidden_projection".to_owned(), rank);
            let project = loader.linear(&[project], hidden, false)?;
            Ok(Link::Lattice { candidates, before, after, project })
        }
    }
}

/// Loads the embedding of the mask token: a row of the block head's embedding, or of the target's,
/// which is read from disk because rows beyond the tokenizer's tokens are not in memory.
fn mask(loader: &mut Loader, target: &Transformer, path: &Path, token: usize) -> Result<Vec<f32>> {
    let hidden = loader.config.hidden;
    let name = format!("{}.weight", NAMES.embedding);
    if loader.weights.shape(&name).is_some() {
        let rows = loader.config.vocabulary;
        return row(&mut loader.weights, &name, rows, token, hidden);
    }
    if target.config.embedding != hidden {
        let expected = format!("one of {hidden} columns");
        let got = format!(
            "no tensor with that name, and {} columns in the target",
            target.config.embedding
        );
        return Err(loader.weights.tensor_error(&name, expected, got));
    }
    let (description, mut weights) = Description::open(path)?;
    let names = description.config.names;
    weights.prepend(names.prefix());
    let name = format!("{}.weight", names.embedding);
    row(&mut weights, &name, description.config.vocabulary, token, hidden)
}

/// Reads one row of a matrix.
fn row(
    weights: &mut Weights,
    name: &str,
    rows: usize,
    token: usize,
    width: usize,
) -> Result<Vec<f32>> {
    if token >= rows {
        let expected = format!("a row for mask_token_id = {token}");
        return Err(weights.tensor_error(name, expected, format!("{rows} rows")));
    }
    let part = TensorRows {
        first: token,
        count: 1,
        ..TensorRows::first_rows(name.to_owned(), rows, rows)
    };
    let mut numbers = vec![0f32; width];
    weights.stacked(&[part], width)?.read(0, &mut numbers)?;
    Ok(numbers)
}
