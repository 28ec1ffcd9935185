//! Where inputs that are files lie: in a folder of the process that watches, for those that it ends
//! tidy nothing up.

use std::path::Path;

use anyhow::{Context, Result};
use tempfile::TempDir;

const PREFIX: &str = "polydraft-mutate-";

/// A folder that goes with the process; those of processes that ended go now.
pub fn make() -> Result<TempDir> {
    // Memory, where there is such a place: a file an input is much for a disk.
    let offset = ["/dev/shm", "/tmp"].map(Path::new).into_iter().find(|offset| offset.is_dir());
    let offset = offset.map_or_else(std::env::temp_dir, Path::to_owned);
    remove_left(&offset);
    let prefix = format!("{PREFIX}{}-", std::process::id());
    tempfile::Builder::new().prefix(&prefix).tempdir_in(offset).context("cannot make a folder")
}

/// Removes folders whose process is no more, where the system tells.
fn remove_left(offset: &Path) {
    if !Path::new("/proc/self").exists() {
        return;
    }
    for entry in std::fs::read_dir(offset).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('-').next());
        let process = process.and_then(|process| process.parse::<u32>().ok());
        if process.is_some_and(|process| !Path::new("/proc").join(process.to_string()).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}
