//! The files of a model directory that need not be there.

use std::io::ErrorKind;
use std::path::Path;

use polydraft_files::{Kind, read};
use serde_json::{Map, Value};

use crate::{Error, Result};

/// The bytes of a file, `None` if there is none. A link that leads nowhere is an error: somebody
/// meant a file to be there, and going on without it would change what the model does.
pub(crate) fn read_optional(path: &Path, kind: Kind) -> Result<Option<Vec<u8>>> {
    match read(path, kind) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == ErrorKind::NotFound && path.symlink_metadata().is_err() => Ok(None),
        Err(source) => Err(Error::Read { path: path.to_owned(), source }),
    }
}

/// The same as text.
pub(crate) fn read_optional_text(path: &Path, kind: Kind) -> Result<Option<String>> {
    let text = read_optional(path, kind)?.map(polydraft_files::text).transpose();
    text.map_err(|e| Error::File { path: path.to_owned(), problem: e.to_string() })
}

/// The fields of a JSON file, none if there is no such file.
pub(crate) fn read_object(path: &Path) -> Result<Map<String, Value>> {
    let Some(bytes) = read_optional(path, Kind::SETTINGS)? else { return Ok(Map::new()) };
    serde_json::from_slice(&bytes).map_err(|e| Error::File {
        path: path.to_owned(),
        problem: format!("expected a JSON object: {}", e),
    })
}
