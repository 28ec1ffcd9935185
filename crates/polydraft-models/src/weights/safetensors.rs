//! Tensors of a model directory, in safetensors files or as PyTorch saves them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, TensorInfo};
use serde::Deserialize;

use super::codebook;
use super::packed_tensors::{self, PackedTensors};
use super::pickle;
use super::scales::{SCALES, is_fp8, is_of_activations};
use super::stored::{StoredTensor, exact, header, read_at};
use super::tensor_header::{MXFP4_BYTES, TensorHeader};
use crate::error::{Error, Result};
use crate::quantisation;

/// One safetensors file.
#[derive(Debug)]
struct Shard {
    path: PathBuf,
    /// Offset of the tensors' bytes.
    data: u64,
}

/// All tensors of a model directory by name, from `model.safetensors`, from the shards of its index
/// or from `pytorch_model.bin`.
///
/// Opening reads the headers only. Reading a tensor copies its bytes to their destination through a
/// small buffer: no weight is in memory twice, and a file that another process truncates causes an
/// ordinary error.
#[derive(Debug)]
pub(crate) struct TensorFiles {
    directory: PathBuf,
    shards: Vec<Shard>,
    tensors: BTreeMap<String, (usize, TensorInfo)>,
    /// Tensors of scales of FP8 matrices, with their names, by the matrix's name.
    scales: BTreeMap<String, (String, usize, TensorInfo)>,
    /// Rows and columns of the blocks of FP8 matrices that share a scale.
    block: Option<[usize; 2]>,
    /// Tensors of packed integer matrices, by the matrix's name.
    packed: BTreeMap<String, PackedTensors>,
    /// Tensors of codebook matrices, by the matrix's name.
    codebooks: BTreeMap<String, codebook::CodebookTensors>,
    /// Names of the tensors that were read.
    taken: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// Bytes that are compared at a time.
const COMPARED_BYTES: usize = 1 << 20;

impl TensorFiles {
    /// Opens a model directory.
    pub fn open(directory: &Path) -> Result<Self> {
        let mut files = Self::open_all(directory)?;
        files.group_packed_tensors()?;
        files.group_scales()?;
        Ok(files)
    }

