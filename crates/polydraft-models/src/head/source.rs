//! Where a head's configuration and tensors come from: a directory, or a GGUF file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use polydraft_gguf::Gguf;
use serde_json::Value;

use crate::config::Config;
use crate::description::is_gguf;
use crate::error::{Error, Result};
use crate::family::gguf::{assistant, block, eagle3};
use crate::weights::Weights;

/// The file that a head's configuration is in.
pub(super) fn settings(path: &Path) -> PathBuf {
    if is_gguf(path) { path.to_owned() } else { path.join("config.json") }
}

/// Whether it is a GGUF file of a head that predicts blocks.
pub(super) fn is_block_file(path: &Path) -> bool {
    is_gguf(path) && Gguf::open(path).is_ok_and(|gguf| block::is_block(&gguf))
}

/// Whether it is a GGUF file of an EAGLE-3 head, of one that predicts blocks, or of an assistant.
pub(super) fn is_head_file(path: &Path) -> bool {
    let is_head = |gguf: &Gguf| {
        eagle3::is_eagle3(gguf) || block::is_block(gguf) || assistant::is_assistant(gguf)
    };
    is_gguf(path) && Gguf::open(path).is_ok_and(|gguf| is_head(&gguf))
}

/// An assistant's configuration, if it is one.
pub(super) fn assistant(path: &Path) -> Result<Option<Value>> {
    if !is_gguf(path) {
        return Ok(config(path).ok().filter(Config::is_assistant));
    }
    let gguf = Gguf::open(path)?;
    if !assistant::is_assistant(&gguf) {
        return Ok(None);
    }
    let wrong = |problem| Error::File { path: path.to_owned(), problem };
    assistant::fields(&gguf).map(Some).map_err(wrong)
}

/// The layers of an assistant with such a configuration, and its tensors.
pub(super) fn assistant_parts(path: &Path, json: &Value) -> Result<(Config, Weights)> {
    let wrong = |problem| Error::File { path: settings(path), problem };
    if !is_gguf(path) {
        return Ok((Config::from_assistant(json).map_err(wrong)?, Weights::open(path)?));
    }
    let gguf = Gguf::open(path)?;
    let config = assistant::config(&gguf, json).map_err(wrong)?;
    Ok((config, Weights::from_head_file(gguf, assistant::NAMES, BTreeMap::new())?))
}

/// A head's configuration, as `config.json` has it.
pub(super) fn config(path: &Path) -> Result<Value> {
    config_and_divisors(path).map(|(config, _)| config)
}

/// The same, and what divides the frequencies of positions where a GGUF file has it as a tensor.
pub(super) fn config_and_divisors(path: &Path) -> Result<(Value, Option<Vec<f32>>)> {
    let file = settings(path);
    let wrong = |problem: String| Error::File { path: file.clone(), problem };
    if is_gguf(path) {
        let gguf = Gguf::open(path)?;
        let fields = match eagle3::is_eagle3(&gguf) {
            true => eagle3::fields(&gguf),
            false => block::fields(&gguf),
        };
        return Ok((fields.map_err(wrong)?, eagle3::divisors(&gguf).map_err(wrong)?));
    }
    let text = polydraft_files::read_text(&file, polydraft_files::FileKind::CONFIG)
        .map_err(|source| Error::Read { path: file.clone(), source })?;
    Ok((serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))?, None))
}

/// Its tensors, under the names that directories have for them.
pub(super) fn weights(path: &Path) -> Result<Weights> {
    if !is_gguf(path) {
        return Weights::open(path);
    }
    let gguf = Gguf::open(path)?;
    let wrong = |problem| Error::File { path: path.to_owned(), problem };
    let permuted = match eagle3::is_eagle3(&gguf) {
        true => eagle3::permuted(&gguf).map_err(wrong)?,
        false => BTreeMap::new(),
    };
    Weights::from_head_file(gguf, block::NAMES, permuted)
}
