//! Groups the tensors of a directory that together form one codebook matrix.

use std::collections::BTreeMap;

use polydraft_gguf::MXFP4_BLOCK_SIZE;
use safetensors::tensor::{Dtype, TensorInfo};

use super::super::mxfp4::Mxfp4;
use super::super::packed_tensors::{ShapedTensor, TensorMap};
use super::super::rows;
use super::bitsandbytes::{LayerBlocks, State};
use super::{Codebook, E2M1, Order, numbers, shape_error};
use crate::error::Result;

/// Number of neighbours that share a scale in NVFP4.
const NVFP4_GROUP: usize = 16;
/// Divisor of bitsandbytes' 8-bit integers, besides their row's scale.
const INT8_MAX: f32 = 127.0;

/// Tensors of one codebook matrix.
#[derive(Debug, Clone)]
pub(crate) struct CodebookTensors {
    numbers: ShapedTensor,
    /// Rows and columns of the matrix, not of its tensor of indices.
    pub shape: [usize; 2],
    kind: Kind,
}

/// Format of a matrix, with its further tensors.
#[derive(Debug, Clone)]
enum Kind {
    /// Scales per group, a scale for the matrix, and whether the latter divides.
    Nvfp4 {
        scales: ShapedTensor,
        global_scale: ShapedTensor,
        divides: bool,
    },
    Mxfp4 {
        scales: ShapedTensor,
    },
    Blocks(Box<LayerBlocks>),
    /// One scale per row.
    Int8 {
        scales: ShapedTensor,
    },
}

/// Removes the tensors of codebook matrices from `all`, and leaves one entry for each matrix, with
/// its name and shape. `locate` finds a tensor in its file.
pub(in super::super) fn take(
    all: &mut TensorMap,
    locate: impl Fn(&str, usize, &TensorInfo) -> super::StoredTensor,
) -> Result<BTreeMap<String, CodebookTensors>> {
    let candidates: Vec<(String, Format)> = all
        .iter()
        .filter_map(|(name, (_, info))| Some((name.clone(), Format::new(all, name, info)?)))
        .collect();
    let mut found = BTreeMap::new();
    for (name, format) in candidates {
        let mut part = |name: &str| {
            let (shard, info) = all.remove(name)?;
            Some((
                shard,
                ShapedTensor { stored: locate(name, shard, &info), shape: info.shape.clone() },
                info,
            ))
        };
        let Some((shard, numbers, mut info)) = part(&name) else { continue };
        let bytes = info.data_offsets.1 - info.data_offsets.0;
        let mut shaped = |name: &str| part(name).map(|(_, shaped, _)| shaped);
        let parts = format.tensors(numbers, bytes, &mut shaped)?;
        info.shape = parts.shape.to_vec();
        let matrix = format.matrix();
        if all.insert(matrix.clone(), (shard, info)).is_some() {
            let expected = format!("no tensor {matrix} beside it");
            return Err(parts.numbers.stored.tensor_error(expected, "both".to_owned()));
        }
        found.insert(matrix, parts);
    }
    Ok(found)
}

/// Format of a matrix, recognised by the names and types of its tensors, with the beginning of
/// their names.
enum Format {
    /// `{0}.weight_packed`, with `{0}.weight_scale`.
    Compressed(String),
    /// `{0}.weight`, with `{0}.weight_scale_2`.
    ModelOptimizer(String),
    /// `{0}.weight`, and the name of the tensor with its state.
    Blocks(String, String),
    /// `{0}.weight`, with `{0}.SCB`.
    Int8(String),
}

