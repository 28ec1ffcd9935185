//! Reads a quantised self-draft that was made before from its file
//! ([`SelfDraftFile`](crate::SelfDraftFile)).

use std::path::{Path, PathBuf};

use polydraft_kernels::{Format, Packed};
use rayon::prelude::*;
use safetensors::tensor::Metadata;

use crate::error::{Error, Result};
use crate::weights::{header, read_at};

/// Where the metadata says what a self-draft was made of; sums stand under the matrices' names.
pub(crate) const SOURCE: &str = "made of";
/// Bytes that are summed up by one thread.
const PART: usize = 1 << 20;

/// A file that has a self-draft.
#[derive(Debug)]
pub(crate) struct SelfDraftReader {
    path: PathBuf,
    metadata: Metadata,
    /// Where the matrices' bytes begin.
    start: u64,
}

impl SelfDraftReader {
    /// Opens it, if it says that it was made of `source`.
    pub fn open(path: &Path, source: &str) -> Result<Self> {
        let mut file = polydraft_files::open(path)
            .map_err(|source| Error::Read { path: path.to_owned(), source })?;
        let (metadata, start) = header(path, &mut file)?;
        let reader = Self { path: path.to_owned(), metadata, start };
        let got = reader.said(SOURCE).unwrap_or("none");
        match got == source {
            true => Ok(reader),
            false => {
                let problem = format!("expected a self-draft {source}, got {got}");
                Err(Error::File { path: path.to_owned(), problem })
            }
        }
    }

    fn said(&self, of: &str) -> Option<&str> {
        self.metadata.metadata().as_ref()?.get(of).map(String::as_str)
    }

    /// Reads a matrix.
    pub fn matrix(&self, name: &str, format: Format, shape: [usize; 2]) -> Result<Packed> {
        let Some(info) = self.metadata.info(name) else {
            return Err(self.wrong(name, "such a tensor"));
        };
        let [begin, end] = [info.data_offsets.0, info.data_offsets.1];
        if (end - begin) as u64 != format.bytes(shape[0], shape[1]) {
            return Err(self.wrong(name, &format!("{} bytes", format.bytes(shape[0], shape[1]))));
        }
        let matrix = Packed::from_bytes(format, shape, |at, bytes| {
            read_at(&self.path, self.start + (begin + at) as u64, bytes)
        })?;
        match self.said(name) == Some(&sum(matrix.as_bytes())) {
            true => Ok(matrix),
            false => Err(self.wrong(name, "the bytes that were written")),
        }
    }

    fn wrong(&self, name: &str, expected: &str) -> Error {
        let (tensor, got) = (name.to_owned(), "something else".to_owned());
        Error::Tensor { path: self.path.clone(), tensor, expected: expected.to_owned(), got }
    }
}

/// A sum that shows what was damaged: of the sums of parts.
pub(crate) fn sum(bytes: &[u8]) -> String {
    let parts = bytes.par_chunks(PART).map(crc32fast::hash).collect::<Vec<_>>();
    let mut all = crc32fast::Hasher::new();
    parts.iter().for_each(|part| all.update(&part.to_le_bytes()));
    format!("{:08x}", all.finalize())
}
