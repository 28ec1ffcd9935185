//! Optional files of a model directory.

use std::io::ErrorKind;
use std::path::Path;

use polydraft_files::{FileKind, read};
use serde_json::{Map, Value};

use crate::{Error, Result};

/// Reads a file; `None` if it is missing. A dangling link is an error: the file was meant to exist,
/// and ignoring it would change the model's behaviour.
pub(crate) fn read_optional(path: &Path, kind: FileKind) -> Result<Option<Vec<u8>>> {
    match read(path, kind) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == ErrorKind::NotFound && path.symlink_metadata().is_err() => Ok(None),
        Err(source) => Err(Error::Read { path: path.to_owned(), source }),
    }
}

/// Reads a text file as [`read_optional`].
pub(crate) fn read_optional_text(path: &Path, kind: FileKind) -> Result<Option<String>> {
    let text = read_optional(path, kind)?.map(polydraft_files::decode_utf8).transpose();
    text.map_err(|e| Error::File { path: path.to_owned(), problem: e.to_string() })
}

/// Reads the object of a JSON file; empty if the file is missing.
pub(crate) fn read_object(path: &Path) -> Result<Map<String, Value>> {
    let Some(bytes) = read_optional(path, FileKind::CONFIG)? else { return Ok(Map::new()) };
    serde_json::from_slice(&bytes).map_err(|e| Error::File {
        path: path.to_owned(),
        problem: format!("expected a JSON object: {}", e),
    })
}
