//! Disk cache of quantised self-drafts: searching for good scales takes longer than reading a file.
//! Least recently used files are evicted.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::description::{Description, LoadOptions};
use crate::model::TransformerModel;
use crate::self_draft_file::SelfDraftFile;

/// Minimum bytes of a self-draft in the user's cache folder: smaller ones are quantised quickly.
const MIN_BYTES: u64 = 16 << 20;
/// Maximum bytes of all cached self-drafts.
const MAX_TOTAL_BYTES: u64 = 20_000_000_000;

/// A cache folder for quantised self-drafts, of at most 20 GB.
///
/// ```no_run
/// use polydraft_models::{LoadOptions, Opened, Precision, SelfDraftCache};
///
/// let opened = Opened::new("models/big".as_ref())?;
/// let options = LoadOptions { self_draft: Some(Precision::Q5_1), ..LoadOptions::default() };
/// let cache = SelfDraftCache::in_user_folder();
/// let file = cache.and_then(|cache| cache.file_for(&opened.description, &options));
/// let loaded = opened.load_with(options, file.as_ref())?;
/// if let (Some(file), Some(draft)) = (&file, &loaded.self_draft) {
///     file.save_or_touch(draft, loaded.was_cached)?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct SelfDraftCache {
    folder: PathBuf,
    /// Minimum bytes of a self-draft to be cached.
    min_bytes: u64,
}

impl SelfDraftCache {
    /// A cache in `folder`, which is created when needed, for self-drafts of any size.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder, min_bytes: 0 }
    }

    /// A cache in the user's cache folder, if there is one, for self-drafts of 16 MiB or more.
    pub fn in_user_folder() -> Option<Self> {
        Some(Self {
            folder: polydraft_files::cache_dir()?.join("polydraft/copies"),
            min_bytes: MIN_BYTES,
        })
    }

    /// The cache file for the self-draft that `options` request; `None` if it is too small or too
    /// large for this cache, or as for [`SelfDraftFile::new`].
    pub fn file_for(&self, target: &Description, options: &LoadOptions) -> Option<SelfDraftFile> {
        let sizes = self.min_bytes..=MAX_TOTAL_BYTES;
        options.self_draft.filter(|kind| sizes.contains(&target.self_draft_bytes(*kind)))?;
        SelfDraftFile::new(&self.folder, target, options)
    }
}

impl SelfDraftFile {
    /// Saves a self-draft for the next start and evicts the least recently used files. If the
    /// self-draft was read from the cache, only updates the file's time of last use.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save_or_touch(&self, self_draft: &TransformerModel, was_cached: bool) -> io::Result<()> {
        let path = self.path();
        if was_cached {
            // On failure the file only seems older than it is.
            let _ = fs::File::options()
                .append(true)
                .open(path)
                .and_then(|f| f.set_modified(SystemTime::now()));
            return Ok(());
        }
        let written = self.write(self_draft);
        if let Some(folder) = path.parent() {
            evict(folder, MAX_TOTAL_BYTES);
        }
        written
    }
}

/// Removes the least recently used self-drafts until at most `max_bytes` bytes remain.
fn evict(folder: &Path, max_bytes: u64) {
    let files = fs::read_dir(folder).into_iter().flatten().flatten().filter_map(|entry| {
        let (metadata, path) = (entry.metadata().ok().filter(fs::Metadata::is_file)?, entry.path());
        let is_draft = path.extension().is_some_and(|end| end == SelfDraftFile::EXTENSION);
        is_draft.then_some((metadata.modified().ok()?, metadata.len(), path))
    });
    let mut files: Vec<_> = files.collect();
    files.sort();
    let mut bytes = 0;
    for (_, length, path) in files.into_iter().rev() {
        bytes += length;
        if bytes > max_bytes {
            // Another program may have removed it.
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn evicts_least_recently_used_files_first() {
        let folder = tempfile::tempdir().unwrap();
        for (age, (name, length)) in [
            ("old.polydraft", 10),
            ("older.polydraft", 10),
            ("new.polydraft", 30),
            ("newest.polydraft", 20),
        ]
        .into_iter()
        .enumerate()
        {
            let path = folder.path().join(name);
            fs::write(&path, vec![0; length]).unwrap();
            let time = SystemTime::UNIX_EPOCH
                + Duration::from_secs(if name == "older.polydraft" { 0 } else { 10 + age as u64 });
            fs::File::options().append(true).open(&path).unwrap().set_modified(time).unwrap();
        }
        fs::write(folder.path().join("x.safetensors"), "a model").unwrap();
        let left = |max_bytes| {
            evict(folder.path(), max_bytes);
            let files = fs::read_dir(folder.path())
                .unwrap()
                .map(|file| file.unwrap().file_name().into_string().unwrap());
            let mut files: Vec<_> = files.collect();
            files.sort();
            assert_eq!(files.pop().unwrap(), "x.safetensors");
            files.join(", ").replace(".polydraft", "")
        };
        assert_eq!(left(70), "new, newest, old, older");
        assert_eq!(left(69), "new, newest, old");
        assert_eq!(left(50), "new, newest");
        assert_eq!(left(0), "");
    }
}
