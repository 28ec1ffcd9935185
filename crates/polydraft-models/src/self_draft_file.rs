//! A quantised self-draft in a file: its scales need not be searched for again at the next start.
//!
//! Format: safetensors, each matrix as it lies in memory, as a tensor of bytes; in its metadata of
//! what, how and by which program it was made, and a sum of each matrix. A file of which any of
//! that is not as expected is ignored, and another takes its place. Were it wrong all the same, its
//! drafts would be worse, and the output's distribution the same.

use std::collections::HashMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use safetensors::tensor::{Dtype, TensorView};

use crate::copy_reader::{CopyReader, SOURCE, sum};
use crate::description::{Description, LoadOptions};
use crate::error::Result;
use crate::model::TransformerModel;

/// To be raised when the layout of matrices in memory, or their rounding, changes.
const LAYOUT: u32 = 1;

/// Where a self-draft is cached, and what it must have been made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelfDraftFile {
    path: PathBuf,
    source: String,
}

impl SelfDraftFile {
    /// How its name ends, also while it is written.
    pub const EXTENSION: &str = "polydraft";

    /// The place in `folder` of the self-draft that these options ask for. None where there is to
    /// be no self-draft, where it is made as fast as it would be read, and where it is unknown
    /// whether the model is still the same.
    pub fn new(folder: &Path, model: &Description, options: &LoadOptions) -> Option<Self> {
        let copy = options.self_draft.filter(|copy| copy.is_searched())?;
        let place = model.directory.canonicalize().ok()?;
        let held = format!("{copy} of {} in {}", place.display(), options.precision);
        let mut hasher = DefaultHasher::new();
        held.hash(&mut hasher);
        let stem = place.file_stem().unwrap_or_default().to_string_lossy();
        let name = format!("{stem}-{copy}-{:016x}.{}", hasher.finish(), Self::EXTENSION);
        let mut source = format!("{}, layout {LAYOUT}: {held}", env!("CARGO_PKG_VERSION"));
        for file in &model.files {
            let metadata = fs::metadata(file).ok()?;
            let changed = metadata.modified().ok()?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
            let name = file.file_name()?.to_string_lossy();
            source += &format!("; {name} of {} bytes at {} ns", metadata.len(), changed.as_nanos());
        }
        Some(Self { path: folder.join(name), source })
    }

    /// Where it is, or would be.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a self-draft, whole or not at all, in the place of another.
    ///
    /// # Errors
    /// Failures of the file system.
    pub fn write(&self, copy: &TransformerModel) -> io::Result<()> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        let matrices = copy.transformer().held_matrices();
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

    /// Opens it, if it is of this model as it is now.
    pub(crate) fn open(&self) -> Result<CopyReader> {
        CopyReader::open(&self.path, &self.source)
    }
}
