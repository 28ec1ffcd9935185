//! The hub's cache on this machine, as its own tools lay it out and share it.
//!
//! `models--org--name/blobs` has the contents, each under a name that the hub says; `snapshots` a
//! folder of links to them for each commit; `refs` the commits of branches and tags.

use std::env::var_os;
use std::fs::{self, File};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// What the cache has of one model.
#[derive(Debug)]
pub struct Repository {
    folder: PathBuf,
    locks: PathBuf,
}

/// A variable that is there and not empty.
fn variable(name: &str) -> Option<PathBuf> {
    var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Where the hub's tools keep all they have.
fn home() -> Option<PathBuf> {
    // On all systems the same, unlike those systems' own folders for caches.
    let usual = || Some(polydraft_files::home_dir()?.join(".cache"));
    let caches = || variable("XDG_CACHE_HOME").or_else(usual);
    variable("HF_HOME").or_else(|| Some(caches()?.join("huggingface")))
}

/// The token of `HF_TOKEN`, or the one that the hub's tools stored.
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
    /// Of `org/name`.
    ///
    /// # Errors
    /// A machine without a home folder.
    pub fn new(id: &str) -> Result<Self> {
        let named = ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"].iter().find_map(|n| variable(n));
        let cache = named.or_else(|| Some(home()?.join("hub"))).context(
            "there is no home folder to keep models in: say where by the variable HF_HOME",
        )?;
        let name = format!("models--{}", id.replace('/', "--"));
        Ok(Self { folder: cache.join(&name), locks: cache.join(".locks").join(name) })
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The commit that a branch, a tag or a commit was when it was last asked for.
    pub fn commit(&self, revision: &str) -> Option<String> {
        let kept = fs::read_to_string(self.folder.join("refs").join(within(revision).ok()?));
        let commit = kept.map_or_else(|_| revision.to_owned(), |kept| kept.trim().to_owned());
        (is_name(&commit) && self.snapshot(&commit).is_dir()).then_some(commit)
    }

    /// Keeps the commit of a branch or tag.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub fn keep_commit(&self, revision: &str, commit: &str) -> Result<()> {
        let file = self.folder.join("refs").join(within(revision)?);
        if revision == commit || fs::read_to_string(&file).is_ok_and(|kept| kept == commit) {
            return Ok(());
        }
        make_parent(&file)?;
        fs::write(&file, commit).with_context(|| format!("cannot write {}", file.display()))
    }

    /// The folder of a commit.
    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    /// The files of a commit that are here, by their paths in the repository.
    pub fn files(&self, commit: &str) -> Vec<String> {
        let root = self.snapshot(commit);
        let (mut folders, mut all) = (vec![root.clone()], Vec::new());
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                let path = entry.path();
                match fs::metadata(&path) {
                    Ok(meta) if meta.is_dir() => folders.push(path),
                    Ok(_) => all.extend(path.strip_prefix(&root).ok().and_then(as_text)),
                    // A link to what is gone.
                    Err(_) => {}
                }
            }
        }
        all.sort_unstable();
        all
    }

    /// The path of a file of a commit.
    ///
    /// # Errors
    /// A path that leads out of the folder.
    pub fn file(&self, commit: &str, path: &str) -> Result<PathBuf> {
        Ok(self.snapshot(commit).join(within(path)?))
    }

    /// Where contents are, and where they are written as they come.
    ///
    /// # Errors
    /// A name that is no file's; a folder that cannot be written.
    pub fn blob(&self, name: &str) -> Result<(PathBuf, PathBuf)> {
        ensure!(is_name(name), "the hub names contents {name:?}, which is no name of a file");
        let blob = self.folder.join("blobs").join(name);
        make_parent(&blob)?;
        let coming = blob.with_file_name(format!("{name}.incomplete"));
        Ok((blob, coming))
    }

    /// Waits until no other program writes these contents, and keeps others waiting until the file
    /// is dropped; `waits` is called if it takes longer.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub fn lock(&self, name: &str, waits: impl FnOnce()) -> Result<File> {
        let path = self.locks.join(format!("{name}.lock"));
        make_parent(&path)?;
        let error = || format!("cannot lock {}", path.display());
        let file = File::options().create(true).append(true).open(&path).with_context(error)?;
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(fs::TryLockError::WouldBlock) => waits(),
            // A file system that has no locks.
            Err(fs::TryLockError::Error(_)) => return Ok(file),
        }
        file.lock().with_context(error)?;
        Ok(file)
    }

    /// Shows contents as a file of a commit.
    ///
    /// # Errors
    /// A folder that cannot be written; a path that leads out of it.
    pub fn show(&self, blob: &Path, commit: &str, path: &str) -> Result<()> {
        let shown = self.file(commit, path)?;
        if shown.exists() {
            return Ok(());
        }
        make_parent(&shown)?;
        // A link whose contents are gone.
        let _ = fs::remove_file(&shown);
        let up = "../".repeat(Path::new(path).components().count() + 1);
        let name = blob.file_name().unwrap_or_default();
        let linked = link(&Path::new(&up).join("blobs").join(name), &shown);
        // Where links are not allowed, the contents themselves.
        let done = linked.or_else(|_| fs::hard_link(blob, &shown));
        done.or_else(|_| fs::rename(blob, &shown))
            .with_context(|| format!("cannot write {}", shown.display()))
    }
}

#[cfg(unix)]
fn link(to: &Path, at: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(to, at)
}

#[cfg(windows)]
fn link(to: &Path, at: &Path) -> std::io::Result<()> {
    std::os::windows::fs::symlink_file(to, at)
}

#[cfg(not(any(unix, windows)))]
fn link(_: &Path, _: &Path) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

fn make_parent(file: &Path) -> Result<()> {
    let folder = file.parent().unwrap_or(file);
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))
}

/// A path of the hub's with `/` between its words, which must stay where it is put.
fn within(path: &str) -> Result<PathBuf> {
    let inside = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
    ensure!(
        inside && !path.is_empty(),
        "the hub has a file {path:?}, which is no path in a folder"
    );
    Ok(path.into())
}

/// Whether a hash, or something like it, can name a file.
pub fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

fn as_text(path: &Path) -> Option<String> {
    let words: Option<Vec<_>> = path.iter().map(|word| word.to_str()).collect();
    words.map(|words| words.join("/"))
}

#[cfg(test)]
mod tests {
    use super::{is_name, within};

    #[test]
    fn no_path_leads_out() {
        for path in ["a", "a/b.gguf", "refs/pr/3", "a.b/c"] {
            assert!(within(path).is_ok(), "{path}");
        }
        for path in ["", "..", "../a", "a/../../b", "/etc/passwd"] {
            assert!(within(path).is_err(), "{path}");
        }
        assert!(is_name("0123abc-1") && !is_name("") && !is_name("../x") && !is_name("a/b"));
    }
}
