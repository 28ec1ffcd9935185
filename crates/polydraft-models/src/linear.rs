//! Weight matrices, in full or in fewer bits.

use std::fmt;
use std::str::FromStr;

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Result, Tensor, bail};

use crate::DeviceName;
use crate::copy_file::CopyReader;
use crate::importance::Importance;
use crate::packed::{Format, Packed};
use crate::rows::{Rows, apart};
use crate::weights::{self, Part, Weights};

/// How weight matrices are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// 32 bits: the model as published, in the plainest form.
    #[default]
    F32,
    /// 16 bits. On a CPU they are widened as they are read, and all arithmetic is in 32 bits: a
    /// model published in f16 gives what `F32` gives, in half the memory.
    F16,
    /// 16 bits with the range of 32; on a CPU as `F16`.
    Bf16,
    /// 8 bits in blocks of 32 with a scale. What is sampled exactly is then another model: the
    /// quantised one, whose products take their inputs rounded to 8 bits in blocks of 32 with a
    /// scale too.
    Q8_0,
    /// The weights of `Q8_0`, with products in f32: the model sampled is the quantised one, its
    /// inputs as they are. Slower for several rows. On a card the same as `Q8_0`.
    Q8_0F32,
    /// 4 bits in blocks of 32 with a scale; inputs rounded as for `Q8_0`.
    Q4_0,
    /// 4 bits in blocks of 32 with a scale and a minimum; inputs rounded as for `Q8_0`.
    Q4_1,
    /// 5 bits in blocks of 32 with a scale and a minimum; inputs rounded as for `Q8_0`.
    Q5_1,
    /// 4 bits in blocks of 256 with two levels of scales and minima; inputs rounded as for `Q8_0`.
    /// Matrices that such blocks do not fit into are held in `Q8_0`. Slow to load: good scales are
    /// searched for.
    Q4K,
    /// Each matrix as its file has it, in about the bytes that it has there: no weight is rounded.
    /// What is in blocks of integers is multiplied as `Q8_0` is, its inputs rounded. On a card all
    /// matrices are held in 32 bits.
    File,
}

impl Precision {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Q8_0,
        Self::Q8_0F32,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_1,
        Self::Q4K,
        Self::File,
    ];

    /// The name that users type.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q8_0 => "q8_0",
            Self::Q8_0F32 => "q8_0-f32",
            Self::Q4_0 => "q4_0",
            Self::Q4_1 => "q4_1",
            Self::Q5_1 => "q5_1",
            Self::Q4K => "q4_k",
            Self::File => "file",
        }
    }

    /// Whether numbers are rounded to blocks of integers.
    pub fn is_quantised(self) -> bool {
        !matches!(self, Self::F32 | Self::F16 | Self::Bf16 | Self::File)
    }

    /// How a copy of a model that drafts for it is best held on a device: the first of these that
    /// is small enough. On a processor five bits with a minimum, or four; with scales that were
    /// searched for, small models' are accepted 0.9 and 0.8 of the time then. On a card weights are
    /// rounded as they come, and eight bits agree with the model almost always.
    pub(crate) fn of_copy(device: DeviceName) -> &'static [Self] {
        match device {
            DeviceName::Cpu => &[Self::Q5_1, Self::Q4_1, Self::Q4_0],
            _ => &[Self::Q8_0, Self::Q4_0],
        }
    }

    /// Whether its scales are searched for where it is known what errors count.
    pub(crate) fn is_searched(self) -> bool {
        matches!(self, Self::Q4_0 | Self::Q4_1 | Self::Q5_1 | Self::Q4K)
    }

    /// How a matrix is held that is only read by rows: never quantised.
    pub(crate) fn for_lookup(self) -> Self {
        if self.is_quantised() { Self::F32 } else { self }
    }

    /// On a processor.
    pub(crate) fn format(self) -> Format {
        match self {
            // What is held as in the file is asked for by what is exact there.
            Self::F32 | Self::File => Format::F32,
            Self::F16 => Format::F16,
            Self::Bf16 => Format::Bf16,
            Self::Q8_0 => Format::Q8_0,
            Self::Q8_0F32 => Format::Q8_0F32,
            Self::Q4_0 => Format::Q4_0,
            Self::Q4_1 => Format::Q4_1,
            Self::Q5_1 => Format::Q5_1,
            Self::Q4K => Format::Q4K,
        }
    }

    /// On a card, where it is quantised there.
    fn kind(self) -> Option<GgmlDType> {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 | Self::File => None,
            Self::Q8_0 | Self::Q8_0F32 => Some(GgmlDType::Q8_0),
            Self::Q4_0 => Some(GgmlDType::Q4_0),
            Self::Q4_1 => Some(GgmlDType::Q4_1),
            Self::Q5_1 => Some(GgmlDType::Q5_1),
            Self::Q4K => Some(GgmlDType::Q4K),
        }
    }

    /// What a matrix of so many columns is held in.
    pub(crate) fn fitting(self, columns: usize) -> Self {
        [self, Self::Q8_0]
            .into_iter()
            .find(|p| columns.is_multiple_of(p.format().unit()))
            .unwrap_or(Self::F32)
    }

    /// What everything but the matrices is computed in.
    pub(crate) fn compute(self, device: &Device) -> DType {
        match self {
            _ if device.is_cpu() => DType::F32,
            Self::F16 => DType::F16,
            Self::Bf16 => DType::BF16,
            _ => DType::F32,
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        let names: Vec<_> = Self::ALL.iter().map(|p| p.name()).collect();
        Self::ALL
            .into_iter()
            .find(|p| p.name() == name)
            .ok_or_else(|| format!("expected one of {}, got {name:?}", names.join(", ")))
    }
}

