//! Drafts that lie beside a model, found without being named.
//!
//! Problem: models are published with heads and assistants that draft for them, in the same folder
//! or repository or in one beside it, and nobody names them.
//! Method: 1. Candidates are smaller GGUF files beside a file, folders and GGUF files within a
//! folder, and folders beside it, also in the hub's cache, whose name begins with the model's name.
//! 2. What a candidate is, its metadata and tensors tell. 3. A candidate drafts only if its widths,
//! its vocabulary and the layers that it reads fit the target. 4. Of several, the one with the
//! highest gain in earlier outputs is chosen, and before that, or with a seed, by kind: what drafts
//! several tokens in a pass first, then the smallest.
//! Deviations: nothing is downloaded. Models of another kind than heads, such as a small model of
//! the same vocabulary, are not candidates: whether they pay depends on their size.

use std::path::{Path, PathBuf};

use polydraft_models::{Description, HeadDescription, HeadKind, head_kind, is_gguf};

use crate::draft::{Draft, DraftFiles};
use crate::listen::Listener;
use crate::model_files::weight_bytes;

/// Maximum number of files and folders whose headers are read.
const MAX_CANDIDATES: usize = 64;

/// Expected speed-up over plain decoding by a draft that was made for the target, before it was
/// used; of heads that draft several tokens in a pass a little more.
pub(crate) const EXPECTED_GAIN: f64 = 1.5;
const BLOCK_GAIN: f64 = 1.6;

/// A draft that fits.
pub(crate) struct Sidecar {
    /// The draft.
    pub draft: Draft,
    /// Kind, for messages.
    pub kind: &'static str,
    /// Expected speed-up over plain decoding.
    pub gain: f64,
    parameters: u64,
}

/// Returns the best draft beside a target at `path`; `None` if there is none. `gain` returns the
/// gain of a draft in earlier outputs, or what is expected.
pub(crate) fn find(
    path: &Path,
    target: &Description,
    gain: impl Fn(&Draft, f64) -> f64,
    listener: &dyn Listener,
) -> Option<Sidecar> {
    let mut all = Vec::new();
    for candidate in candidates(path) {
        let Some(kind) = head_kind(&candidate) else { continue };
        let vocabulary = target.language.vocabulary.size();
        match HeadDescription::read(&candidate, &target.config, vocabulary) {
            Ok(HeadDescription { kind: name, parameters, .. }) => {
                let (draft, expected) = named(candidate, kind);
                let gain = gain(&draft, expected);
                all.push(Sidecar { draft, kind: name, gain, parameters });
            }
            Err(problem) => {
                let shown = candidate.display();
                let detail =
                    format!("{shown} is beside the model, but drafts for another: {problem}");
                listener.detail(&detail.into());
            }
        }
    }
    all.into_iter().min_by(|a, b| b.gain.total_cmp(&a.gain).then(a.parameters.cmp(&b.parameters)))
}

/// The draft of a file or folder, and its expected gain.
fn named(path: PathBuf, kind: HeadKind) -> (Draft, f64) {
    let files = DraftFiles { name: Some(path.display().to_string()), path };
    match kind {
        HeadKind::Block => (Draft::BlockHead(files), BLOCK_GAIN),
        HeadKind::Assistant => (Draft::Assistant(files), EXPECTED_GAIN),
        HeadKind::Autoregressive => (Draft::Head(files), EXPECTED_GAIN),
    }
}

/// Files and folders that may be drafts of the model at `path`.
fn candidates(path: &Path) -> Vec<PathBuf> {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let Some(above) = path.parent() else { return Vec::new() };
    let mut all = match is_gguf(&path) {
        true => {
            let within = entries(above);
            let folders = within.iter().filter(|entry| is_draft(entry) && entry.is_dir());
            let deeper: Vec<PathBuf> = folders.flat_map(|folder| entries(folder)).collect();
            // A head's own files may lie there, too.
            [vec![above.to_owned()], within, deeper, beside(above)].concat()
        }
        false => [entries(&path), beside(&path)].concat(),
    };
    let most = weight_bytes(&path);
    all.retain(|candidate| {
        *candidate != path
            && (is_gguf(candidate) || candidate.join("config.json").exists())
            && weight_bytes(candidate) < most
    });
    // Where many models lie together, names tell which are read first.
    all.sort_by_key(|candidate| !is_draft(candidate));
    all.truncate(MAX_CANDIDATES);
    all
}

/// Folders beside a model's folder whose names begin with its name, also in the hub's cache, and
/// GGUF files in them.
fn beside(folder: &Path) -> Vec<PathBuf> {
    let name = folder.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let mut all = folder.parent().map(entries).unwrap_or_default();
    all.retain(|other| begins_with(other, &name));
    all.extend(in_hub_cache(folder));
    let files = all.iter().flat_map(|other| entries(other)).filter(|file| is_gguf(file));
    let files: Vec<PathBuf> = files.collect();
    [all, files].concat()
}

/// Entries of a folder, by name.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut all: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    all.sort();
    all
}

/// Whether a name says that it is a draft or contains some, as in `MTP/`.
fn is_draft(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let words = ["mtp", "draft", "dflash", "dspark", "eagle", "assistant", "specul"];
    words.iter().any(|word| name.contains(word))
}

/// Whether a name is that of the model, a separator, and more: `x-4b-assistant` of `x-4b`.
fn begins_with(other: &Path, name: &str) -> bool {
    // Repositories of GGUF files are named after those of the model.
    let name = name.strip_suffix("-gguf").unwrap_or(name);
    let other = other.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let rest = other.strip_prefix(name);
    !name.is_empty() && rest.is_some_and(|rest| rest.starts_with(['-', '_', '.']))
}

/// Downloaded repositories of the hub whose name begins with that of the repository of a snapshot,
/// of whatever owner.
fn in_hub_cache(snapshot: &Path) -> Vec<PathBuf> {
    let repository = snapshot.parent().filter(|above| above.ends_with("snapshots"));
    let Some(repository) = repository.and_then(Path::parent) else { return Vec::new() };
    let name = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        name.strip_prefix("models--").and_then(|name| Some(name.split_once("--")?.1.to_owned()))
    };
    let (Some(own), Some(cache)) = (name(repository), repository.parent()) else {
        return Vec::new();
    };
    let beside = entries(cache)
        .into_iter()
        .filter(|other| name(other).is_some_and(|other| begins_with(Path::new(&other), &own)));
    beside.flat_map(|other| entries(&other.join("snapshots"))).collect()
}

#[cfg(test)]
mod tests;
