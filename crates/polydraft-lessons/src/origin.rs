//! Origin of a folder's samples. The format does not distinguish samples of different models, or
//! states of different layers, so the origin is recorded and checked.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use polydraft_models::Config;
use serde_json::{Map, Value};

/// Recorded facts by name.
pub(crate) type Facts = Map<String, Value>;

/// Identifies a model independently of its path: by its shape, and by the weights of its last norm,
/// which any training changes.
pub(crate) fn fingerprint(config: &Config, norm: Option<&[f32]>) -> String {
    let Config { vocabulary, hidden, layers, .. } = config;
    let weights = norm.unwrap_or_default().iter().flat_map(|weight| weight.to_le_bytes());
    let hash = weights.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{layers} layers of {hidden} numbers, {vocabulary} tokens, weights {hash:016x}")
}

/// Records facts in a folder.
///
/// # Errors
/// A different recorded fact; the message contains both values.
pub(crate) fn record(folder: &Path, facts: Facts) -> Result<()> {
    let path = folder.join("origin.json");
    let mut recorded = match path.exists() {
        false => Facts::new(),
        true => polydraft_files::read(&path, polydraft_files::FileKind::CONFIG)
            .and_then(|bytes| Ok(serde_json::from_slice(&bytes)?))
            .with_context(|| format!("reading {}", path.display()))?,
    };
    for (name, got) in facts {
        let expected = recorded.entry(&name).or_insert_with(|| got.clone());
        ensure!(
            *expected == got,
            "{}: its samples were written with {name} {expected}, got {got}; use another work \
             folder",
            folder.display()
        );
    }
    write_file(&path, &serde_json::to_vec_pretty(&recorded)?)
}

/// Writes a file atomically.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    polydraft_files::write_atomically(path, bytes)
        .with_context(|| format!("writing {}", path.display()))
}
