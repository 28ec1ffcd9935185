//! Matrices of integers of 4 or 8 bits: a value is the integer less its zero point, times a scale
//! that groups of a row's columns share.
//!
//! Sources: Frantar et al. 2022 (GPTQ), AutoGPTQ; Lin et al. 2023 (AWQ), AutoAWQ;
//! compressed-tensors. The orders of bits are those of vLLM's `pack_rows`, `pack_cols`, `awq_pack`.

use safetensors::tensor::Dtype;

use super::element::{Element, not_finite};
use super::packed_tensors::{PackedTensors, ShapedTensor};
use super::stored::StoredTensor;
use super::transpose;
use crate::error::{Error, Result};
use crate::quantisation::{Kind, Scheme, Sharing};

/// Sign bit. Flipping it turns signed bytes into unsigned ones with an offset of 128, as packed
/// numbers have.
const SIGN: u8 = 1 << 7;

/// Rows of integers with their scales and zero points.
pub(crate) struct Packed {
    numbers: StoredTensor,
    /// Transposed rows, still packed, where the file stores columns.
    rows: Option<Vec<u8>>,
    row_bytes: usize,
    bits: u32,
    /// Mask that makes signed bytes unsigned.
    flip: u8,
    /// Scales, row by row; a single scale is shared by all rows.
    scales: Vec<f32>,
    /// Zero points in the same order, or one for all.
    zeros: Vec<i16>,
    /// Number of scales per row; 0 where all rows share one.
    groups: usize,
    /// Runs of columns with a common scale: their number and the index of the scale in the row.
    runs: Vec<(usize, usize)>,
}

impl Packed {
    /// Reads the scales and zero points of a matrix, and transposes its integers where the file
    /// stores columns.
    pub fn new(parts: &PackedTensors) -> Result<Self> {
        let PackedTensors { kind, bits, shape: [rows, columns], numbers, .. } = parts;
        let (bits, [rows, columns]) = (*bits, [*rows, *columns]);
        let Some(scales) = &parts.scales else { return Err(parts.missing_tensor("scales", 1)) };
        let Scheme { sharing, is_symmetric, .. } = scheme(parts, scales)?;
        let width = match sharing {
            Sharing::Tensor | Sharing::Row => columns,
            Sharing::Group(size) => size.min(columns),
        };
        let count = columns.div_ceil(width);
        let mut read = vec![0.0; scales.shape.iter().product()];
        match scales.stored.dtype() {
            Dtype::F32 | Dtype::F16 | Dtype::BF16 => scales.stored.read(0, &mut read)?,
            other => {
                let expected = "scales of type F32, F16 or BF16".to_owned();
                return Err(scales.stored.tensor_error(expected, format!("type {other:?}")));
            }
        }
        let zeros = zeros(parts, scales, count, is_symmetric)?;
        if *kind != Kind::Compressed {
            read = transpose::columns(&read, rows);
        }
        let index = parts.index.as_ref().map(|index| index_of(index, columns, count, *kind));
        let index = index.transpose()?.flatten();
        let runs = match index {
            Some(index) => index.chunk_by(|a, b| a == b).map(|run| (run.len(), run[0])).collect(),
            None => (0..count).map(|i| (width.min(columns - i * width), i)).collect(),
        };
        let transposed = match kind {
            Kind::Gptq { .. } => Some(transpose::words(numbers, bits, [rows, columns])?),
            Kind::Awq => Some(transpose::half_bytes(numbers, [rows, columns])?),
            Kind::Compressed => None,
        };
        let is_plain = numbers.dtype() == Dtype::I8;
        Ok(Self {
            numbers: numbers.clone(),
            rows: transposed,
            row_bytes: match (is_plain, kind) {
                (true, _) => columns,
                (false, Kind::Awq) => columns.div_ceil(2),
                (false, _) => 4 * columns.div_ceil((32 / bits) as usize),
            },
            bits,
            flip: if is_plain { SIGN } else { 0 },
            groups: if sharing == Sharing::Tensor { 0 } else { count },
            scales: read,
            zeros,
            runs,
        })
    }

