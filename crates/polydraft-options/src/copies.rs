//! Copies of a target's own weights, kept from one start to the next: finding good scales takes longer than reading them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use polydraft_candle::{CandleModel, CopyFile, Description, LoadOptions};

use crate::output::note;

/// Copies of fewer bytes are made in no time: not kept where nobody asked for it.
const WORTH_KEEPING: u64 = 16 << 20;
/// Bytes of all copies that are kept, at most.
const KEPT: u64 = 20_000_000_000;

/// The folder that copies are kept in.
#[derive(Debug, Clone)]
pub struct Copies {
    folder: PathBuf,
    /// Bytes of a copy that is kept.
    least: u64,
}

impl Copies {
    /// The folder that was named, which may be `none`, or else the user's, if there is one.
    pub fn of(named: Option<&Path>) -> Option<Self> {
        match named {
            Some(folder) if folder == "none" => None,
            Some(folder) => Some(Self { folder: folder.to_owned(), least: 0 }),
            None => {
                let folder = dirs::cache_dir()?.join("polydraft/copies");
                Some(Self { folder, least: WORTH_KEEPING })
            }
        }
    }

    /// The place of the copy that these options ask for, if it is worth one.
    pub fn place(&self, target: &Description, options: &LoadOptions) -> Option<CopyFile> {
        options.copy.filter(|copy| (self.least..=KEPT).contains(&target.copy_bytes(*copy)))?;
        CopyFile::new(&self.folder, target, options)
    }
}

/// Keeps a copy for the next start; of one that comes from there, that it was used. The ones used last stay.
pub fn keep(file: &CopyFile, copy: &CandleModel, was_kept: bool) {
    let path = file.path();
    if was_kept {
        // Should that fail, it is thought to be older than it is.
        let _ = fs::File::options().append(true).open(path).and_then(|f| f.set_modified(SystemTime::now()));
        return;
    }
    match file.write(copy) {
        Ok(()) => note(format_args!("note: kept for the next start: {}", path.display())),
        Err(problem) => note(format_args!(
            "note: the copy is not kept for the next start: cannot write {}: {problem}; see --copies",
            path.display()
        )),
    }
    if let Some(folder) = path.parent() {
        make_room(folder, KEPT);
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
        for (age, (name, length)) in
            [("old.polydraft", 10), ("older.polydraft", 10), ("new.polydraft", 30), ("newest.polydraft", 20)]
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
