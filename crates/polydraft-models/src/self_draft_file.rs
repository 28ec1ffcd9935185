//! A quantised self-draft in a file, so that the next start need not search for its scales again.
//!
//! Format: safetensors with each matrix as in memory, as a tensor of bytes. The metadata has the
//! source (model files, options, program version) and a checksum of each matrix. A file that does
//! not match is ignored and replaced. If a wrong file passed, drafts would be worse, and the output
//! would still have the target's distribution.

use std::collections::HashMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use safetensors::tensor::{Dtype, TensorView};

use crate::description::{Description, LoadOptions};
use crate::error::Result;
use crate::model::TransformerModel;
use crate::self_draft_reader::{SOURCE, SelfDraftReader, sum};

/// Version of the layout of matrices in memory and of their rounding: increment on a change.
const LAYOUT: u32 = 1;

/// Cache file of a quantised self-draft, with the source that it must have been made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelfDraftFile {
    path: PathBuf,
    source: String,
}

impl SelfDraftFile {
    /// File extension, also of the temporary file during a write.
    pub const EXTENSION: &str = "polydraft";

    /// The cache file in `folder` for the self-draft that `options` request. `None` if they request
    /// none, if its type is made as fast as it is read, or if the model's files cannot be
    /// identified.
    pub fn new(folder: &Path, model: &Description, options: &LoadOptions) -> Option<Self> {
        let kind = options.self_draft.filter(|kind| kind.searches_scales())?;
        let path = model.directory.canonicalize().ok()?;
        let key = format!("{kind} of {} in {}", path.display(), options.precision);
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let name = format!("{stem}-{kind}-{:016x}.{}", hasher.finish(), Self::EXTENSION);
        let mut source = format!("{}, layout {LAYOUT}: {key}", env!("CARGO_PKG_VERSION"));
        for file in &model.files {
            let metadata = fs::metadata(file).ok()?;
            let changed = metadata.modified().ok()?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
            let name = file.file_name()?.to_string_lossy();
            source += &format!("; {name} of {} bytes at {} ns", metadata.len(), changed.as_nanos());
        }
        Some(Self { path: folder.join(name), source })
    }

    /// Path of the file, which need not exist.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a self-draft, atomically replacing an older file.
    ///
    /// # Errors
    /// Failures of the file system.
    pub fn write(&self, self_draft: &TransformerModel) -> io::Result<()> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        let matrices = self_draft.transformer().stored_matrices();
        let mut metadata = HashMap::from([(SOURCE.to_owned(), self.source.clone())]);
        metadata.extend(matrices.iter().map(|(name, bytes)| (name.clone(), sum(bytes))));
        let other = |error: safetensors::SafeTensorError| io::Error::other(error);
        let views = matrices.iter().map(|(name, bytes)| {
            Ok((name, TensorView::new(Dtype::U8, vec![bytes.len()], bytes).map_err(other)?))
        });
        let views = views.collect::<io::Result<Vec<_>>>()?;
        let file = tempfile::Builder::new()
            .suffix(&format!(".{}", Self::EXTENSION))
            .tempfile_in(folder)?;
        safetensors::serialize_to_file(views, Some(metadata), file.path()).map_err(other)?;
        file.persist(&self.path).map_err(|error| error.error).map(|_| ())
    }

    /// Opens the file if it matches the current model files and options.
    pub(crate) fn open(&self) -> Result<SelfDraftReader> {
        SelfDraftReader::open(&self.path, &self.source)
    }
}