/// A matrix of shape `[out, in]` that rows are multiplied with.
#[derive(Debug)]
pub(crate) enum Matrix {
    /// On a card.
    Full(Tensor),
    /// On a processor.
    Packed(Packed),
    /// On a card, in a format of candle's own.
    Quantised(QTensor),
    /// Rows of one behind those of the other, each held in its own way.
    Stacked(Vec<Matrix>),
}

impl Matrix {
    /// Reads and stacks `parts`.
    pub fn load(
        weights: &mut Weights,
        parts: &[Part],
        columns: usize,
        precision: Precision,
        device: &Device,
    ) -> crate::Result<Self> {
        let rows = weights.stacked(parts, columns)?;
        if precision != Precision::File || !device.is_cpu() {
            return Self::held(precision, &rows, device);
        }
        let runs = rows.exactly().into_iter();
        let matrices = runs.map(|(format, rows)| Self::packed(format, &rows));
        let mut matrices = matrices.collect::<crate::Result<Vec<Self>>>()?;
        match matrices.len() {
            1 => Ok(matrices.remove(0)),
            _ => Ok(Self::Stacked(matrices)),
        }
    }

    fn held(precision: Precision, rows: &weights::Rows, device: &Device) -> crate::Result<Self> {
        let columns = rows.columns;
        let precision = precision.fitting(columns);
        if device.is_cpu() {
            return Self::packed(precision.format(), rows);
        }
        match precision.kind() {
            Some(kind) => Ok(Self::quantised(rows.all()?, columns, kind, device)?),
            None => {
                let tensor = Tensor::from_vec(rows.all()?, ((), columns), &Device::Cpu)?;
                Ok(Self::Full(tensor.to_dtype(precision.compute(device))?.to_device(device)?))
            }
        }
    }

    fn packed(format: Format, rows: &weights::Rows) -> crate::Result<Self> {
        Packed::load(format, rows.count(), rows.columns, rows).map(Self::Packed)
    }

    fn quantised(
        values: Vec<f32>,
        columns: usize,
        kind: GgmlDType,
        device: &Device,
    ) -> Result<Self> {
        let tensor = Tensor::from_vec(values, ((), columns), &Device::Cpu)?;
        QTensor::quantize_onto(&tensor, kind, device).map(Self::Quantised)
    }

