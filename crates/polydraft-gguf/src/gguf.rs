//! A GGUF file, or all shards of a split model.

use std::collections::BTreeMap;
use std::path::Path;

use crate::error::{Fault, Location};
use crate::header::{Header, Info};
use crate::metadata::Metadata;
use crate::source::Source;
use crate::split::{Split, shard_path};
use crate::tensor::Tensor;
use crate::{Error, Result};

/// An open GGUF file, with all shards if the model is split.
///
/// Opening reads the header, and checks all of it against the lengths of the files. Tensors are
/// read on request.
///
/// ```
/// use polydraft_gguf::Gguf;
///
/// // Version 3, no tensor, one key: `a.n` = 7, of type u32.
/// let mut bytes = b"GGUF\x03\0\0\0".to_vec();
/// bytes.extend([0_u64, 1, 3].into_iter().flat_map(u64::to_le_bytes));
/// bytes.extend(b"a.n\x04\0\0\0\x07\0\0\0");
/// let gguf = Gguf::from_bytes("example", bytes)?;
/// assert_eq!(gguf.metadata().u32("a.n")?, 7);
/// let error = gguf.metadata().str("a.n").unwrap_err().to_string();
/// assert_eq!(error, "example: key a.n: expected a string in UTF-8, got 7 of type u32");
/// # Ok::<(), polydraft_gguf::Error>(())
/// ```
#[derive(Debug)]
pub struct Gguf {
    version: u32,
    alignment: u64,
    metadata: Metadata,
    shards: Vec<Source>,
    /// Tensors by name, each with the index of its shard.
    tensors: BTreeMap<Box<str>, (usize, Info)>,
}

impl Gguf {
    /// Opens a file and, if it is a shard of a split model (`NAME-00001-of-00003.gguf`), all other
    /// shards.
    ///
    /// # Errors
    /// Files that are not regular files; a missing shard; a header that is invalid or inconsistent
    /// with the length of the file. The error reports the key or the tensor.
    pub fn open(path: &Path) -> Result<Self> {
        let source = Source::open(path)?;
        let header = Header::read(&source)?;
        match Split::read(&header.metadata)? {
            Some(split) if split.count > 1 => Self::open_shards(path, split),
            _ => Self::join(vec![(source, header)]),
        }
    }

    /// Reads a file in memory. `name` stands for its path in errors.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open); a shard of a split model.
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Result<Self> {
        let source = Source::memory(name, bytes);
        let header = Header::read(&source)?;
        if let Some(split) = Split::read(&header.metadata)?.filter(|split| split.count > 1) {
            let got = format!("shard {} of {}", split.number + 1, split.count);
            return Err(Fault::new(Location::Shards, "a model in one file", got).at(&source.path));
        }
        Self::join(vec![(source, header)])
    }

    fn open_shards(path: &Path, split: Split) -> Result<Self> {
        let mut shards = Vec::new();
        let mut metadata = None;
        for number in 0..split.count {
            let file = shard_path(path, &split, number)?;
            if !file.exists() {
                return Err(Error::MissingShard {
                    path: file,
                    shard: number + 1,
                    count: split.count,
                });
            }
            let source = Source::open(&file)?;
            let header = Header::read(&source)?;
            let got = Split::read(&header.metadata)?;
            let expected = Split { number, ..split };
            // Only the first shard must have the number of tensors.
            if got.is_none_or(|got| (got.number, got.count) != (number, split.count)) {
                let got =
                    got.map_or("a file without shard number".to_owned(), |got| got.to_string());
                return Err(Fault::new(Location::Shards, expected.to_string(), got).at(&file));
            }
            if number == 0 {
                metadata = got;
            }
            shards.push((source, header));
        }
        let gguf = Self::join(shards)?;
        if let Some(tensors) =
            metadata.and_then(|split| split.tensors).filter(|n| *n != gguf.tensors.len())
        {
            let got = format!("{} in all shards", gguf.tensors.len());
            return Err(
                Fault::key("split.tensors.count", format!("{tensors} tensors"), got).at(path)
            );
        }
        Ok(gguf)
    }

    fn join(shards: Vec<(Source, Header)>) -> Result<Self> {
        let mut joined: Option<Self> = None;
        for (shard, (source, header)) in shards.into_iter().enumerate() {
            let gguf = joined.get_or_insert_with(|| Self {
                version: header.version,
                alignment: header.alignment,
                metadata: header.metadata,
                shards: Vec::new(),
                tensors: BTreeMap::new(),
            });
            for (name, info) in header.tensors {
                if gguf.tensors.contains_key(&name) {
                    let fault = Fault::tensor(
                        &name,
                        "a tensor in one shard",
                        "one in an earlier shard too",
                    );
                    return Err(fault.at(&source.path));
                }
                gguf.tensors.insert(name, (shard, info));
            }
            gguf.shards.push(source);
        }
        // There is at least one shard: splits with none are rejected above.
        joined.ok_or_else(|| Fault::new(Location::Shards, "at least one", "none").at(Path::new("")))
    }

    /// Returns the version of the format, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Returns the alignment of tensors in bytes.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// Returns the metadata, of the first shard if the model is split.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Returns the paths of all shards, in order.
    pub fn paths(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.shards.iter().map(|shard| &*shard.path)
    }

    /// Returns all tensors, in alphabetical order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = Tensor<'_>> {
        self.tensors
            .iter()
            .map(|(name, (shard, info))| Tensor::new(&self.shards[*shard], name, info))
    }

    /// Returns a tensor by name, if it exists.
    pub fn find(&self, name: &str) -> Option<Tensor<'_>> {
        let (name, (shard, info)) = self.tensors.get_key_value(name)?;
        Some(Tensor::new(&self.shards[*shard], name, info))
    }

    /// Returns a tensor by name.
    ///
    /// # Errors
    /// No such tensor.
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>> {
        self.find(name).ok_or_else(|| {
            Fault::tensor(name, "a tensor", "no tensor of that name").at(self.metadata.path())
        })
    }
}
