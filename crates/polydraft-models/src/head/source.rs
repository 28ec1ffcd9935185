//! Configuration and tensors of draft heads, from a directory or a GGUF file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use polydraft_gguf::Gguf;
use serde_json::Value;

use super::mtp_file::is_mtp_file;
use crate::config::Config;
use crate::description::is_gguf;
use crate::error::{Error, Result};
use crate::family::gguf::{assistant, block, eagle3};
use crate::weights::Weights;

/// Path of the file with the configuration.
pub(super) fn config_path(path: &Path) -> PathBuf {
    if is_gguf(path) { path.to_owned() } else { path.join("config.json") }
}

/// Whether a path is a GGUF file of a block head.
pub(super) fn is_block_file(path: &Path) -> bool {
    is_gguf(path) && Gguf::open(path).is_ok_and(|gguf| block::is_block(&gguf))
}

/// Whether a path is a GGUF file of an EAGLE-3 head, a block head, an assistant, or MTP layers.
pub(super) fn is_head_file(path: &Path) -> bool {
    let is_head = |gguf: &Gguf| {
        eagle3::is_eagle3(gguf) || block::is_block(gguf) || assistant::is_assistant(gguf)
    };
    is_gguf(path) && Gguf::open(path).is_ok_and(|gguf| is_head(&gguf) || is_mtp_file(gguf))
}

/// Configuration of an assistant; `None` for other files.
pub(super) fn assistant(path: &Path) -> Result<Option<Value>> {
    if !is_gguf(path) {
        return Ok(config(path).ok().filter(Config::is_assistant));
    }
    let gguf = Gguf::open(path)?;
    if !assistant::is_assistant(&gguf) {
        return Ok(None);
    }
    let invalid = |problem| Error::File { path: path.to_owned(), problem };
    assistant::fields(&gguf).map(Some).map_err(invalid)
}

/// Layers and tensors of an assistant with configuration `json`.
pub(super) fn assistant_parts(path: &Path, json: &Value) -> Result<(Config, Weights)> {
    let invalid = |problem| Error::File { path: config_path(path), problem };
    if !is_gguf(path) {
        return Ok((Config::from_assistant(json).map_err(invalid)?, Weights::open(path)?));
    }
    let gguf = Gguf::open(path)?;
    let config = assistant::config(&gguf, json).map_err(invalid)?;
    Ok((config, Weights::from_head_file(gguf, assistant::NAMES, BTreeMap::new())?))
}

/// Configuration of a draft head, in the form of `config.json`.
pub(super) fn config(path: &Path) -> Result<Value> {
    config_and_divisors(path).map(|(config, _)| config)
}

/// Like [`config`], with the divisors of RoPE frequencies that a GGUF file has as a tensor.
pub(super) fn config_and_divisors(path: &Path) -> Result<(Value, Option<Vec<f32>>)> {
    let file = config_path(path);
    let invalid = |problem: String| Error::File { path: file.clone(), problem };
    if is_gguf(path) {
        let gguf = Gguf::open(path)?;
        let fields = match eagle3::is_eagle3(&gguf) {
            true => eagle3::fields(&gguf),
            false => block::fields(&gguf),
        };
        return Ok((fields.map_err(invalid)?, eagle3::divisors(&gguf).map_err(invalid)?));
    }
    let text = polydraft_files::read_text(&file, polydraft_files::FileKind::CONFIG)
        .map_err(|source| Error::Read { path: file.clone(), source })?;
    Ok((serde_json::from_str(&text).map_err(|e| invalid(e.to_string()))?, None))
}

/// Tensors of a draft head, with the names of directories.
pub(super) fn weights(path: &Path) -> Result<Weights> {
    if !is_gguf(path) {
        return Weights::open(path);
    }
    let gguf = Gguf::open(path)?;
    let invalid = |problem| Error::File { path: path.to_owned(), problem };
    let permuted = match eagle3::is_eagle3(&gguf) {
        true => eagle3::permuted(&gguf).map_err(invalid)?,
        false => BTreeMap::new(),
    };
    Weights::from_head_file(gguf, block::NAMES, permuted)
}