    /// Reads rows of `columns` values from row `first` on.
    pub fn read<T: Element>(&self, first: usize, columns: usize, values: &mut [T]) -> Result<()> {
        let count = values.len() / columns.max(1);
        let (start, length) = (first * self.row_bytes, count * self.row_bytes);
        let read: Vec<[u8; 1]>;
        let bytes = match &self.rows {
            Some(rows) => &rows[start..start + length],
            None => {
                read = self.numbers.bytes(start, length)?;
                read.as_flattened()
            }
        };
        let mut wide = vec![0u8; columns];
        let rows = values.chunks_exact_mut(columns.max(1)).zip(bytes.chunks_exact(self.row_bytes));
        for (row, (values, bytes)) in (first..).zip(rows) {
            self.unpack(bytes, &mut wide);
            let (mut values, mut numbers) = (values, &wide[..]);
            for (length, group) in &self.runs {
                let at = row * self.groups + group;
                let zero = self.zeros.get(at).or(self.zeros.first()).copied().unwrap_or(0);
                let scale = self.scales[at];
                let (run, later_values) = values.split_at_mut(*length);
                let (integers, later_numbers) = numbers.split_at(*length);
                for (value, number) in run.iter_mut().zip(integers) {
                    let wide = f32::from(i16::from(*number) - zero) * scale;
                    *value = T::from_f32(wide.to_le_bytes());
                }
                (values, numbers) = (later_values, later_numbers);
            }
        }
        match not_finite(values) {
            None => Ok(()),
            Some((at, got)) => Err(self.not_finite_error(first + at / columns, at % columns, got)),
        }
    }

    /// Unpacks a row into unsigned integers.
    fn unpack(&self, bytes: &[u8], numbers: &mut [u8]) {
        if self.bits == 4 && self.flip == 0 {
            let (pairs, last) = numbers.as_chunks_mut::<2>();
            for (pair, byte) in pairs.iter_mut().zip(bytes) {
                *pair = [byte & 15, byte >> 4];
            }
            if let ([last], Some(byte)) = (last, bytes.get(pairs.len())) {
                *last = byte & 15;
            }
            return;
        }
        for (number, byte) in numbers.iter_mut().zip(bytes) {
            *number = byte ^ self.flip;
        }
    }

    fn not_finite_error(&self, row: usize, column: usize, got: f32) -> Error {
        let got = format!("{got} in row {row}, column {column}");
        self.numbers.tensor_error("finite numbers, times their scales".to_owned(), got)
    }
}

/// Scheme that matches the shape of the scales.
fn scheme(parts: &PackedTensors, scales: &ShapedTensor) -> Result<Scheme> {
    let [rows, columns] = parts.shape;
    let shapes = |scheme: &Scheme| {
        let count = match scheme.sharing {
            Sharing::Group(size) => columns.div_ceil(size),
            Sharing::Row | Sharing::Tensor => 1,
        };
        match (parts.kind, scheme.sharing) {
            (Kind::Gptq { .. } | Kind::Awq, _) => vec![vec![count, rows]],
            (Kind::Compressed, Sharing::Tensor) => vec![vec![1], vec![], vec![1, 1]],
            (Kind::Compressed, Sharing::Row) => vec![vec![rows, 1], vec![rows]],
            (Kind::Compressed, Sharing::Group(_)) => vec![vec![rows, count]],
        }
    };
    let matching: Vec<Scheme> =
        parts.schemes.iter().filter(|one| shapes(one).contains(&scales.shape)).copied().collect();
    let Some(first) = matching.first() else {
        let mut all: Vec<String> =
            parts.schemes.iter().map(|scheme| format!("{:?}", shapes(scheme)[0])).collect();
        all.dedup();
        let expected = format!("scales of shape {}, as config.json says", all.join(" or "));
        return Err(scales.stored.tensor_error(expected, format!("shape {:?}", scales.shape)));
    };
    // Number of columns that share a scale; groups may be longer than a row.
    let width = |scheme: &Scheme| match scheme.sharing {
        Sharing::Group(size) => size.min(columns),
        Sharing::Row | Sharing::Tensor => columns,
    };
    if matching.iter().any(|other| width(other) != width(first)) {
        let expected = "scales of a shape that one group of config.json explains".to_owned();
        let got = format!("shape {:?}, which several do", scales.shape);
        return Err(scales.stored.tensor_error(expected, got));
    }
    Ok(Scheme { is_symmetric: matching.iter().any(|scheme| scheme.is_symmetric), ..*first })
}

