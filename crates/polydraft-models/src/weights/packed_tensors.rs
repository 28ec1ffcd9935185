//! Groups the tensors of a directory that together form one matrix of integers.

use std::collections::BTreeMap;

use safetensors::tensor::{Dtype, TensorInfo};

use super::stored::StoredTensor;
use crate::error::{Error, Result};
use crate::quantisation::{Kind, Packing, Scheme};

/// Tensors and parameters of one packed matrix.
#[derive(Debug, Clone)]
pub(crate) struct PackedTensors {
    /// Common beginning of the tensors' names.
    base: String,
    pub kind: Kind,
    pub bits: u32,
    /// Rows and columns of the matrix, not of its tensor of packed numbers.
    pub shape: [usize; 2],
    pub numbers: StoredTensor,
    pub scales: Option<ShapedTensor>,
    pub zeros: Option<ShapedTensor>,
    /// Group of each column.
    pub index: Option<ShapedTensor>,
    /// Schemes that may apply to the matrix.
    pub schemes: Vec<Scheme>,
}

/// A tensor with its shape.
#[derive(Debug, Clone)]
pub(crate) struct ShapedTensor {
    pub stored: StoredTensor,
    pub shape: Vec<usize>,
}

/// All tensors by name, with the index of their file.
pub(super) type TensorMap = BTreeMap<String, (usize, TensorInfo)>;

/// Suffixes of the names of packed numbers, scales, zero points and column groups.
const GPTQ_AWQ: [&str; 4] = [".qweight", ".scales", ".qzeros", ".g_idx"];
const COMPRESSED: [&str; 4] =
    [".weight_packed", ".weight_scale", ".weight_zero_point", ".weight_g_idx"];
const SHAPE: &str = ".weight_shape";
const WEIGHT: &str = ".weight";

/// Whether any tensor may contain packed numbers; only then the configuration matters.
pub(super) fn any_packed(all: &TensorMap) -> bool {
    let suffixes = |name: &str| name.ends_with(GPTQ_AWQ[0]) || name.ends_with(COMPRESSED[0]);
    all.iter().any(|(name, (_, info))| suffixes(name) || is_plain(name, info))
}

/// Whether a tensor has one integer per byte.
fn is_plain(name: &str, info: &TensorInfo) -> bool {
    info.dtype == Dtype::I8 && info.shape.len() == 2 && name.ends_with(WEIGHT)
}

/// Removes the tensors of packed matrices from `all`, and leaves one entry for each matrix, with
/// its name and shape. `locate` finds a tensor in its file.
pub(super) fn take(
    all: &mut TensorMap,
    packing: &Packing,
    locate: impl Fn(&str, usize, &TensorInfo) -> StoredTensor,
) -> Result<BTreeMap<String, PackedTensors>> {
    let suffixes = if packing.kind == Kind::Compressed { COMPRESSED } else { GPTQ_AWQ };
    let is_plain =
        |name: &str, info: &TensorInfo| packing.kind == Kind::Compressed && is_plain(name, info);
    let base = |name: &str, info: &TensorInfo| {
        let suffix = if is_plain(name, info) { WEIGHT } else { suffixes[0] };
        name.strip_suffix(suffix).map(str::to_owned)
    };
    let bases: Vec<(String, String)> = all
        .iter()
        .filter_map(|(name, (_, info))| Some((base(name, info)?, name.clone())))
        .collect();
    let mut found = BTreeMap::new();
    for (base, name) in bases {
        let matrix = format!("{base}{WEIGHT}");
        let Some((shard, mut info)) = all.remove(&name) else { continue };
        let numbers = locate(&name, shard, &info);
        let mut take_part = |suffix: &str| {
            let name = format!("{base}{suffix}");
            let (shard, info) = all.remove(&name)?;
            Some(ShapedTensor { stored: locate(&name, shard, &info), shape: info.shape })
        };
        let [scales, zeros, index] = [1, 2, 3].map(|i| take_part(suffixes[i]));
        let stated = take_part(SHAPE);
        let (bits, shape) = shape(packing, &numbers, &info, stated.as_ref().ok_or(&base))?;
        let fits = |scheme: &&Scheme| scheme.bits == bits || info.dtype == Dtype::I8;
        let schemes: Vec<Scheme> = packing.schemes.iter().filter(fits).copied().collect();
        let kind = packing.kind;
        let parts =
            PackedTensors { base, kind, bits, shape, numbers, scales, zeros, index, schemes };
        info.shape = shape.to_vec();
        if all.insert(matrix.clone(), (shard, info)).is_some() {
            let expected = format!("no tensor {matrix} beside it");
            return Err(parts.numbers.tensor_error(expected, "both".to_owned()));
        }
        found.insert(matrix, parts);
    }
    let orphans = if packing.kind == Kind::Compressed { &[SHAPE][..] } else { &GPTQ_AWQ[1..] };
    for (name, (shard, info)) in &*all {
        if let Some(base) = orphans.iter().find_map(|suffix| name.strip_suffix(suffix)) {
            let expected = format!("a tensor {base}{} beside it", suffixes[0]);
            let stored = locate(name, *shard, info);
            return Err(stored.tensor_error(expected, "no such tensor".to_owned()));
        }
    }
    Ok(found)
}