    fn open_all(directory: &Path) -> Result<Self> {
        let (single, index) = (directory.join(SINGLE), directory.join(INDEX));
        let mut weights = Self {
            directory: directory.to_owned(),
            shards: Vec::new(),
            tensors: BTreeMap::new(),
            scales: BTreeMap::new(),
            block: None,
            packed: BTreeMap::new(),
            codebooks: BTreeMap::new(),
            taken: BTreeSet::new(),
        };
        if single.exists() {
            weights.add_shard(single, |_| true)?;
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
        let invalid = |problem: String| Error::File { path: index.clone(), problem };
        let text = polydraft_files::read_text(&index, polydraft_files::FileKind::TENSOR_INDEX)
            .map_err(|source| Error::Read { path: index.clone(), source })?;
        let parsed: Index = serde_json::from_str(&text).map_err(|e| invalid(e.to_string()))?;
        for name in parsed.weight_map.values().collect::<BTreeSet<_>>() {
            // A path to another directory would read files that the user did not name.
            if Path::new(name).file_name().is_none_or(|n| n != name.as_str()) {
                return Err(invalid(format!(
                    "expected file names in this directory, got {name:?}"
                )));
            }
            // For a tensor that is in several files, the index decides.
            let is_indexed =
                |tensor: &str| parsed.weight_map.get(tensor).is_none_or(|file| file == name);
            weights.add_shard(directory.join(name), is_indexed)?;
        }
        for (tensor, file) in &parsed.weight_map {
            if !weights.tensors.contains_key(tensor) {
                return Err(invalid(format!(
                    "expected tensor {tensor} in {file}, got no such tensor there"
                )));
            }
        }
        Ok(weights)
    }

    /// Groups the tensors of packed and codebook matrices, leaving one entry for each matrix.
    fn group_packed_tensors(&mut self) -> Result<()> {
        let mut tensors = std::mem::take(&mut self.tensors);
        let locate = |name: &str, shard: usize, info: &TensorInfo| self.stored(name, shard, info);
        let codebooks = codebook::take(&mut tensors, locate)?;
        let mut packed = BTreeMap::new();
        if packed_tensors::any_packed(&tensors)
            && let Some(packing) = quantisation::packing(&self.directory)?
        {
            packed = packed_tensors::take(&mut tensors, &packing, locate)?;
        }
        (self.codebooks, self.packed) = (codebooks, packed);
        self.tensors = tensors;
        Ok(())
    }

    /// Groups the scales of FP8 matrices with their matrices, and drops tensors that only matter
    /// for quantised inputs.
    fn group_scales(&mut self) -> Result<()> {
        let matrices = self.tensors.iter().filter(|(_, (_, info))| is_fp8(info.dtype));
        let matrices: BTreeSet<String> = matrices.map(|(name, _)| name.clone()).collect();
        let packed = self.packed.keys().chain(self.codebooks.keys());
        let all = matrices.iter().chain(packed).cloned().collect();
        self.tensors.retain(|name, _| !is_of_activations(name, &all));
        if matrices.is_empty() {
            return Ok(());
        }
        self.block = quantisation::block(&self.directory)?;
        for matrix in matrices {
            let mut names = SCALES.iter().map(|end| format!("{matrix}{end}"));
            if let Some(name) = names.find(|name| self.tensors.contains_key(name))
                && let Some((shard, info)) = self.tensors.remove(&name)
            {
                self.scales.insert(matrix, (name, shard, info));
            }
        }
        Ok(())
    }

    /// Adds the tensors of one file that satisfy the predicate.
    fn add_shard(&mut self, path: PathBuf, is_indexed: impl Fn(&str) -> bool) -> Result<()> {
        let read = |source| Error::Read { path: path.clone(), source };
        let mut file = polydraft_files::open(&path).map_err(read)?;
        let (metadata, data) = header(&path, &mut file)?;
        let shard = self.shards.len();
        for (name, info) in metadata.tensors().into_iter().filter(|(name, _)| is_indexed(name)) {
            if self.tensors.insert(name.clone(), (shard, info.clone())).is_some() {
                let problem = format!("tensor {name} is in another shard too");
                return Err(Error::File { path, problem });
            }
        }
        self.shards.push(Shard { path, data });
        Ok(())
    }

    pub fn paths(&self) -> Vec<PathBuf> {
        self.shards.iter().map(|shard| shard.path.clone()).collect()
    }

    /// Headers of all tensors.
    pub fn tensors(&self) -> impl Iterator<Item = TensorHeader> {
        self.tensors.iter().filter_map(|(name, (_, info))| {
            let codebook = self.codebooks.get(name);
            if info.dtype == Dtype::U8 && codebook.is_none() {
                return TensorHeader::mxfp4(name, &info.shape);
            }
            Some(TensorHeader {
                name: name.clone(),
                shape: info.shape.clone(),
                stored: match info.dtype {
                    _ if self.packed.contains_key(name) => self.packed[name].type_name(),
                    _ if codebook.is_some() => {
                        codebook.map(codebook::CodebookTensors::type_name)?
                    }
                    Dtype::F8_E4M3 => "FP8".to_owned(),
                    Dtype::F8_E5M2 => "FP8 (E5M2)".to_owned(),
                    other => format!("{other:?}"),
                },
                exact: exact(info.dtype),
            })
        })
    }

    pub fn rename(&mut self, rename: impl Fn(&str) -> String) {
        let tensors = std::mem::take(&mut self.tensors);
        self.tensors = tensors.into_iter().map(|(name, tensor)| (rename(&name), tensor)).collect();
        let scales = std::mem::take(&mut self.scales);
        self.scales = scales.into_iter().map(|(name, scales)| (rename(&name), scales)).collect();
        let packed = std::mem::take(&mut self.packed);
        self.packed = packed.into_iter().map(|(name, parts)| (rename(&name), parts)).collect();
        let books = std::mem::take(&mut self.codebooks);
        self.codebooks = books.into_iter().map(|(name, parts)| (rename(&name), parts)).collect();
    }

    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|(_, info)| info.shape.as_slice())
    }

