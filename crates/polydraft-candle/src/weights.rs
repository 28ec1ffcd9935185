//! The tensors of a model directory, each read from its file once.

mod named;
pub(crate) mod pickle;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use rayon::prelude::*;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde::Deserialize;

use crate::{Error, Result};

/// One safetensors file.
struct Shard {
    path: PathBuf,
    /// Where the tensors' bytes begin.
    data: u64,
}

/// All tensors of a model by name, from `model.safetensors` or from the shards of its index.
///
/// Opening reads the headers only. Taking a tensor reads its bytes into their place, by way of a small buffer: no
/// weight is ever held twice, and a file that another process cuts short is an error like any other.
pub(crate) struct Weights {
    directory: PathBuf,
    shards: Vec<Shard>,
    tensors: BTreeMap<String, (usize, TensorInfo)>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Rows of a matrix: its name, its rows, and how many of them are wanted, from the first on.
pub(crate) struct Part {
    pub name: String,
    pub rows: usize,
    pub wanted: usize,
}

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// No header is longer; the format's own limit.
const LONGEST_HEADER: u64 = 100_000_000;
/// Numbers that are read at once.
const PIECE: usize = 1 << 18;

/// A number that weights are held as.
pub(crate) trait Element: Copy + Default + Send + Sync {
    fn from_f32(bytes: [u8; 4]) -> Self;
    fn from_f16(bytes: [u8; 2]) -> Self;
    fn from_bf16(bytes: [u8; 2]) -> Self;
    fn is_finite(self) -> bool;
    fn widened(self) -> f32;
}

macro_rules! element {
    ($type:ty, $f32:expr, $f16:expr, $bf16:expr) => {
        impl Element for $type {
            #[inline(always)]
            fn from_f32(bytes: [u8; 4]) -> Self {
                $f32(f32::from_le_bytes(bytes))
            }
            #[inline(always)]
            fn from_f16(bytes: [u8; 2]) -> Self {
                $f16(f16::from_le_bytes(bytes))
            }
            #[inline(always)]
            fn from_bf16(bytes: [u8; 2]) -> Self {
                $bf16(bf16::from_le_bytes(bytes))
            }
            #[inline(always)]
            fn is_finite(self) -> bool {
                <$type>::is_finite(self)
            }
            #[inline(always)]
            fn widened(self) -> f32 {
                f32::from(self)
            }
        }
    };
}
element!(f32, |x: f32| x, f16::to_f32, bf16::to_f32);
element!(f16, f16::from_f32, |x: f16| x, |x: bf16| f16::from_f32(x.to_f32()));
element!(bf16, bf16::from_f32, |x: f16| bf16::from_f32(x.to_f32()), |x: bf16| x);

impl Weights {
    pub fn open(directory: &Path) -> Result<Self> {
        let (single, index) = (directory.join(SINGLE), directory.join(INDEX));
        let mut weights =
            Self { directory: directory.to_owned(), shards: Vec::new(), tensors: BTreeMap::new() };
        if single.exists() {
            weights.add_shard(single)?;
            return Ok(weights);
        }
        let pickled = directory.join("pytorch_model.bin");
        if !index.exists() && pickled.exists() {
            let tensors = pickle::tensors(&pickled)?;
            weights.tensors = tensors.into_iter().map(|(name, info)| (name, (0, info))).collect();
            weights.shards.push(Shard { path: pickled, data: 0 });
            return Ok(weights);
        }
        if !index.exists() {
            let expected = "model.safetensors, model.safetensors.index.json or pytorch_model.bin";
            return Err(Error::Missing { directory: directory.to_owned(), expected });
        }
        let wrong = |problem: String| Error::File { path: index.clone(), problem };
        let text =
            std::fs::read_to_string(&index).map_err(|source| Error::Read { path: index.clone(), source })?;
        let parsed: Index = serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))?;
        for name in parsed.weight_map.values().collect::<BTreeSet<_>>() {
            // A name that leads elsewhere would read files the user never pointed at.
            if Path::new(name).file_name().is_none_or(|n| n != name.as_str()) {
                return Err(wrong(format!("expected file names in this directory, got {name:?}")));
            }
            weights.add_shard(directory.join(name))?;
        }
        for (tensor, file) in &parsed.weight_map {
            if !weights.tensors.contains_key(tensor) {
                return Err(wrong(format!("expected tensor {tensor} in {file}, got no such tensor there")));
            }
        }
        Ok(weights)
    }

    fn add_shard(&mut self, path: PathBuf) -> Result<()> {
        let read = |source| Error::Read { path: path.clone(), source };
        let mut file = File::open(&path).map_err(read)?;
        let length = file.metadata().map_err(read)?.len();
        let wrong = |problem: String| Error::File {
            path: path.clone(),
            problem: format!("expected a complete safetensors file, got {length} bytes: {problem}"),
        };
        let mut size = [0; 8];
        if length < 8 {
            return Err(wrong("too few for the size of a header".to_owned()));
        }
        file.read_exact(&mut size).map_err(read)?;
        let header = u64::from_le_bytes(size);
        if header > LONGEST_HEADER.min(length - 8) {
            return Err(wrong(format!("its header would have {header}")));
        }
        let mut text = vec![0; header as usize];
        file.read_exact(&mut text).map_err(read)?;
        let metadata: Metadata = serde_json::from_slice(&text).map_err(|e| wrong(e.to_string()))?;
        let data = 8 + header;
        let whole = data.saturating_add(metadata.data_len() as u64);
        if whole != length {
            return Err(wrong(format!("its header speaks of {whole}")));
        }
        let shard = self.shards.len();
        for (name, info) in metadata.tensors() {
            if self.tensors.insert(name.clone(), (shard, info.clone())).is_some() {
                let problem = format!("tensor {name} is in another shard too");
                return Err(Error::File { path, problem });
            }
        }
        self.shards.push(Shard { path, data });
        Ok(())
    }

    /// Names and shapes of all tensors that are left.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &[usize], Dtype)> {
        self.tensors.iter().map(|(name, (_, info))| (name.as_str(), info.shape.as_slice(), info.dtype))
    }

    /// The same tensors under names that begin with `prefix`, where none does: some files leave it out.
    pub fn prepend(&mut self, prefix: &str) {
        if !self.tensors.keys().any(|name| name.starts_with(prefix)) {
            let tensors = std::mem::take(&mut self.tensors);
            let renamed = tensors.into_iter().map(|(name, tensor)| match name.starts_with("lm_head.") {
                true => (name, tensor),
                false => (format!("{prefix}{name}"), tensor),
            });
            self.tensors = renamed.collect();
        }
    }

    /// Takes a vector of this length.
    pub fn vector(&mut self, name: &str, length: usize) -> Result<Vec<f32>> {
        let mut values = vec![0.0; length];
        self.take(name, &[length])?.read(0, &mut values)?;
        Ok(values)
    }

    /// Takes matrices of `columns` columns and stacks their rows: one product then does the work of several.
    pub fn stacked(&mut self, parts: &[Part], columns: usize) -> Result<Rows> {
        let mut rows = Rows { parts: Vec::new(), columns };
        for part in parts {
            rows.parts.push((self.take(&part.name, &[part.rows, columns])?, part.wanted));
        }
        Ok(rows)
    }

    /// Takes a tensor, which must have this shape.
    fn take(&mut self, name: &str, shape: &[usize]) -> Result<Stored> {
        let Some((shard, info)) = self.tensors.remove(name) else {
            let path = match &self.shards[..] {
                [shard] => shard.path.clone(),
                _ => self.directory.join(INDEX),
            };
            return Err(Error::Tensor {
                path,
                tensor: name.to_owned(),
                expected: format!("shape {shape:?}"),
                got: "no tensor of that name".to_owned(),
            });
        };
        let shard = &self.shards[shard];
        let stored = Stored {
            name: name.to_owned(),
            path: shard.path.clone(),
            start: shard.data + info.data_offsets.0 as u64,
            dtype: info.dtype,
        };
        if info.shape != shape {
            return Err(stored.wrong(format!("shape {shape:?}"), format!("shape {:?}", info.shape)));
        }
        if !matches!(info.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16) {
            return Err(stored.wrong("type F32, F16 or BF16".to_owned(), format!("type {:?}", info.dtype)));
        }
        Ok(stored)
    }

    /// That nothing is left, but for what the predicate allows.
    pub fn finish(self, allowed: impl Fn(&str) -> bool) -> Result<()> {
        match self.tensors.iter().find(|(name, _)| !allowed(name)) {
            None => Ok(()),
            Some((name, (shard, info))) => Err(Error::Tensor {
                path: self.shards[*shard].path.clone(),
                tensor: name.clone(),
                expected: "no such tensor with this config.json".to_owned(),
                got: format!("one of shape {:?}", info.shape),
            }),
        }
    }
}

