//! The hub's cache on this machine, in the layout of its own tools, which share it.
//!
//! `models--org--name/blobs` contains the files, named by the hub's ETags; `snapshots` a folder of
//! links to them per commit; `refs` the commits of branches and tags.

use std::env::var_os;
use std::fs::{self, File};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// Cache of one repository.
#[derive(Debug)]
pub struct Repository {
    folder: PathBuf,
    locks: PathBuf,
}

/// Returns an environment variable that is set and not empty.
fn variable(name: &str) -> Option<PathBuf> {
    var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Returns the folder of the hub's tools.
fn home() -> Option<PathBuf> {
    // The same on all systems, unlike the systems' own cache folders.
    let default = || Some(polydraft_files::home_dir()?.join(".cache"));
    let caches = || variable("XDG_CACHE_HOME").or_else(default);
    variable("HF_HOME").or_else(|| Some(caches()?.join("huggingface")))
}

/// Returns the token in `HF_TOKEN`, or the one stored by the hub's tools.
pub fn token() -> Option<String> {
    let stored = || {
        let file = variable("HF_TOKEN_PATH").or_else(|| Some(home()?.join("token")))?;
        fs::read_to_string(file).ok()
    };
    let given = ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"].iter().find_map(|name| variable(name));
    let token = given.map(|token| token.to_string_lossy().into_owned()).or_else(stored)?;
    Some(token.trim().to_owned()).filter(|token| !token.is_empty())
}

impl Repository {
    /// Creates the cache of the repository `org/name`.
    ///
    /// # Errors
    /// A machine without a home folder.
    pub fn new(id: &str) -> Result<Self> {
        let named = ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"].iter().find_map(|n| variable(n));
        let cache = named
            .or_else(|| Some(home()?.join("hub")))
            .context("no home folder to store models in: set the environment variable HF_HOME")?;
        let name = format!("models--{}", id.replace('/', "--"));
        Ok(Self { folder: cache.join(&name), locks: cache.join(".locks").join(name) })
    }

    /// Returns the cache folder of the repository.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the commit of a branch, tag or commit when it was last queried.
    pub fn commit(&self, revision: &str) -> Option<String> {
        let stored =
            fs::read_to_string(self.folder.join("refs").join(checked_path(revision).ok()?));
        let commit = stored.map_or_else(|_| revision.to_owned(), |stored| stored.trim().to_owned());
        (is_name(&commit) && self.snapshot(&commit).is_dir()).then_some(commit)
    }

    /// Stores the commit of a branch or tag.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub fn store_commit(&self, revision: &str, commit: &str) -> Result<()> {
        let file = self.folder.join("refs").join(checked_path(revision)?);
        if revision == commit || fs::read_to_string(&file).is_ok_and(|stored| stored == commit) {
            return Ok(());
        }
        make_parent(&file)?;
        fs::write(&file, commit).with_context(|| format!("cannot write {}", file.display()))
    }

    /// Returns the folder of a commit.
    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    /// Returns the downloaded files of a commit, by their paths in the repository.
    pub fn files(&self, commit: &str) -> Vec<String> {
        let root = self.snapshot(commit);
        let (mut folders, mut all) = (vec![root.clone()], Vec::new());
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                let path = entry.path();
                match fs::metadata(&path) {
                    Ok(meta) if meta.is_dir() => folders.push(path),
                    Ok(_) => all.extend(path.strip_prefix(&root).ok().and_then(slash_path)),
                    // A dangling link.
                    Err(_) => {}
                }
            }
        }
        all.sort_unstable();
        all
    }

    /// Returns the path of a file of a commit.
    ///
    /// # Errors
    /// A path outside the folder.
    pub fn file(&self, commit: &str, path: &str) -> Result<PathBuf> {
        Ok(self.snapshot(commit).join(checked_path(path)?))
    }

    /// Returns the path of a blob, and the path of its incomplete download.
    ///
    /// # Errors
    /// An invalid file name; a folder that cannot be written.
    pub fn blob(&self, name: &str) -> Result<(PathBuf, PathBuf)> {
        ensure!(is_name(name), "the hub returned an invalid blob name {name:?}");
        let blob = self.folder.join("blobs").join(name);
        make_parent(&blob)?;
        let incomplete = blob.with_file_name(format!("{name}.incomplete"));
        Ok((blob, incomplete))
    }

    /// Locks a blob against other programs until the returned file is dropped. Calls `on_wait`
    /// before waiting for another program's lock.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub fn lock(&self, name: &str, on_wait: impl FnOnce()) -> Result<File> {
        let path = self.locks.join(format!("{name}.lock"));
        make_parent(&path)?;
        let error = || format!("cannot lock {}", path.display());
        let file = File::options().create(true).append(true).open(&path).with_context(error)?;
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(fs::TryLockError::WouldBlock) => on_wait(),
            // A file system without locks.
            Err(fs::TryLockError::Error(_)) => return Ok(file),
        }
        file.lock().with_context(error)?;
        Ok(file)
    }

    /// Links a blob as a file of a commit.
    ///
    /// # Errors
    /// A folder that cannot be written; a path outside of it.
    pub fn link_file(&self, blob: &Path, commit: &str, path: &str) -> Result<()> {
        let target = self.file(commit, path)?;
        if target.exists() {
            return Ok(());
        }
        make_parent(&target)?;
        // Removes a dangling link.
        let _ = fs::remove_file(&target);
        let up = "../".repeat(Path::new(path).components().count() + 1);
        let name = blob.file_name().unwrap_or_default();
        let linked = symlink(&Path::new(&up).join("blobs").join(name), &target);
        // If links are not allowed, the blob itself is moved.
        let done = linked.or_else(|_| fs::hard_link(blob, &target));
        done.or_else(|_| fs::rename(blob, &target))
            .with_context(|| format!("cannot write {}", target.display()))
    }
}

#[cfg(unix)]
fn symlink(to: &Path, at: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(to, at)
}

#[cfg(windows)]
fn symlink(to: &Path, at: &Path) -> std::io::Result<()> {
    std::os::windows::fs::symlink_file(to, at)
}

#[cfg(not(any(unix, windows)))]
fn symlink(_: &Path, _: &Path) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

fn make_parent(file: &Path) -> Result<()> {
    let folder = file.parent().unwrap_or(file);
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))
}

/// Checks that a path of the hub, with `/` as separator, stays inside its folder.
fn checked_path(path: &str) -> Result<PathBuf> {
    let inside = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
    ensure!(inside && !path.is_empty(), "the hub listed an invalid path {path:?}");
    Ok(path.into())
}

/// Returns whether a hash or similar string is a valid file name.
pub fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

fn slash_path(path: &Path) -> Option<String> {
    let words: Option<Vec<_>> = path.iter().map(|word| word.to_str()).collect();
    words.map(|words| words.join("/"))
}

#[cfg(test)]
mod tests {
    use super::{checked_path, is_name};

    #[test]
    fn rejects_paths_outside_the_folder() {
        for path in ["a", "a/b.gguf", "refs/pr/3", "a.b/c"] {
            assert!(checked_path(path).is_ok(), "{path}");
        }
        for path in ["", "..", "../a", "a/../../b", "/etc/passwd"] {
            assert!(checked_path(path).is_err(), "{path}");
        }
        assert!(is_name("0123abc-1") && !is_name("") && !is_name("../x") && !is_name("a/b"));
    }
}