/// Bits per number, and rows and columns of the matrix.
fn shape(
    packing: &Packing,
    numbers: &StoredTensor,
    info: &TensorInfo,
    stated: std::result::Result<&ShapedTensor, &String>,
) -> Result<(u32, [usize; 2])> {
    let unexpected_type = |expected: &str| {
        Err(numbers.tensor_error(format!("type {expected}"), format!("type {:?}", info.dtype)))
    };
    let (rows, columns) = match info.shape[..] {
        [rows, columns] if rows > 0 && columns > 0 => (rows, columns),
        _ => {
            let expected = "a matrix that is not empty".to_owned();
            return Err(numbers.tensor_error(expected, format!("shape {:?}", info.shape)));
        }
    };
    if info.dtype == Dtype::I8 {
        return match packing.kind {
            Kind::Compressed => Ok((8, [rows, columns])),
            Kind::Gptq { .. } | Kind::Awq => unexpected_type("I32"),
        };
    }
    if info.dtype != Dtype::I32 {
        return unexpected_type("I32");
    }
    let per_word = |bits: u32| (32 / bits) as usize;
    let bits = packing.schemes.first().map_or(4, |scheme| scheme.bits);
    let unpacked = |words: usize| words.saturating_mul(per_word(bits));
    match packing.kind {
        Kind::Gptq { .. } => Ok((bits, [columns, unpacked(rows)])),
        Kind::Awq => Ok((bits, [unpacked(columns), rows])),
        Kind::Compressed => {
            let stated = stated.map_err(|base| {
                let expected = format!("its shape in a tensor {base}{SHAPE}");
                numbers.tensor_error(expected, "no such tensor".to_owned())
            })?;
            let shape = stated.pair()?;
            let fits = |bits: &u32| {
                shape == [rows, shape[1]] && shape[1].div_ceil(per_word(*bits)) == columns
            };
            let mut all = packing.schemes.iter().map(|scheme| scheme.bits);
            match all.find(fits) {
                Some(bits) => Ok((bits, shape)),
                None => {
                    let expected =
                        format!("numbers of a matrix of shape {shape:?} in words of 32 bits");
                    Err(numbers.tensor_error(expected, format!("shape {:?}", info.shape)))
                }
            }
        }
    }
}

impl ShapedTensor {
    /// Two sizes that the tensor contains.
    fn pair(&self) -> Result<[usize; 2]> {
        let numbers = self.integers("I64 or I32", 2)?;
        match numbers[..].try_into().map(|pair: [i64; 2]| pair.map(usize::try_from)) {
            Ok([Ok(rows), Ok(columns)]) => Ok([rows, columns]),
            _ => Err(self.stored.tensor_error("two sizes".to_owned(), format!("{numbers:?}"))),
        }
    }

    /// Reads `count` integers; `types` names the accepted types in errors.
    pub fn integers(&self, types: &str, count: usize) -> Result<Vec<i64>> {
        self.check_shape(&[count])?;
        let widen = |bytes: [u8; 4]| i32::from_le_bytes(bytes).into();
        match self.stored.dtype() {
            Dtype::I64 => {
                Ok(self.stored.bytes(0, count)?.into_iter().map(i64::from_le_bytes).collect())
            }
            Dtype::I32 => Ok(self.stored.bytes(0, count)?.into_iter().map(widen).collect()),
            other => {
                Err(self.stored.tensor_error(format!("type {types}"), format!("type {other:?}")))
            }
        }
    }

    /// Checks the shape.
    pub fn check_shape(&self, shape: &[usize]) -> Result<()> {
        if self.shape == shape {
            return Ok(());
        }
        let got = format!("shape {:?}", self.shape);
        Err(self.stored.tensor_error(format!("shape {shape:?}"), got))
    }

    /// Checks the type.
    pub fn check_type(&self, dtype: Dtype) -> Result<()> {
        match self.stored.dtype() {
            got if got == dtype => Ok(()),
            got => {
                Err(self.stored.tensor_error(format!("type {dtype:?}"), format!("type {got:?}")))
            }
        }
    }
}

impl PackedTensors {
    /// Error about a missing tensor of scales or zero points.
    pub fn missing_tensor(&self, what: &str, number: usize) -> Error {
        let suffixes = if self.kind == Kind::Compressed { COMPRESSED } else { GPTQ_AWQ };
        let expected = format!("its {what} in a tensor {}{}", self.base, suffixes[number]);
        self.numbers.tensor_error(expected, "no such tensor".to_owned())
    }

    /// Name of the type for descriptions.
    pub fn type_name(&self) -> String {
        format!("INT{}", self.bits)
    }
}
