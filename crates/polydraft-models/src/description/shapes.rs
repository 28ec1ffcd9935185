//! Checks the tensors of a directory against its configuration, by headers alone.

use std::path::Path;

use crate::config::{Config, LayerBlocks};
use crate::error::{Error, Result};
use crate::weights::Weights;

/// Checks that tensors and configuration agree on the number of layers and the shapes of matrices.
///
/// # Errors
/// The message names the field, or the tensor with its expected and its actual shape.
pub(super) fn check(directory: &Path, config: &Config, weights: &Weights) -> Result<()> {
    check_layers(directory, config, weights)?;
    matrices(config).try_for_each(|(name, shape)| weights.check_shape(&name, &shape))
}

/// Checks the number of layers.
fn check_layers(directory: &Path, config: &Config, weights: &Weights) -> Result<()> {
    let layer = |name: &str| name.split('.').find_map(|part| part.parse::<usize>().ok());
    let layers = weights
        .tensors()
        .iter()
        .filter_map(|tensor| layer(&tensor.name))
        .max()
        .map_or(0, |last| last + 1);
    if layers == config.layers {
        return Ok(());
    }
    if layers == 0 {
        let problem = format!("expected the tensors of {} layers, got none", config.layers);
        return Err(Error::File { path: directory.to_owned(), problem });
    }
    Err(Error::File {
        path: directory.join("config.json"),
        problem: format!(
            "num_hidden_layers: expected {layers}, the number of layers with tensors, got {}",
            config.layers
        ),
    })
}

/// Matrices of a model, with their shapes.
fn matrices(config: &Config) -> impl Iterator<Item = (String, [usize; 2])> {
    let Config { vocabulary, embedding, hidden, names, .. } = *config;
    let tables = [(names.embedding, false), (names.lm_head, config.tied)];
    let tables = tables.into_iter().filter(|(_, is_other)| !is_other);
    let tables = tables.map(move |(name, _)| (format!("{name}.weight"), [vocabulary, embedding]));
    let layers = (0..config.layers).flat_map(move |layer| {
        let mut all: Vec<(&str, [usize; 2])> = Vec::new();
        let blocks = config.blocks_of(layer);
        let is_plain = config.attention.latent.is_none() && config.recurrent_of(layer).is_none();
        if is_plain && blocks != LayerBlocks::FeedForward {
            let queries = config.heads * config.head_shape(layer).head_dim;
            let projections = config.qkv_matrices(layer).into_iter().enumerate();
            let gate = config.attention.gate;
            let of_gate = gate.map(|gate| gate.own_rows(config.heads, queries / config.heads));
            let gates = if of_gate == Some(0) { queries } else { 0 };
            all.extend(
                of_gate.filter(|rows| *rows > 0).map(|r| (names.attention_gate, [r, hidden])),
            );
            all.extend(projections.map(|(index, (name, rows))| match index {
                0 => (name, [rows + gates, hidden]),
                _ => (name, [rows, hidden]),
            }));
            all.push((names.attention_output, [hidden, queries]));
        }
        let has_block = config.experts_of(layer).is_none_or(|experts| experts.parallel);
        if has_block && blocks != LayerBlocks::Attention {
            let intermediate = config.intermediate_of(layer);
            let sides = if config.feed_forward.gated { 2 } else { 1 };
            let rows = sides * intermediate / names.mlp_in.len();
            all.extend(names.mlp_in.iter().map(|name| (*name, [rows, hidden])));
            all.push((names.mlp_out, [hidden, intermediate]));
        }
        let named = |(name, shape)| (format!("{}.{layer}.{name}.weight", names.layers), shape);
        all.into_iter().map(named).collect::<Vec<_>>()
    });
    tables.chain(layers)
}