/// Zero points: row by row, or one for all.
fn zeros(
    parts: &PackedTensors,
    scales: &ShapedTensor,
    count: usize,
    is_symmetric: bool,
) -> Result<Vec<i16>> {
    let [rows, _] = parts.shape;
    let middle = match parts.numbers.dtype() {
        Dtype::I8 => 128,
        _ => 1 << (parts.bits - 1),
    };
    let zeros = match &parts.zeros {
        Some(zeros) => zeros,
        None if is_symmetric => return Ok(vec![middle]),
        None => return Err(parts.missing_tensor("zero points", 2)),
    };
    if zeros.stored.dtype() == Dtype::I8 && parts.kind == Kind::Compressed {
        zeros.check_shape(&scales.shape)?;
        let bytes: Vec<[u8; 1]> = zeros.stored.bytes(0, scales.shape.iter().product())?;
        return Ok(bytes.into_iter().map(|b| middle + i16::from(i8::from_le_bytes(b))).collect());
    }
    zeros.check_type(Dtype::I32)?;
    let words = rows.div_ceil((32 / parts.bits) as usize);
    let shape = match parts.kind {
        Kind::Compressed => [words, count],
        Kind::Gptq { .. } | Kind::Awq => [count, words],
    };
    zeros.check_shape(&shape)?;
    let read: Vec<[u8; 4]> = zeros.stored.bytes(0, words * count)?;
    let per_word = (32 / parts.bits) as usize;
    let word = |row: usize, group: usize| match parts.kind {
        Kind::Compressed => row / per_word * count + group,
        Kind::Gptq { .. } | Kind::Awq => group * words + row / per_word,
    };
    let offset = i16::from(parts.kind == Kind::Gptq { zeros_minus_one: true });
    let mask = (1 << parts.bits) - 1;
    let groups = (0..rows).flat_map(|row| (0..count).map(move |group| (row, group)));
    let zero = |(row, group): (usize, usize)| {
        let position = match parts.kind {
            Kind::Awq => transpose::AWQ_ORDER[row % per_word],
            Kind::Gptq { .. } | Kind::Compressed => row % per_word,
        };
        let number = u32::from_le_bytes(read[word(row, group)]) >> (parts.bits * position as u32);
        (number & mask) as i16 + offset
    };
    Ok(groups.map(zero).collect())
}

/// Group of every column; `None` where the tensor is only a placeholder.
fn index_of(
    index: &ShapedTensor,
    columns: usize,
    groups: usize,
    kind: Kind,
) -> Result<Option<Vec<usize>>> {
    let numbers = index.integers("I32 or I64", columns)?;
    if kind == Kind::Compressed && numbers.contains(&-1) {
        return Ok(None);
    }
    let group = |number: &i64| usize::try_from(*number).ok().filter(|number| *number < groups);
    let all: Option<Vec<usize>> = numbers.iter().map(group).collect();
    match all {
        Some(all) => Ok(Some(all)),
        None => {
            let invalid = numbers.iter().find(|number| group(number).is_none());
            let got = invalid.map_or_else(String::new, i64::to_string);
            Err(index.stored.tensor_error(format!("numbers of {groups} groups"), got))
        }
    }
}