impl Format {
    /// Format of the matrix whose numbers are in the tensor `name`, if it is one.
    fn new(all: &TensorMap, name: &str, info: &TensorInfo) -> Option<Self> {
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

    /// Name of the matrix.
    fn matrix(&self) -> String {
        let (Self::Compressed(base)
        | Self::ModelOptimizer(base)
        | Self::Blocks(base, _)
        | Self::Int8(base)) = self;
        format!("{base}.weight")
    }

    /// Collects the other tensors of the matrix with `part`.
    fn tensors(
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
                    let global_scale =
                        needed("scale of all", format!("{base}.weight_global_scale"))?;
                    Kind::Nvfp4 { scales, global_scale, divides: true }
                };
                (unpacked_shape(&numbers)?, kind)
            }
            Self::ModelOptimizer(base) => {
                let scales = needed("scales", format!("{base}.weight_scale"))?;
                let global_scale = needed("scale of all", format!("{base}.weight_scale_2"))?;
                (unpacked_shape(&numbers)?, Kind::Nvfp4 { scales, global_scale, divides: false })
            }
            Self::Blocks(base, state) => {
                let state = State::read(&needed("state", state.clone())?)?;
                let shape = state.shape(&numbers, bytes)?;
                let blocks = LayerBlocks::new(state, &format!("{base}.weight"), &mut needed)?;
                (shape, Kind::Blocks(Box::new(blocks)))
            }
            Self::Int8(base) => {
                let scales = needed("scales", format!("{base}.SCB"))?;
                // Old versions had other layouts, for kernels of some GPUs.
                if let Some(layout) = part(&format!("{base}.weight_format")) {
                    let number = super::numbers(&layout, &[Dtype::U8])?;
                    if let Some(number) = number.into_iter().find(|number| *number != 0.0) {
                        let expected = "0: numbers stored in rows".to_owned();
                        return Err(layout.stored.tensor_error(expected, number.to_string()));
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
        _ => Err(shape_error(numbers, "a matrix that is not empty")),
    }
}

/// Rows and columns of numbers that are stored two per byte.
fn unpacked_shape(numbers: &ShapedTensor) -> Result<[usize; 2]> {
    let [rows, bytes] = pair(numbers)?;
    Ok([rows, bytes.saturating_mul(2)])
}

impl CodebookTensors {
    /// Name of the type for descriptions.
    pub fn type_name(&self) -> String {
        match &self.kind {
            Kind::Nvfp4 { .. } => "NVFP4".to_owned(),
            Kind::Mxfp4 { .. } => "MXFP4".to_owned(),
            Kind::Blocks(blocks) => blocks.type_name(),
            Kind::Int8 { .. } => "INT8".to_owned(),
        }
    }

    /// Reads the matrix's scales and tables, leaving its numbers on disk.
    pub fn open(&self) -> Result<rows::MatrixSource> {
        let Self { numbers: indices, shape: [rows, columns], kind } = self;
        let check_groups = |scales: &ShapedTensor, size: usize| match columns.is_multiple_of(size) {
            true => scales.check_shape(&[*rows, columns / size]),
            false => Err(shape_error(indices, &format!("rows of a multiple of {size} numbers"))),
        };
        let book = |order, table: &[f32], scales, block| {
            let numbers = indices.stored.clone();
            let book = Codebook { numbers, order, table: table.to_vec(), scales, block };
            Ok(rows::MatrixSource::Codebook(Box::new(book)))
        };
        match kind {
            Kind::Nvfp4 { scales, global_scale, divides } => {
                check_groups(scales, NVFP4_GROUP)?;
                if global_scale.shape.iter().any(|size| *size != 1) {
                    return Err(shape_error(global_scale, "one number"));
                }
                let global_scale = numbers(global_scale, &[Dtype::F32])?[0];
                let mut scales = numbers(scales, &[Dtype::F8_E4M3])?;
                for scale in &mut scales {
                    *scale = if *divides { *scale / global_scale } else { *scale * global_scale };
                }
                book(Order::LowFirst, &E2M1, scales, NVFP4_GROUP)
            }
            Kind::Mxfp4 { scales } => {
                check_groups(scales, MXFP4_BLOCK_SIZE)?;
                let (numbers, scales) = (indices.stored.clone(), scales.stored.clone());
                let blocks = columns / MXFP4_BLOCK_SIZE;
                Ok(rows::MatrixSource::Mxfp4(Mxfp4 { numbers, scales, blocks }))
            }
            Kind::Blocks(blocks) => {
                let (table, scales) = blocks.read(rows * columns)?;
                book(Order::HighFirst, &table, scales, blocks.size())
            }
            Kind::Int8 { scales } => {
                scales.check_shape(&[*rows])?;
                let mut scales = numbers(scales, &[Dtype::F32])?;
                scales.iter_mut().for_each(|scale| *scale /= INT8_MAX);
                let table: Vec<f32> = (0..=255u8).map(|byte| f32::from(byte as i8)).collect();
                book(Order::Bytes, &table, scales, *columns)
            }
        }
    }
}
