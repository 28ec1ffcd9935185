//! Where a head's configuration and tensors come from: a directory, or a GGUF file.

use std::path::{Path, PathBuf};

use polydraft_gguf::Gguf;
use serde_json::Value;

use crate::description::is_gguf;
use crate::error::{Error, Result};
use crate::family::file::block;
use crate::weights::Weights;

/// The file that a head's configuration is in.
pub(super) fn settings(path: &Path) -> PathBuf {
    if is_gguf(path) { path.to_owned() } else { path.join("config.json") }
}

/// Whether it is a GGUF file of a head that predicts blocks.
pub(super) fn is_block_file(path: &Path) -> bool {
    is_gguf(path) && Gguf::open(path).is_ok_and(|gguf| block::is_block(&gguf))
}

/// A head's configuration, as `config.json` has it.
pub(super) fn config(path: &Path) -> Result<Value> {
    let file = settings(path);
    let wrong = |problem: String| Error::File { path: file.clone(), problem };
    if is_gguf(path) {
        return block::fields(&Gguf::open(path)?).map_err(wrong);
    }
    let text = polydraft_files::read_text(&file, polydraft_files::Kind::SETTINGS)
        .map_err(|source| Error::Read { path: file.clone(), source })?;
    serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))
}

/// Its tensors, under the names that directories have for them.
pub(super) fn weights(path: &Path) -> Result<Weights> {
    match is_gguf(path) {
        true => Weights::of_head(Gguf::open(path)?, block::NAMES),
        false => Weights::open(path),
    }
}
