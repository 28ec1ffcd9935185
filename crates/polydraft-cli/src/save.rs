//! Results as files: whole or not at all, and seen to be possible before hours of measuring.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::NamedTempFile;

use crate::interrupts::Temporary;

/// A file that is to be written.
#[derive(Debug)]
pub struct Save {
    path: PathBuf,
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// Beside the file, whose place it takes when it is complete.
    Beside(NamedTempFile, Temporary),
    /// A pipe or a device, which cannot be replaced.
    There(File),
}

impl Save {
    /// Sees that there is a place for the file. One that is there stays as it is until
    /// [`finish`](Self::finish).
    ///
    /// # Errors
    /// A folder that is not there or cannot be written to.
    pub fn begin(path: &Path) -> Result<Self> {
        let open = || -> std::io::Result<Self> {
            if path.metadata().is_ok_and(|there| !there.is_file()) {
                let file = OpenOptions::new().write(true).open(path)?;
                return Ok(Self { path: path.to_owned(), place: Place::There(file) });
            }
            // A link stays one.
            let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = folder.unwrap_or(Path::new("."));
            // The file beside has a name that means nothing to anybody.
            folder.metadata()?;
            let mut builder = tempfile::Builder::new();
            builder.prefix(".polydraft-");
            #[cfg(unix)]
            builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
            let (file, temporary) =
                Temporary::made(|| builder.tempfile_in(folder), NamedTempFile::path)?;
            Ok(Self { path, place: Place::Beside(file, temporary) })
        };
        open().with_context(|| format!("cannot write {}", path.display()))
    }

    /// Writes the file.
    ///
    /// # Errors
    /// A full disk, for instance; then what was there before still is.
    pub fn finish(self, contents: &[u8]) -> Result<()> {
        let Self { path, place } = self;
        let write = || -> std::io::Result<()> {
            match place {
                Place::There(mut file) => file.write_all(contents),
                Place::Beside(mut file, _temporary) => {
                    file.write_all(contents)?;
                    file.as_file().sync_all()?;
                    file.persist(&path)?;
                    Ok(())
                }
            }
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_whole_or_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        drop(Save::begin(&path).unwrap());
        assert_eq!(
            std::fs::read_dir(folder.path()).unwrap().count(),
            0,
            "nothing is left of an attempt"
        );
        Save::begin(&path).unwrap().finish(b"one").unwrap();
        let save = Save::begin(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"one");
        save.finish(b"two").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        for nowhere in ["/proc/nowhere", "/no/such/folder/file"] {
            let error = format!("{:#}", Save::begin(Path::new(nowhere)).unwrap_err());
            assert!(error.contains(nowhere), "{error}");
        }
        let error = format!("{:#}", Save::begin(Path::new("/no/such/folder/file")).unwrap_err());
        assert!(!error.contains(".polydraft-"), "{error}");
    }

    #[test]
    #[cfg(unix)]
    fn links_and_devices_stay_what_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("file"), folder.path().join("link"));
        std::fs::write(&path, "one").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        Save::begin(&link).unwrap().finish(b"two").unwrap();
        assert!(link.is_symlink());
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        Save::begin(Path::new("/dev/null")).unwrap().finish(b"x").unwrap();
        assert!(!Path::new("/dev/null").metadata().unwrap().is_file());
        #[cfg(target_os = "linux")]
        assert!(Save::begin(Path::new("/dev/full")).unwrap().finish(b"x").is_err());
    }
}
