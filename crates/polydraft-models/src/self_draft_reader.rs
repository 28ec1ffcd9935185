//! Reads a quantised self-draft from its cache file ([`SelfDraftFile`](crate::SelfDraftFile)).

use std::path::{Path, PathBuf};

use polydraft_kernels::{Format, Packed};
use rayon::prelude::*;
use safetensors::tensor::Metadata;

use crate::error::{Error, Result};
use crate::weights::{header, read_at};

/// Metadata key of the source of a self-draft. Checksums have the names of the matrices as keys.
pub(crate) const SOURCE: &str = "made of";
/// Bytes of a chunk of the checksum; chunks are summed in parallel.
const CHUNK: usize = 1 << 20;

/// An open cache file of a self-draft.
#[derive(Debug)]
pub(crate) struct SelfDraftReader {
    path: PathBuf,
    metadata: Metadata,
    /// Offset of the first matrix in the file.
    start: u64,
}

impl SelfDraftReader {
    /// Opens a file and checks that it was made from `source`.
    pub fn open(path: &Path, source: &str) -> Result<Self> {
        let mut file = polydraft_files::open(path)
            .map_err(|source| Error::Read { path: path.to_owned(), source })?;
        let (metadata, start) = header(path, &mut file)?;
        let reader = Self { path: path.to_owned(), metadata, start };
        let got = reader.metadata(SOURCE).unwrap_or("none");
        match got == source {
            true => Ok(reader),
            false => {
                let problem = format!("expected a self-draft {source}, got {got}");
                Err(Error::File { path: path.to_owned(), problem })
            }
        }
    }

    fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata.metadata().as_ref()?.get(key).map(String::as_str)
    }

    /// Reads a matrix.
    pub fn matrix(&self, name: &str, format: Format, shape: [usize; 2]) -> Result<Packed> {
        let Some(info) = self.metadata.info(name) else {
            return Err(self.invalid_tensor(name, "such a tensor"));
        };
        let [begin, end] = [info.data_offsets.0, info.data_offsets.1];
        if (end - begin) as u64 != format.bytes(shape[0], shape[1]) {
            return Err(
                self.invalid_tensor(name, &format!("{} bytes", format.bytes(shape[0], shape[1])))
            );
        }
        let matrix = Packed::from_bytes(format, shape, |at, bytes| {
            read_at(&self.path, self.start + (begin + at) as u64, bytes)
        })?;
        match self.metadata(name) == Some(&sum(matrix.as_bytes())) {
            true => Ok(matrix),
            false => Err(self.invalid_tensor(name, "the bytes that were written")),
        }
    }

    fn invalid_tensor(&self, name: &str, expected: &str) -> Error {
        let (tensor, got) = (name.to_owned(), "something else".to_owned());
        Error::Tensor { path: self.path.clone(), tensor, expected: expected.to_owned(), got }
    }
}

/// CRC-32 of the CRC-32 sums of all chunks, in hexadecimal.
pub(crate) fn sum(bytes: &[u8]) -> String {
    let chunks = bytes.par_chunks(CHUNK).map(crc32fast::hash).collect::<Vec<_>>();
    let mut all = crc32fast::Hasher::new();
    chunks.iter().for_each(|chunk| all.update(&chunk.to_le_bytes()));
    format!("{:08x}", all.finalize())
}
