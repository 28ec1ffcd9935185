//! A model's file, or all files of a model that was split.

use std::collections::BTreeMap;
use std::path::Path;

use crate::error::{Fault, Location};
use crate::header::{Header, Info};
use crate::metadata::Metadata;
use crate::source::Source;
use crate::split::{Split, part_path};
use crate::tensor::Tensor;
use crate::{Error, Result};

/// A GGUF file that is open, with the other parts if the model is in several.
///
/// Opening reads the header and checks all of it against the files' lengths. Tensors are read when
/// asked for.
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
    parts: Vec<Source>,
    /// With the number of the part.
    tensors: BTreeMap<Box<str>, (usize, Info)>,
}

impl Gguf {
    /// Opens a file and, if it is a part of a split model (`NAME-00001-of-00003.gguf`), all the
    /// other parts.
    ///
    /// # Errors
    /// Anything but regular files; a missing part; a header that makes no sense or claims what the
    /// file's length contradicts. The key or the tensor is named.
    pub fn open(path: &Path) -> Result<Self> {
        let source = Source::open(path)?;
        let header = Header::read(&source)?;
        match Split::read(&header.metadata)? {
            Some(split) if split.count > 1 => Self::open_parts(path, split),
            _ => Self::join(vec![(source, header)]),
        }
    }

    /// Reads a file that is in memory already. `name` is what errors call it.
    ///
    /// # Errors
    /// As [`open`](Self::open); a part of several is refused.
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Result<Self> {
        let source = Source::memory(name, bytes);
        let header = Header::read(&source)?;
        if let Some(split) = Split::read(&header.metadata)?.filter(|split| split.count > 1) {
            let got = format!("part {} of {}", split.number + 1, split.count);
            return Err(Fault::new(Location::Shards, "a model in one piece", got).at(&source.path));
        }
        Self::join(vec![(source, header)])
    }

    fn open_parts(path: &Path, split: Split) -> Result<Self> {
        let mut parts = Vec::new();
        let mut metadata = None;
        for number in 0..split.count {
            let file = part_path(path, &split, number)?;
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
            // The first part alone has to say how many tensors there are.
            if got.is_none_or(|got| (got.number, got.count) != (number, split.count)) {
                let got = got.map_or("a file that is no part".to_owned(), |got| got.to_string());
                return Err(Fault::new(Location::Shards, expected.to_string(), got).at(&file));
            }
            if number == 0 {
                metadata = got;
            }
            parts.push((source, header));
        }
        let gguf = Self::join(parts)?;
        if let Some(tensors) =
            metadata.and_then(|split| split.tensors).filter(|n| *n != gguf.tensors.len())
        {
            let got = format!("{} in all parts", gguf.tensors.len());
            return Err(
                Fault::key("split.tensors.count", format!("{tensors} tensors"), got).at(path)
            );
        }
        Ok(gguf)
    }

    fn join(parts: Vec<(Source, Header)>) -> Result<Self> {
        let mut whole: Option<Self> = None;
        for (part, (source, header)) in parts.into_iter().enumerate() {
            let gguf = whole.get_or_insert_with(|| Self {
                version: header.version,
                alignment: header.alignment,
                metadata: header.metadata,
                parts: Vec::new(),
                tensors: BTreeMap::new(),
            });
            for (name, info) in header.tensors {
                if gguf.tensors.contains_key(&name) {
                    let fault =
                        Fault::tensor(&name, "a tensor in one part", "one in an earlier part too");
                    return Err(fault.at(&source.path));
                }
                gguf.tensors.insert(name, (part, info));
            }
            gguf.parts.push(source);
        }
        // There is a first part: a split of none was refused.
        whole.ok_or_else(|| Fault::new(Location::Shards, "at least one", "none").at(Path::new("")))
    }

    /// The version of the format, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// What tensors are aligned to, in bytes.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// The metadata, of the first part if there are several.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The files, in their order.
    pub fn paths(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.parts.iter().map(|part| &*part.path)
    }

    /// All tensors, in alphabetical order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = Tensor<'_>> {
        self.tensors.iter().map(|(name, (part, info))| Tensor::new(&self.parts[*part], name, info))
    }

    /// A tensor, if there is one of that name.
    pub fn find(&self, name: &str) -> Option<Tensor<'_>> {
        let (name, (part, info)) = self.tensors.get_key_value(name)?;
        Some(Tensor::new(&self.parts[*part], name, info))
    }

    /// A tensor.
    ///
    /// # Errors
    /// None of that name.
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>> {
        self.find(name).ok_or_else(|| {
            Fault::tensor(name, "a tensor", "no tensor of that name").at(self.metadata.path())
        })
    }
}
