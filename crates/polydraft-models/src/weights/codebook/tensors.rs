//! Which tensors of a directory together are one matrix of indices.
//!
//! Sources: the names and shapes of compressed-tensors' NVFP4 and MXFP4, of NVIDIA's Model
//! Optimizer, and of bitsandbytes' `Linear4bit` and `Linear8bitLt`.

use std::collections::BTreeMap;

use polydraft_gguf::MXFP4_BLOCK_SIZE;
use safetensors::tensor::{Dtype, TensorInfo};

use super::super::mxfp4::Mxfp4;
use super::super::packed_tensors::{TensorMap, ShapedTensor};
use super::super::rows;
use super::bitsandbytes::{LayerBlocks, State};
use super::{Codebook, E2M1, Order, numbers, wrong};
use crate::error::Result;

/// Neighbours that share a scale in NVFP4.
const NVFP4_GROUP: usize = 16;
/// What bitsandbytes' whole numbers of 8 bits are divided by, beside their row's scale.
const INT8_MOST: f32 = 127.0;

/// All that a matrix is made of.
#[derive(Debug, Clone)]
pub(crate) struct CodebookTensors {
    numbers: ShapedTensor,
    /// Rows and columns of the matrix, not of the tensor of its numbers.
    pub shape: [usize; 2],
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    /// With the scale of all, and whether that divides.
    Nvfp4 {
        scales: ShapedTensor,
        of_all: ShapedTensor,
        divides: bool,
    },
    Mxfp4 {
        scales: ShapedTensor,
    },
    Blocks(Box<LayerBlocks>),
    /// With a scale a row.
    Int8 {
        scales: ShapedTensor,
    },
}

/// Takes the parts of such matrices from among all tensors, and leaves one tensor for each, of the
/// matrix' name and shape.
pub(in super::super) fn take(
    all: &mut TensorMap,
    place: impl Fn(&str, usize, &TensorInfo) -> super::StoredTensor,
) -> Result<BTreeMap<String, CodebookTensors>> {
    let candidates: Vec<(String, Names)> = all
        .iter()
        .filter_map(|(name, (_, info))| Some((name.clone(), Names::of(all, name, info)?)))
        .collect();
    let mut found = BTreeMap::new();
    for (name, names) in candidates {
        let mut part = |name: &str| {
            let (shard, info) = all.remove(name)?;
            Some((
                shard,
                ShapedTensor { stored: place(name, shard, &info), shape: info.shape.clone() },
                info,
            ))
        };
        let Some((shard, numbers, mut info)) = part(&name) else { continue };
        let bytes = info.data_offsets.1 - info.data_offsets.0;
        let mut shaped = |name: &str| part(name).map(|(_, shaped, _)| shaped);
        let parts = names.parts(numbers, bytes, &mut shaped)?;
        info.shape = parts.shape.to_vec();
        let matrix = names.matrix();
        if all.insert(matrix.clone(), (shard, info)).is_some() {
            let expected = format!("no tensor {matrix} beside it");
            return Err(parts.numbers.stored.tensor_error(expected, "both".to_owned()));
        }
        found.insert(matrix, parts);
    }
    Ok(found)
}

/// Of which kind a matrix is, by the names and types of its tensors.
enum Names {
    /// `{0}.weight_packed`, with `{0}.weight_scale`.
    Compressed(String),
    /// `{0}.weight`, with `{0}.weight_scale_2`.
    ModelOptimizer(String),
    /// `{0}.weight`, with the name of its state.
    Blocks(String, String),
    /// `{0}.weight`, with `{0}.SCB`.
    Int8(String),
}

impl Names {
    fn of(all: &TensorMap, name: &str, info: &TensorInfo) -> Option<Self> {
        if let Some(base) = name.strip_suffix(".weight_packed") {
            return (info.dtype == Dtype::U8).then(|| Self::Compressed(base.to_owned()));
        }
        let base = name.strip_suffix(".weight")?;
        if let Some(state) = State::name(name, |state| all.contains_key(state)) {
            return Some(Self::Blocks(base.to_owned(), state));
        }
        let has = |end: &str| all.contains_key(&format!("{base}.{end}"));
        match info.dtype {
            Dtype::U8 if has("weight_scale_2") => Some(Self::ModelOptimizer(base.to_owned())),
            Dtype::I8 if has("SCB") => Some(Self::Int8(base.to_owned())),
            _ => None,
        }
    }

    fn matrix(&self) -> String {
        let (Self::Compressed(base)
        | Self::ModelOptimizer(base)
        | Self::Blocks(base, _)
        | Self::Int8(base)) = self;
        format!("{base}.weight")
    }

