//! What all that lies in a work folder was made from: text of another target, or states of other
//! layers, fit in size alone.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use polydraft_models::Config;
use serde_json::{Map, Value};

use crate::corpus::hash;

/// Facts by the names of the options that they come from.
pub type ModelInfo = Map<String, Value>;

/// What tells a target from others, wherever it lies: its shape, and the weights of its last norm,
/// which every training moves.
pub fn fingerprint(config: &Config, norm: Option<&[f32]>) -> String {
    let Config { vocabulary, hidden, layers, .. } = config;
    let weights: Vec<u8> =
        norm.unwrap_or_default().iter().flat_map(|weight| weight.to_le_bytes()).collect();
    let hash = hash(&weights);
    format!("{layers} layers of {hidden} numbers, {vocabulary} tokens, weights {hash:016x}")
}

/// Keeps the facts in a folder.
///
/// # Errors
/// A fact that is there already and says something else; which, and both.
pub fn keep(folder: &Path, info: ModelInfo) -> Result<()> {
    let path = folder.join("origin.json");
    let mut kept = match path.exists() {
        false => ModelInfo::new(),
        true => polydraft_files::read(&path, polydraft_files::Kind::SETTINGS)
            .and_then(|bytes| Ok(serde_json::from_slice(&bytes)?))
            .with_context(|| format!("reading {}", path.display()))?,
    };
    for (name, got) in info {
        let expected = kept.entry(&name).or_insert_with(|| got.clone());
        ensure!(
            *expected == got,
            "{}: expected {name} {expected}, from which its text and its head were made, got \
             {got}; another --work \
             begins anew",
            folder.display()
        );
    }
    let partial = folder.join("origin.partial");
    fs::write(&partial, serde_json::to_vec_pretty(&kept)?)?;
    Ok(fs::rename(partial, path)?)
}
