//! What all that lies in a folder was made from: text of another model, or states of other layers,
//! fit in size alone.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use polydraft_models::Config;
use serde_json::{Map, Value};

/// Facts by name.
pub(crate) type Facts = Map<String, Value>;

/// What tells a model from others, wherever it lies: its shape, and the weights of its last norm,
/// which every training moves.
pub(crate) fn fingerprint(config: &Config, norm: Option<&[f32]>) -> String {
    let Config { vocabulary, hidden, layers, .. } = config;
    let weights = norm.unwrap_or_default().iter().flat_map(|weight| weight.to_le_bytes());
    let hash = weights.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{layers} layers of {hidden} numbers, {vocabulary} tokens, weights {hash:016x}")
}

/// Keeps the facts in a folder.
///
/// # Errors
/// A fact that is there already and says something else; which, and both.
pub(crate) fn keep(folder: &Path, facts: Facts) -> Result<()> {
    let path = folder.join("origin.json");
    let mut kept = match path.exists() {
        false => Facts::new(),
        true => polydraft_files::read(&path, polydraft_files::FileKind::CONFIG)
            .and_then(|bytes| Ok(serde_json::from_slice(&bytes)?))
            .with_context(|| format!("reading {}", path.display()))?,
    };
    for (name, got) in facts {
        let expected = kept.entry(&name).or_insert_with(|| got.clone());
        ensure!(
            *expected == got,
            "{}: its text was written with {name} {expected}, got {got}; another work folder \
             begins anew",
            folder.display()
        );
    }
    replace(&path, &serde_json::to_vec_pretty(&kept)?)
}

/// Writes a file that is there as a whole or not at all.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    polydraft_files::write_atomically(path, bytes)
        .with_context(|| format!("writing {}", path.display()))
}