    /// The numbers that are held here, rounded to `precision`; where scales are searched for,
    /// errors count as `columns` say.
    pub fn rounded(
        &self,
        precision: Precision,
        device: &Device,
        columns: Option<&[f32]>,
    ) -> crate::Result<Self> {
        let values = match self {
            Self::Packed(weights) => {
                let format = precision.fitting(weights.shape()[1]).format();
                return Ok(Self::Packed(weights.rounded(format, columns)));
            }
            Self::Stacked(parts) => {
                let parts = parts.iter().map(|part| part.rounded(precision, device, columns));
                return Ok(Self::Stacked(parts.collect::<crate::Result<_>>()?));
            }
            Self::Full(weights) => weights.to_dtype(DType::F32)?,
            Self::Quantised(weights) => weights.dequantize(device)?,
        };
        let precision = precision.fitting(values.dim(1)?);
        match precision.kind() {
            Some(kind) => {
                let values = values.to_device(&Device::Cpu)?;
                Ok(Self::Quantised(QTensor::quantize_onto(&values, kind, device)?))
            }
            None => Ok(Self::Full(values.to_dtype(precision.compute(device))?)),
        }
    }

    /// What [`rounded`](Self::rounded) made of these numbers before, from a file; `name` is the one
    /// that [`bytes_by_name`](Self::bytes_by_name) was given.
    pub fn kept(&self, name: &str, precision: Precision, file: &CopyReader) -> crate::Result<Self> {
        match self {
            Self::Packed(weights) => {
                let shape @ [_, columns] = weights.shape();
                file.matrix(name, precision.fitting(columns).format(), shape).map(Self::Packed)
            }
            Self::Stacked(parts) => {
                let parts = parts.iter().enumerate();
                let parts =
                    parts.map(|(n, part)| part.kept(&format!("{name}.{n}"), precision, file));
                Ok(Self::Stacked(parts.collect::<crate::Result<_>>()?))
            }
            Self::Full(_) | Self::Quantised(_) => Err(file.wrong(name, "a matrix on a processor")),
        }
    }

    /// The numbers on a processor as they lie in memory, by a name that begins with `name`.
    pub fn bytes_by_name(&self, name: String) -> Vec<(String, &[u8])> {
        match self {
            Self::Packed(weights) => vec![(name, weights.as_bytes())],
            Self::Stacked(parts) => {
                let parts = parts.iter().enumerate();
                parts.flat_map(|(n, part)| part.bytes_by_name(format!("{name}.{n}"))).collect()
            }
            Self::Full(_) | Self::Quantised(_) => Vec::new(),
        }
    }

    /// `x [rows, in]` times the transposed matrix: `[rows, out]`. A copy may be held in other
    /// numbers than those that are computed in, which cards do not multiply with each other.
    pub fn forward(&self, x: &Rows) -> Result<Rows> {
        match (self, x) {
            (Self::Stacked(parts), x) => {
                let parts = parts.iter().map(|part| part.forward(x)).collect::<Result<Vec<_>>>()?;
                Rows::beside(&parts)
            }
            (Self::Packed(weights), Rows::Host { numbers, width }) => {
                weights.forward(numbers, *width)
            }
            (Self::Full(weights), Rows::Card(x)) => {
                let y = x.to_dtype(weights.dtype())?.matmul(&weights.t()?)?;
                y.to_dtype(x.dtype()).map(Rows::Card)
            }
            (Self::Quantised(weights), Rows::Card(x)) => {
                let y = x.to_dtype(DType::F32)?.apply_op1_no_bwd(weights)?;
                y.to_dtype(x.dtype()).map(Rows::Card)
            }
            _ => apart("product"),
        }
    }

