//! Temporary folder for inputs that are files. It belongs to the watching process, because a worker
//! that is killed cannot delete its files.

use std::path::Path;

use anyhow::{Context, Result};
use tempfile::TempDir;

const PREFIX: &str = "polydraft-mutate-";

/// Creates a folder that is deleted when this process ends. Also deletes the folders of processes
/// that have ended.
pub fn make() -> Result<TempDir> {
    // In memory if possible, because one file per input would wear out a disk.
    let offset = ["/dev/shm", "/tmp"].map(Path::new).into_iter().find(|offset| offset.is_dir());
    let offset = offset.map_or_else(std::env::temp_dir, Path::to_owned);
    remove_left(&offset);
    let prefix = format!("{PREFIX}{}-", std::process::id());
    tempfile::Builder::new().prefix(&prefix).tempdir_in(offset).context("cannot make a folder")
}

/// Deletes the folders of processes that no longer run, if the system lists processes.
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
