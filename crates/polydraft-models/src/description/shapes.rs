//! Whether a directory's tensors are those of its configuration: what of a wrong one can be seen
//! from headers alone.

use std::path::Path;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::weights::Weights;

/// That there are tensors of as many layers as the configuration says, and matrices of the shapes
/// that it says.
///
/// # Errors
/// The field, or the tensor with the shape that was expected and the one that it has.
pub(super) fn check(directory: &Path, config: &Config, weights: &Weights) -> Result<()> {
    check_layers(directory, config, weights)?;
    matrices(config).try_for_each(|(name, shape)| weights.expect(&name, &shape))
}

/// The number of layers, in terms of the field that is wrong.
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
            "num_hidden_layers: expected {layers}, as there are tensors for, got {}",
            config.layers
        ),
    })
}

/// The matrices of a model, with their shapes.
fn matrices(config: &Config) -> impl Iterator<Item = (String, [usize; 2])> {
    let Config { vocabulary, embedding, hidden, intermediate, names, .. } = *config;
    let (queries, keys) = (config.heads * config.head, config.key_value_heads * config.head);
    let tables = [(names.embedding, false), (names.head, config.tied)];
    let tables = tables.into_iter().filter(|(_, is_other)| !is_other);
    let tables = tables.map(move |(name, _)| (format!("{name}.weight"), [vocabulary, embedding]));
    let layers = (0..config.layers).flat_map(move |layer| {
        let [query, key, value] = names.query_key_value;
        let inner = names.mlp_in.iter().map(move |name| (*name, [intermediate, hidden]));
        let matrices = [
            (query, [queries, hidden]),
            (key, [keys, hidden]),
            (value, [keys, hidden]),
            (names.output, [hidden, queries]),
        ];
        let all =
            matrices.into_iter().chain(inner).chain([(names.mlp_out, [hidden, intermediate])]);
        all.map(move |(name, shape)| (format!("{}.{layer}.{name}.weight", names.layers), shape))
    });
    tables.chain(layers)
}
