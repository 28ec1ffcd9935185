//! Where copies of targets are kept from one start to the next: finding good scales takes longer
//! than reading them. The ones used last stay.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::copy_file::CopyFile;
use crate::description::{Description, LoadOptions};
use crate::model::TransformerModel;

/// Copies of fewer bytes are made in no time: not kept where nobody named a folder.
const WORTH_KEEPING: u64 = 16 << 20;
/// Bytes of all copies that are kept, at most.
const KEPT: u64 = 20_000_000_000;

/// The folder that copies are kept in, of 20 GB together.
///
/// ```no_run
/// use polydraft_models::{Copies, LoadOptions, Opened, Precision};
///
/// let opened = Opened::new("models/big".as_ref())?;
/// let options = LoadOptions { copy: Some(Precision::Q5_1), ..LoadOptions::default() };
/// let file = Copies::of_user().and_then(|copies| copies.place(&opened.description, &options));
/// let loaded = opened.load_with(options, file.as_ref())?;
/// if let (Some(file), Some(copy)) = (&file, &loaded.copy) {
///     file.keep(copy, loaded.was_kept)?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Copies {
    folder: PathBuf,
    /// Bytes of a copy that is kept.
    least: u64,
}

impl Copies {
    /// In this folder, which need not be there yet.
    pub fn at(folder: PathBuf) -> Self {
        Self { folder, least: 0 }
    }

    /// In the user's cache folder, if there is one: copies that take some time to make.
    pub fn of_user() -> Option<Self> {
        Some(Self { folder: dirs::cache_dir()?.join("polydraft/copies"), least: WORTH_KEEPING })
    }

    /// The place of the copy that these options ask for, if it is worth one.
    pub fn place(&self, target: &Description, options: &LoadOptions) -> Option<CopyFile> {
        options.copy.filter(|copy| (self.least..=KEPT).contains(&target.copy_bytes(*copy)))?;
        CopyFile::new(&self.folder, target, options)
    }
}

impl CopyFile {
    /// Keeps a copy for the next start, and removes those used longest ago where there are too
    /// many; of one that comes from there, that it was used.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn keep(&self, copy: &TransformerModel, was_kept: bool) -> io::Result<()> {
        let path = self.path();
        if was_kept {
            // Should that fail, it is thought to be older than it is.
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

/// Removes copies that were used longest ago until no more than so many bytes of them are left.
fn make_room(folder: &Path, most: u64) {
    let files = fs::read_dir(folder).into_iter().flatten().flatten().filter_map(|entry| {
        let (metadata, path) = (entry.metadata().ok().filter(fs::Metadata::is_file)?, entry.path());
        let is_copy = path.extension().is_some_and(|end| end == CopyFile::EXTENSION);
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