    /// The rows of the matrix at `ids`: `[ids, in]`.
    pub fn rows(&self, ids: &[u32], device: &Device, dtype: DType) -> Result<Rows> {
        let rows = match self {
            Self::Full(weights) => weights.index_select(&Tensor::new(ids, device)?, 0)?,
            Self::Packed(weights) => return weights.rows(ids),
            Self::Quantised(weights) => weights.embedding(&Tensor::new(ids, device)?)?,
            Self::Stacked(_) => bail!("rows of a matrix: expected one tensor, got several"),
        };
        rows.to_dtype(dtype).map(Rows::Card)
    }

    /// The rows at `ids` as a matrix of their own, held in the same way.
    pub fn select(&self, ids: &[u32], device: &Device) -> Result<Self> {
        Ok(match self {
            Self::Full(weights) => Self::Full(weights.index_select(&Tensor::new(ids, device)?, 0)?),
            Self::Packed(weights) => Self::Packed(weights.select(ids)?),
            Self::Quantised(weights) => {
                let rows =
                    weights.embedding(&Tensor::new(ids, device)?)?.to_device(&Device::Cpu)?;
                Self::Quantised(QTensor::quantize_onto(&rows, weights.dtype(), device)?)
            }
            Self::Stacked(_) => bail!("rows of a matrix: expected one tensor, got several"),
        })
    }

    /// Bytes that the numbers take.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Full(weights) => weights.elem_count() * weights.dtype().size_in_bytes(),
            Self::Packed(weights) => weights.bytes(),
            Self::Quantised(weights) => weights.storage_size_in_bytes(),
            Self::Stacked(parts) => parts.iter().map(Self::bytes).sum(),
        }
    }
}

/// A product with a matrix and, in some families, a bias.
#[derive(Debug)]
pub(crate) struct Linear {
    pub matrix: Matrix,
    /// One row.
    pub bias: Option<Rows>,
    /// What it is multiplied with, while somebody wants to know.
    pub inputs: Option<Importance>,
}

impl Linear {
    /// `x [rows, in]` to `[rows, out]`.
    pub fn forward(&self, x: &Rows) -> Result<Rows> {
        if let Some(inputs) = &self.inputs {
            inputs.note(x)?;
        }
        let y = self.matrix.forward(x)?;
        match &self.bias {
            None => Ok(y),
            Some(bias) => y.add(bias),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a card a copy may be held in other numbers than those that are computed in. Its tensors,
    /// on this processor.
    #[test]
    fn a_card_multiplies_what_is_held_otherwise() {
        let weights: Vec<f32> = (0..64).map(|n| (n % 7) as f32 - 3.0).collect();
        let tensor = Tensor::from_slice(&weights, (2, 32), &Device::Cpu).unwrap();
        let quantised = QTensor::quantize_onto(&tensor, GgmlDType::Q8_0, &Device::Cpu).unwrap();
        let full = |dtype| Matrix::Full(tensor.to_dtype(dtype).unwrap());
        let row: Vec<f32> = (0..32).map(|n| (n % 5) as f32).collect();
        let expected: Vec<f32> = weights
            .chunks(32)
            .map(|weights| weights.iter().zip(&row).map(|(w, x)| w * x).sum())
            .collect();
        let matrices = [full(DType::F16), full(DType::F32), Matrix::Quantised(quantised)];
        for (matrix, dtype) in
            matrices.iter().flat_map(|matrix| [(matrix, DType::F32), (matrix, DType::F16)])
        {
            let x =
                Tensor::from_slice(&row, (1, 32), &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
            let Rows::Card(y) = matrix.forward(&Rows::Card(x)).unwrap() else {
                panic!("not a tensor")
            };
            assert_eq!(y.dtype(), dtype);
            let found: Vec<f32> =
                y.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap();
            let near = found.iter().zip(&expected).all(|(y, expected)| (y - expected).abs() < 0.3);
            assert!(near, "{matrix:?}, {dtype:?}: {found:?}, expected {expected:?}");
        }
    }
}