    /// Whether two tensors have the same bytes; `None` if one is missing.
    pub fn are_same(&self, a: &str, b: &str) -> Result<Option<bool>> {
        let is_packed = [a, b]
            .iter()
            .any(|name| self.packed.contains_key(*name) || self.codebooks.contains_key(*name));
        let (Some(a), Some(b)) = (self.tensors.get(a), self.tensors.get(b)) else {
            return Ok(None);
        };
        let lengths = [a, b].map(|(_, info)| info.data_offsets.1 - info.data_offsets.0);
        // Packed numbers are equal only with equal scales, which are not compared.
        if lengths[0] != lengths[1] || a.1.dtype != b.1.dtype || is_packed {
            return Ok(Some(false));
        }
        let mut parts =
            [vec![0; COMPARED_BYTES.min(lengths[0])], vec![0; COMPARED_BYTES.min(lengths[0])]];
        let mut at = 0;
        while at < lengths[0] {
            let length = COMPARED_BYTES.min(lengths[0] - at);
            for ((shard, info), part) in [a, b].into_iter().zip(&mut parts) {
                let Shard { path, data } = &self.shards[*shard];
                let start = data + (info.data_offsets.0 + at) as u64;
                read_at(path, start, &mut part[..length])?;
            }
            if parts[0][..length] != parts[1][..length] {
                return Ok(Some(false));
            }
            at += length;
        }
        Ok(Some(true))
    }

    /// Reads a vector of integers.
    pub fn integers(&mut self, name: &str, length: usize) -> Result<Vec<i64>> {
        let stored = self.take_any(name, &[length])?;
        match stored.dtype() {
            Dtype::I64 => {
                Ok(stored.bytes(0, length)?.into_iter().map(i64::from_le_bytes).collect())
            }
            Dtype::I32 => Ok(stored
                .bytes(0, length)?
                .into_iter()
                .map(|b| i32::from_le_bytes(b).into())
                .collect()),
            other => {
                Err(stored.tensor_error("type I64 or I32".to_owned(), format!("type {other:?}")))
            }
        }
    }

    /// Prefixes all names with `prefix`, if none has it: some files leave it out.
    pub fn prepend(&mut self, prefix: &str) {
        if !self.tensors.keys().any(|name| name.starts_with(prefix)) {
            self.rename(|name| match name.starts_with("lm_head.") {
                true => name.to_owned(),
                false => format!("{prefix}{name}"),
            });
        }
    }

    /// Drops the tensors whose names satisfy the predicate.
    pub fn drop_tensors(&mut self, is_dropped: impl Fn(&str) -> bool) {
        self.tensors.retain(|name, _| !is_dropped(name));
    }

    /// Numbers and scales of a matrix of this shape in MXFP4 blocks, if it is stored so.
    pub fn mxfp4(&mut self, name: &str, shape: &[usize]) -> Result<Option<[StoredTensor; 2]>> {
        let [numbers, scales] = ["blocks", "scales"].map(|end| format!("{name}_{end}"));
        if !self.tensors.contains_key(&numbers) {
            return Ok(None);
        }
        let (columns, rows) = shape.split_last().unwrap_or((&0, &[]));
        let blocks = columns / (2 * MXFP4_BYTES);
        let scales = self.take_any(&scales, &[rows, &[blocks]].concat())?;
        let numbers = self.take_any(&numbers, &[rows, &[blocks, MXFP4_BYTES]].concat())?;
        for stored in [&numbers, &scales] {
            if stored.dtype() != Dtype::U8 {
                let got = format!("type {:?}", stored.dtype());
                return Err(stored.tensor_error("type U8".to_owned(), got));
            }
        }
        Ok(Some([numbers, scales]))
    }