    fn parts(
        &self,
        numbers: ShapedTensor,
        bytes: usize,
        part: &mut dyn FnMut(&str) -> Option<ShapedTensor>,
    ) -> Result<CodebookTensors> {
        let mut needed = |what: &str, name: String| {
            part(&name).ok_or_else(|| {
                let expected = format!("its {what} in a tensor {name}");
                numbers.stored.tensor_error(expected, "no such tensor".to_owned())
            })
        };
        let (shape, kind) = match self {
            Self::Compressed(base) => {
                let scales = needed("scales", format!("{base}.weight_scale"))?;
                let is_mx = matches!(scales.stored.dtype(), Dtype::U8 | Dtype::F8_E8M0);
                let kind = if is_mx {
                    Kind::Mxfp4 { scales }
                } else {
                    let of_all = needed("scale of all", format!("{base}.weight_global_scale"))?;
                    Kind::Nvfp4 { scales, of_all, divides: true }
                };
                (halves(&numbers)?, kind)
            }
            Self::ModelOptimizer(base) => {
                let scales = needed("scales", format!("{base}.weight_scale"))?;
                let of_all = needed("scale of all", format!("{base}.weight_scale_2"))?;
                (halves(&numbers)?, Kind::Nvfp4 { scales, of_all, divides: false })
            }
            Self::Blocks(base, state) => {
                let state = State::read(&needed("state", state.clone())?)?;
                let shape = state.shape(&numbers, bytes)?;
                let blocks = LayerBlocks::new(state, &format!("{base}.weight"), &mut needed)?;
                (shape, Kind::Blocks(Box::new(blocks)))
            }
            Self::Int8(base) => {
                let scales = needed("scales", format!("{base}.SCB"))?;
                // Old versions had other orders, for kernels of some GPUs.
                if let Some(order) = part(&format!("{base}.weight_format")) {
                    let number = super::numbers(&order, &[Dtype::U8])?;
                    if let Some(number) = number.into_iter().find(|number| *number != 0.0) {
                        let expected = "0: numbers that lie in rows".to_owned();
                        return Err(order.stored.tensor_error(expected, number.to_string()));
                    }
                }
                (pair(&numbers)?, Kind::Int8 { scales })
            }
        };
        Ok(CodebookTensors { numbers, shape, kind })
    }
}

/// Rows and columns of a tensor of bytes.
fn pair(numbers: &ShapedTensor) -> Result<[usize; 2]> {
    match numbers.shape[..] {
        [rows @ (1..), columns @ (1..)] => Ok([rows, columns]),
        _ => Err(wrong(numbers, "a matrix that is not empty")),
    }
}

/// Those of the numbers that lie two in a byte.
fn halves(numbers: &ShapedTensor) -> Result<[usize; 2]> {
    let [rows, bytes] = pair(numbers)?;
    Ok([rows, bytes.saturating_mul(2)])
}

impl CodebookTensors {
    /// What is said of their type.
    pub fn type_name(&self) -> String {
        match &self.kind {
            Kind::Nvfp4 { .. } => "NVFP4".to_owned(),
            Kind::Mxfp4 { .. } => "MXFP4".to_owned(),
            Kind::Blocks(blocks) => blocks.type_name(),
            Kind::Int8 { .. } => "INT8".to_owned(),
        }
    }

    /// The matrix, all but its numbers read.
    pub fn open(&self) -> Result<rows::MatrixSource> {
        let Self { numbers: indices, shape: [rows, columns], kind } = self;
        let groups = |of: &ShapedTensor, size: usize| match columns.is_multiple_of(size) {
            true => of.expect(&[*rows, columns / size]),
            false => Err(wrong(indices, &format!("rows of a multiple of {size} numbers"))),
        };
        let book = |order, table: &[f32], scales, block| {
            let numbers = indices.stored.clone();
            let book = Codebook { numbers, order, table: table.to_vec(), scales, block };
            Ok(rows::MatrixSource::Codebook(Box::new(book)))
        };
        match kind {
            Kind::Nvfp4 { scales, of_all, divides } => {
                groups(scales, NVFP4_GROUP)?;
                if of_all.shape.iter().any(|size| *size != 1) {
                    return Err(wrong(of_all, "one number"));
                }
                let of_all = numbers(of_all, &[Dtype::F32])?[0];
                let mut scales = numbers(scales, &[Dtype::F8_E4M3])?;
                for scale in &mut scales {
                    *scale = if *divides { *scale / of_all } else { *scale * of_all };
                }
                book(Order::LowFirst, &E2M1, scales, NVFP4_GROUP)
            }
            Kind::Mxfp4 { scales } => {
                groups(scales, MXFP4_BLOCK_SIZE)?;
                let (numbers, scales) = (indices.stored.clone(), scales.stored.clone());
                let blocks = columns / MXFP4_BLOCK_SIZE;
                Ok(rows::MatrixSource::Mxfp4(Mxfp4 { numbers, scales, blocks }))
            }
            Kind::Blocks(blocks) => {
                let (table, scales) = blocks.read(rows * columns)?;
                book(Order::HighFirst, &table, scales, blocks.size())
            }
            Kind::Int8 { scales } => {
                scales.expect(&[*rows])?;
                let mut scales = numbers(scales, &[Dtype::F32])?;
                scales.iter_mut().for_each(|scale| *scale /= INT8_MOST);
                let table: Vec<f32> = (0..=255u8).map(|byte| f32::from(byte as i8)).collect();
                book(Order::Bytes, &table, scales, *columns)
            }
        }
    }
}
