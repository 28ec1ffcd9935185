//! The tensors of a model directory, by memory map.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use memmap2::Mmap;
use safetensors::tensor::{Dtype, SafeTensors, TensorInfo};
use serde::Deserialize;

use crate::{Error, Result};

/// One safetensors file.
struct Shard {
    path: PathBuf,
    map: Mmap,
    /// Where the tensors' bytes begin.
    data: usize,
}

/// All tensors of a model by name, from `model.safetensors` or from the shards of its index.
///
/// Reading a tensor copies it into f32 once; the map goes when the loader is done, so no weight is held twice.
pub(crate) struct Weights {
    shards: Vec<Shard>,
    tensors: BTreeMap<String, (usize, TensorInfo)>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

impl Weights {
    pub fn open(directory: &Path) -> Result<Self> {
        let (single, index) = (directory.join(SINGLE), directory.join(INDEX));
        let mut weights = Self { shards: Vec::new(), tensors: BTreeMap::new() };
        if single.exists() {
            weights.add_shard(single)?;
            return Ok(weights);
        }
        if !index.exists() {
            let expected = "model.safetensors or model.safetensors.index.json";
            return Err(Error::Missing { directory: directory.to_owned(), expected });
        }
        let wrong = |problem: String| Error::File { path: index.clone(), problem };
        let text =
            std::fs::read_to_string(&index).map_err(|source| Error::Read { path: index.clone(), source })?;
        let parsed: Index = serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))?;
        for name in parsed.weight_map.values().collect::<BTreeSet<_>>() {
            // A name that leads elsewhere would read files the user never pointed at.
            if Path::new(name).file_name().is_none_or(|n| n != name.as_str()) {
                return Err(wrong(format!("expected file names in this directory, found {name:?}")));
            }
            weights.add_shard(directory.join(name))?;
        }
        for (tensor, file) in &parsed.weight_map {
            if !weights.tensors.contains_key(tensor) {
                return Err(wrong(format!("expected tensor {tensor} in {file}, found no such tensor there")));
            }
        }
        Ok(weights)
    }

    fn add_shard(&mut self, path: PathBuf) -> Result<()> {
        let read = |source| Error::Read { path: path.clone(), source };
        let wrong = |problem: String| Error::File { path: path.clone(), problem };
        let file = File::open(&path).map_err(read)?;
        // SAFETY: the map is only read, and only while loading. A file that another process cuts short meanwhile ends
        // this process; no safe interface avoids that without copying every file first.
        let map = unsafe { Mmap::map(&file) }.map_err(read)?;
        let (header, metadata) = SafeTensors::read_metadata(&map).map_err(|e| {
            wrong(format!("expected a complete safetensors file, found {} bytes: {e}", map.len()))
        })?;
        let data = 8 + header;
        let shard = self.shards.len();
        for (name, info) in metadata.tensors() {
            if self.tensors.insert(name.clone(), (shard, info.clone())).is_some() {
                return Err(wrong(format!("tensor {name} is in another shard too")));
            }
        }
        self.shards.push(Shard { path, map, data });
        Ok(())
    }

    /// Takes a tensor, which must have this shape, as f32.
    pub fn take(&mut self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let values = self.take_values(name, shape)?;
        Ok(Tensor::from_vec(values, shape, &Device::Cpu)?)
    }

    /// Takes matrices of `columns` columns and stacks their rows: one product then does the work of several.
    pub fn take_stacked(&mut self, parts: &[(String, usize)], columns: usize) -> Result<Tensor> {
        let rows = parts.iter().map(|(_, rows)| rows).sum::<usize>();
        let mut values = Vec::new();
        for (name, rows) in parts {
            values.append(&mut self.take_values(name, &[*rows, columns])?);
        }
        Ok(Tensor::from_vec(values, (rows, columns), &Device::Cpu)?)
    }

    fn take_values(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let Some((shard, info)) = self.tensors.remove(name) else {
            return Err(Error::Tensor {
                path: self.shards.first().map(|s| s.path.clone()).unwrap_or_default(),
                tensor: name.to_owned(),
                expected: format!("shape {shape:?}"),
                found: "no tensor of that name".to_owned(),
            });
        };
        let shard = &self.shards[shard];
        let wrong = |expected: String, found: String| Error::Tensor {
            path: shard.path.clone(),
            tensor: name.to_owned(),
            expected,
            found,
        };
        if info.shape != shape {
            return Err(wrong(format!("shape {shape:?}"), format!("shape {:?}", info.shape)));
        }
        let (start, end) = info.data_offsets;
        let bytes = &shard.map[shard.data + start..shard.data + end];
        let values: Vec<f32> = match info.dtype {
            Dtype::F32 => bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
            Dtype::F16 => bytes.as_chunks().0.iter().map(|b| half::f16::from_le_bytes(*b).to_f32()).collect(),
            Dtype::BF16 => {
                bytes.as_chunks().0.iter().map(|b| half::bf16::from_le_bytes(*b).to_f32()).collect()
            }
            other => return Err(wrong("type F32, F16 or BF16".to_owned(), format!("type {other:?}"))),
        };
        if values.len() != shape.iter().product::<usize>() {
            return Err(wrong(format!("shape {shape:?}"), format!("{} values", values.len())));
        }
        match values.iter().position(|v| !v.is_finite()) {
            None => Ok(values),
            Some(at) => Err(wrong("finite numbers".to_owned(), format!("{} at entry {at}", values[at]))),
        }
    }

    /// That nothing is left, but for what the predicate allows.
    pub fn finish(self, allowed: impl Fn(&str) -> bool) -> Result<()> {
        match self.tensors.iter().find(|(name, _)| !allowed(name)) {
            None => Ok(()),
            Some((name, (shard, info))) => Err(Error::Tensor {
                path: self.shards[*shard].path.clone(),
                tensor: name.clone(),
                expected: "no such tensor with this config.json".to_owned(),
                found: format!("one of shape {:?}", info.shape),
            }),
        }
    }
}