    /// FP8 matrix of this shape with its scales, if it is stored so.
    pub fn fp8(&mut self, name: &str, shape: &[usize]) -> Result<Option<Scaled>> {
        if !self.tensors.get(name).is_some_and(|(_, info)| is_fp8(info.dtype)) {
            return Ok(None);
        }
        let numbers = self.take_any(name, shape)?;
        let Some((scale_name, shard, info)) = self.scales.get(name) else {
            let [first, second] = SCALES.map(|end| format!("{name}{end}"));
            let expected = format!("its scales in a tensor {first} or {second}");
            return Err(numbers.tensor_error(expected, "no such tensor".to_owned()));
        };
        let scales = self.stored(scale_name, *shard, info);
        Ok(Some(Scaled { numbers, scales, shape: info.shape.clone(), block: self.block }))
    }

    /// Tensors of a packed integer matrix of this shape, if it is one.
    pub fn packed(&mut self, name: &str, shape: &[usize]) -> Result<Option<&PackedTensors>> {
        if self.packed.contains_key(name) {
            self.take_any(name, shape)?;
        }
        Ok(self.packed.get(name))
    }

    /// Tensors of a codebook matrix of this shape, if it is one.
    pub fn codebook(
        &mut self,
        name: &str,
        shape: &[usize],
    ) -> Result<Option<&codebook::CodebookTensors>> {
        if self.codebooks.contains_key(name) {
            self.take_any(name, shape)?;
        }
        Ok(self.codebooks.get(name))
    }

    /// Marks a tensor of floating-point numbers as read and returns its location; it must have this
    /// shape.
    pub fn take(&mut self, name: &str, shape: &[usize]) -> Result<StoredTensor> {
        let stored = self.take_any(name, shape)?;
        match stored.dtype() {
            Dtype::F32 | Dtype::F16 | Dtype::BF16 => Ok(stored),
            other => {
                let expected = "type F32, F16 or BF16, or F8_E4M3 with scales".to_owned();
                Err(stored.tensor_error(expected, format!("type {other:?}")))
            }
        }
    }

    /// Like [`take`](Self::take), for any type.
    fn take_any(&mut self, name: &str, shape: &[usize]) -> Result<StoredTensor> {
        let stored = self.find(name, shape)?;
        self.taken.insert(name.to_owned());
        Ok(stored)
    }

    /// Locates a tensor, which must have this shape.
    pub fn find(&self, name: &str, shape: &[usize]) -> Result<StoredTensor> {
        let Some((shard, info)) = self.tensors.get(name) else {
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
        let stored = self.stored(name, *shard, info);
        if info.shape != shape {
            return Err(
                stored.tensor_error(format!("shape {shape:?}"), format!("shape {:?}", info.shape))
            );
        }
        Ok(stored)
    }

    fn stored(&self, name: &str, shard: usize, info: &TensorInfo) -> StoredTensor {
        let Shard { path, data } = &self.shards[shard];
        StoredTensor::new(name, path, *data, info)
    }

    /// Checks that every tensor was read, except those that the predicate allows.
    pub fn check_all_read(self, allowed: impl Fn(&str) -> bool) -> Result<()> {
        let is_unread = |name: &String| !self.taken.contains(name) && !allowed(name);
        let mut unread = self.tensors.iter().filter(|(name, _)| is_unread(name));
        // Old versions of AutoGPTQ write biases of zeros.
        let is_zero_bias = |name: &str, (shard, info): &(usize, TensorInfo)| {
            let is_bias = name.strip_suffix(".bias").is_some_and(|base| {
                self.packed.contains_key(&format!("{base}.weight")) && info.shape.len() == 1
            });
            is_bias && self.stored(name, *shard, info).is_zero(&info.shape)
        };
        match unread.find(|(name, tensor)| !is_zero_bias(name, tensor)) {
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

/// FP8 matrix with its scales.
pub(crate) struct Scaled {
    pub numbers: StoredTensor,
    pub scales: StoredTensor,
    /// Shape of the scales.
    pub shape: Vec<usize>,
    /// Rows and columns that share a scale, if the configuration has a block size.
    pub block: Option<[usize; 2]>,
}
