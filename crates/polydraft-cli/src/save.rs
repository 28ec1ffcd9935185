//! Result files: written completely or not at all, with a check before hours of measurement.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::NamedTempFile;

use crate::interrupts::Temporary;

/// File to be written.
#[derive(Debug)]
pub struct Save {
    path: PathBuf,
    target: Target,
}

#[derive(Debug)]
enum Target {
    /// Temporary file in the same folder, which replaces the file when it is complete.
    Replacement(NamedTempFile, Temporary),
    /// Pipe or device, which cannot be replaced.
    Direct(File),
}

impl Save {
    /// Checks that the file can be written. An existing file is unchanged until
    /// [`finish`](Self::finish).
    ///
    /// Fails if the folder is missing or cannot be written to.
    pub fn prepare(path: &Path) -> Result<Self> {
        let open = || -> std::io::Result<Self> {
            if path.metadata().is_ok_and(|existing| !existing.is_file()) {
                let file = OpenOptions::new().write(true).open(path)?;
                return Ok(Self { path: path.to_owned(), target: Target::Direct(file) });
            }
            // Keeps a link.
            let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = folder.unwrap_or(Path::new("."));
            // Reports a missing folder by its own name, not by the name of the temporary file.
            folder.metadata()?;
            let mut builder = tempfile::Builder::new();
            builder.prefix(".polydraft-");
            #[cfg(unix)]
            builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
            let (file, temporary) =
                Temporary::create(|| builder.tempfile_in(folder), NamedTempFile::path)?;
            Ok(Self { path, target: Target::Replacement(file, temporary) })
        };
        open().with_context(|| format!("cannot write {}", path.display()))
    }

    /// Writes the file.
    ///
    /// # Errors
    /// Fails on a full disk, for instance; the existing file then remains.
    pub fn finish(self, contents: &[u8]) -> Result<()> {
        let Self { path, target } = self;
        let write = || -> std::io::Result<()> {
            match target {
                Target::Direct(mut file) => file.write_all(contents),
                Target::Replacement(mut file, _temporary) => {
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
    fn file_is_complete_or_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        drop(Save::prepare(&path).unwrap());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "temporary file remains");
        Save::prepare(&path).unwrap().finish(b"one").unwrap();
        let save = Save::prepare(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"one");
        save.finish(b"two").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        for path in ["/proc/nowhere", "/no/such/folder/file"] {
            let error = format!("{:#}", Save::prepare(Path::new(path)).unwrap_err());
            assert!(error.contains(path), "{error}");
        }
        let error = format!("{:#}", Save::prepare(Path::new("/no/such/folder/file")).unwrap_err());
        assert!(!error.contains(".polydraft-"), "{error}");
    }

    #[test]
    #[cfg(unix)]
    fn keeps_links_and_devices() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("file"), folder.path().join("link"));
        std::fs::write(&path, "one").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        Save::prepare(&link).unwrap().finish(b"two").unwrap();
        assert!(link.is_symlink());
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        Save::prepare(Path::new("/dev/null")).unwrap().finish(b"x").unwrap();
        assert!(!Path::new("/dev/null").metadata().unwrap().is_file());
        #[cfg(target_os = "linux")]
        assert!(Save::prepare(Path::new("/dev/full")).unwrap().finish(b"x").is_err());
    }
}