/// A tensor in its file.
pub(crate) struct Stored {
    name: String,
    path: PathBuf,
    /// Of its first byte.
    start: u64,
    dtype: Dtype,
}

impl Stored {
    fn wrong(&self, expected: String, got: String) -> Error {
        Error::Tensor { path: self.path.clone(), tensor: self.name.clone(), expected, got }
    }

    /// Reads values from entry `first` on.
    fn read<T: Element>(&self, first: usize, values: &mut [T]) -> Result<()> {
        match self.dtype {
            Dtype::F32 => self.read_as(first, values, T::from_f32),
            Dtype::F16 => self.read_as(first, values, T::from_f16),
            _ => self.read_as(first, values, T::from_bf16),
        }
    }

    fn read_as<T: Element, const N: usize>(
        &self,
        first: usize,
        values: &mut [T],
        convert: impl Fn([u8; N]) -> T,
    ) -> Result<()> {
        let failed = |source| Error::Read { path: self.path.clone(), source };
        let mut bytes = vec![0; values.len() * N];
        // A handle of its own: others read at other places meanwhile.
        let mut file = File::open(&self.path).map_err(failed)?;
        file.seek(SeekFrom::Start(self.start + (first * N) as u64)).map_err(failed)?;
        file.read_exact(&mut bytes).map_err(failed)?;
        let mut finite = true;
        for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
            *value = convert(*bytes);
            finite &= value.is_finite();
        }
        match values.iter().position(|v| !v.is_finite()).filter(|_| !finite) {
            None => Ok(()),
            Some(at) => Err(self.wrong(
                "finite numbers".to_owned(),
                format!("{} at entry {}", values[at].widened(), first + at),
            )),
        }
    }
}

/// Rows of matrices on disk, one matrix behind the other.
pub(crate) struct Rows {
    parts: Vec<(Stored, usize)>,
    pub columns: usize,
}

impl Rows {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.parts.iter().map(|(_, wanted)| wanted).sum()
    }

    /// Reads rows from `first` on into `values`, whole rows of them.
    pub fn read<T: Element>(&self, mut first: usize, mut values: &mut [T]) -> Result<()> {
        for (stored, wanted) in &self.parts {
            if first < *wanted {
                let here = (wanted - first).min(values.len() / self.columns);
                let (now, later) = values.split_at_mut(here * self.columns);
                stored.read(first * self.columns, now)?;
                values = later;
            }
            first = first.saturating_sub(*wanted);
        }
        Ok(())
    }

    /// All of them in f32.
    pub fn all(&self) -> Result<Vec<f32>> {
        let mut values = vec![0.0; self.count() * self.columns];
        let piece = (PIECE / self.columns).max(1);
        let pieces = values.par_chunks_mut(piece * self.columns).enumerate();
        pieces.try_for_each(|(number, values)| self.read(number * piece, values))?;
        Ok(values)
    }
}
