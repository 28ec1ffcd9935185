//! Files with the MTP layers of a model and nothing else, which lie beside it: GGUF, in the model's
//! architecture, with the numbers that these layers have in the model.

use std::path::Path;

use polydraft_gguf::Gguf;

use crate::config::Config;
use crate::description::is_gguf;
use crate::error::{Error, Result};
use crate::family::gguf::{config_from_gguf, has_mtp_only};
use crate::weights::{TensorHeader, Weights};

/// Configuration and tensors of a file with MTP layers only; `None` for other files.
fn read(gguf: Gguf) -> Option<(Config, Weights)> {
    let (mut config, permuted) = config_from_gguf(&gguf)?.ok()?;
    if !has_mtp_only(&gguf, &config) {
        return None;
    }
    let weights = Weights::from_family_file(gguf, permuted).ok()?;
    config.count_mtp_modules(|name| weights.has(name));
    (config.mtp_modules > 0).then_some((config, weights))
}

/// Whether a file has the MTP layers of a model, and not its other layers.
pub(super) fn is_mtp_file(gguf: Gguf) -> bool {
    read(gguf).is_some()
}

/// Opens a file of MTP layers for a target; `None` for other files.
///
/// # Errors
/// MTP layers of another model: another architecture, or other widths or layers. A folder's model
/// is another architecture than that of GGUF files: conventions of their weights differ.
pub(super) fn open_for(path: &Path, target: &Config) -> Result<Option<(Config, Weights)>> {
    let gguf = is_gguf(path).then(|| Gguf::open(path).ok()).flatten();
    let Some((config, weights)) = gguf.and_then(read) else { return Ok(None) };
    let shape = |config: &Config| {
        (config.architecture, config.layers, config.hidden, config.heads, config.vocabulary)
    };
    let (got, expected) = (shape(&config), shape(target));
    if got == expected {
        // What is read from other layers' tensors, such as biases, only the target tells.
        let Config { mtp_modules, mtp_layers, .. } = config;
        return Ok(Some((Config { mtp_modules, mtp_layers, ..target.clone() }, weights)));
    }
    let shown = |(architecture, layers, hidden, heads, vocabulary)| {
        format!(
            "{architecture} with {layers} layers, {hidden} hidden numbers, {heads} heads, \
             {vocabulary} tokens"
        )
    };
    let problem =
        format!("expected the MTP layers of {}, got those of {}", shown(expected), shown(got));
    Err(Error::File { path: path.to_owned(), problem })
}

/// Number of parameters of MTP layers, without those that they share with the target.
pub(super) fn parameters(config: &Config, weights: &Weights) -> u64 {
    let prefix = format!("{}.", config.names.layers);
    let own = weights.tensors().into_iter().filter(|tensor| tensor.name.starts_with(&prefix));
    own.map(|tensor: TensorHeader| tensor.numbers()).fold(0, u64::saturating_add)
}
