//! The cache of quantised self-drafts on disk, from one start to the next: searching for good
//! scales takes longer than reading a file. The ones used last stay.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::description::{Description, LoadOptions};
use crate::model::TransformerModel;
use crate::self_draft_file::SelfDraftFile;

/// Self-drafts of fewer bytes are made in no time: not cached unless a folder is named.
const WORTH_KEEPING: u64 = 16 << 20;
/// Bytes of all cached self-drafts, at most.
const KEPT: u64 = 20_000_000_000;

/// The folder that quantised self-drafts are cached in, of 20 GB together.
///
/// ```no_run
/// use polydraft_models::{LoadOptions, Opened, Precision, SelfDraftCache};
///
/// let opened = Opened::new("models/big".as_ref())?;
/// let options = LoadOptions { self_draft: Some(Precision::Q5_1), ..LoadOptions::default() };
/// let cache = SelfDraftCache::in_user_folder();
/// let file = cache.and_then(|cache| cache.place(&opened.description, &options));
/// let loaded = opened.load_with(options, file.as_ref())?;
/// if let (Some(file), Some(draft)) = (&file, &loaded.self_draft) {
///     file.keep(draft, loaded.was_cached)?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct SelfDraftCache {
    folder: PathBuf,
    /// Bytes of a self-draft that is cached, at least.
    least: u64,
}

impl SelfDraftCache {
    /// In this folder, which need not be there yet.
    pub fn at(folder: PathBuf) -> Self {
        Self { folder, least: 0 }
    }

    /// In the user's cache folder, if there is one: self-drafts that take some time to make.
    pub fn in_user_folder() -> Option<Self> {
        Some(Self {
            folder: polydraft_files::cache_dir()?.join("polydraft/copies"),
            least: WORTH_KEEPING,
        })
    }

    /// The file of the self-draft that these options ask for, if it is worth one.
    pub fn place(&self, target: &Description, options: &LoadOptions) -> Option<SelfDraftFile> {
        options
            .self_draft
            .filter(|copy| (self.least..=KEPT).contains(&target.self_draft_bytes(*copy)))?;
        SelfDraftFile::new(&self.folder, target, options)
    }
}

impl SelfDraftFile {
    /// Caches a self-draft for the next start, and removes those used longest ago where there are
    /// too many; of one that was read from the cache, notes that it was used.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn keep(&self, copy: &TransformerModel, was_cached: bool) -> io::Result<()> {
        let path = self.path();
        if was_cached {
            // Should that fail, it counts as older than it is.
            let _ = fs::File::options()
                .append(true)
                .open(path)
                .and_then(|f| f.set_modified(SystemTime::now()));
            return Ok(());
        }
        let written = self.write(copy);
        if let Some(folder) = path.parent() {
            make_room(folder, KEPT);
        }
        written
    }
}

/// Removes self-drafts that were used longest ago until no more than so many bytes of them are
/// left.
fn make_room(folder: &Path, most: u64) {
    let files = fs::read_dir(folder).into_iter().flatten().flatten().filter_map(|entry| {
        let (metadata, path) = (entry.metadata().ok().filter(fs::Metadata::is_file)?, entry.path());
        let is_copy = path.extension().is_some_and(|end| end == SelfDraftFile::EXTENSION);
        is_copy.then_some((metadata.modified().ok()?, metadata.len(), path))
    });
    let mut files: Vec<_> = files.collect();
    files.sort();
    let mut bytes = 0;
    for (_, length, path) in files.into_iter().rev() {
        bytes += length;
        if bytes > most {
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
    fn the_files_used_last_stay() {
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
        let left = |most| {
            make_room(folder.path(), most);
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
