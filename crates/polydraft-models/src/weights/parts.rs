//! Which tensors of a directory together are one matrix of whole numbers.
//!
//! Sources: the names and shapes of AutoGPTQ's and AutoAWQ's layers, and of compressed-tensors'
//! compressors.

use std::collections::BTreeMap;

use safetensors::tensor::{Dtype, TensorInfo};

use super::stored::Stored;
use crate::error::{Error, Result};
use crate::quantisation::{Kind, Packing, Scheme};

/// All that a matrix is made of.
#[derive(Debug, Clone)]
pub(crate) struct Parts {
    /// What the names of all of them begin with.
    base: String,
    pub kind: Kind,
    pub bits: u32,
    /// Rows and columns of the matrix, not of the tensor of its numbers.
    pub shape: [usize; 2],
    pub numbers: Stored,
    pub scales: Option<Shaped>,
    pub zeros: Option<Shaped>,
    /// The group of each column.
    pub index: Option<Shaped>,
    /// Which ones may hold of it.
    pub schemes: Vec<Scheme>,
}

/// A tensor with its shape.
#[derive(Debug, Clone)]
pub(crate) struct Shaped {
    pub stored: Stored,
    pub shape: Vec<usize>,
}

/// All tensors by name, with the number of their file.
pub(super) type All = BTreeMap<String, (usize, TensorInfo)>;

/// Numbers, scales, zero points and groups of columns, by the ends of their names.
const OLD: [&str; 4] = [".qweight", ".scales", ".qzeros", ".g_idx"];
const COMPRESSED: [&str; 4] =
    [".weight_packed", ".weight_scale", ".weight_zero_point", ".weight_g_idx"];
const SHAPE: &str = ".weight_shape";
const WEIGHT: &str = ".weight";

/// Whether some tensor may be such numbers: only then it matters what the configuration says.
pub(super) fn are_some(all: &All) -> bool {
    let ends = |name: &str| name.ends_with(OLD[0]) || name.ends_with(COMPRESSED[0]);
    all.iter().any(|(name, (_, info))| ends(name) || is_plain(name, info))
}

/// One number a byte.
fn is_plain(name: &str, info: &TensorInfo) -> bool {
    info.dtype == Dtype::I8 && info.shape.len() == 2 && name.ends_with(WEIGHT)
}

/// Takes the parts of matrices from among all tensors, and leaves one tensor for each, of the
/// matrix' name and shape.
pub(super) fn take(
    all: &mut All,
    packing: &Packing,
    place: impl Fn(&str, usize, &TensorInfo) -> Stored,
) -> Result<BTreeMap<String, Parts>> {
    let ends = if packing.kind == Kind::Compressed { COMPRESSED } else { OLD };
    let is_plain =
        |name: &str, info: &TensorInfo| packing.kind == Kind::Compressed && is_plain(name, info);
    let base = |name: &str, info: &TensorInfo| {
        let end = if is_plain(name, info) { WEIGHT } else { ends[0] };
        name.strip_suffix(end).map(str::to_owned)
    };
    let bases: Vec<(String, String)> = all
        .iter()
        .filter_map(|(name, (_, info))| Some((base(name, info)?, name.clone())))
        .collect();
    let mut found = BTreeMap::new();
    for (base, name) in bases {
        let matrix = format!("{base}{WEIGHT}");
        let Some((shard, mut info)) = all.remove(&name) else { continue };
        let numbers = place(&name, shard, &info);
        let mut part = |end: &str| {
            let name = format!("{base}{end}");
            let (shard, info) = all.remove(&name)?;
            Some(Shaped { stored: place(&name, shard, &info), shape: info.shape })
        };
        let [scales, zeros, index] = [1, 2, 3].map(|i| part(ends[i]));
        let claimed = part(SHAPE);
        let (bits, shape) = shape(packing, &numbers, &info, claimed.as_ref().ok_or(&base))?;
        let fits = |scheme: &&Scheme| scheme.bits == bits || info.dtype == Dtype::I8;
        let schemes: Vec<Scheme> = packing.schemes.iter().filter(fits).copied().collect();
        let kind = packing.kind;
        let parts = Parts { base, kind, bits, shape, numbers, scales, zeros, index, schemes };
        info.shape = shape.to_vec();
        if all.insert(matrix.clone(), (shard, info)).is_some() {
            let expected = format!("no tensor {matrix} beside it");
            return Err(parts.numbers.wrong(expected, "both".to_owned()));
        }
        found.insert(matrix, parts);
    }
    let lost = if packing.kind == Kind::Compressed { &[SHAPE][..] } else { &OLD[1..] };
    for (name, (shard, info)) in &*all {
        if let Some(base) = lost.iter().find_map(|end| name.strip_suffix(end)) {
            let expected = format!("a tensor {base}{} beside it", ends[0]);
            let stored = place(name, *shard, info);
            return Err(stored.wrong(expected, "no such tensor".to_owned()));
        }
    }
    Ok(found)
}

/// Bits of the numbers, and the matrix' rows and columns.
fn shape(
    packing: &Packing,
    numbers: &Stored,
    info: &TensorInfo,
    claimed: std::result::Result<&Shaped, &String>,
) -> Result<(u32, [usize; 2])> {
    let type_of = |expected: &str| {
        Err(numbers.wrong(format!("type {expected}"), format!("type {:?}", info.dtype)))
    };
    let (rows, columns) = match info.shape[..] {
        [rows, columns] if rows > 0 && columns > 0 => (rows, columns),
        _ => {
            let expected = "a matrix that is not empty".to_owned();
            return Err(numbers.wrong(expected, format!("shape {:?}", info.shape)));
        }
    };
    if info.dtype == Dtype::I8 {
        return match packing.kind {
            Kind::Compressed => Ok((8, [rows, columns])),
            Kind::Gptq { .. } | Kind::Awq => type_of("I32"),
        };
    }
    if info.dtype != Dtype::I32 {
        return type_of("I32");
    }
    let whole = |bits: u32| (32 / bits) as usize;
    let bits = packing.schemes.first().map_or(4, |scheme| scheme.bits);
    let many = |words: usize| words.saturating_mul(whole(bits));
    match packing.kind {
        Kind::Gptq { .. } => Ok((bits, [columns, many(rows)])),
        Kind::Awq => Ok((bits, [many(columns), rows])),
        Kind::Compressed => {
            let claimed = claimed.map_err(|base| {
                let expected = format!("its shape in a tensor {base}{SHAPE}");
                numbers.wrong(expected, "no such tensor".to_owned())
            })?;
            let shape = claimed.pair()?;
            let fits = |bits: &u32| {
                shape == [rows, shape[1]] && shape[1].div_ceil(whole(*bits)) == columns
            };
            let mut all = packing.schemes.iter().map(|scheme| scheme.bits);
            match all.find(fits) {
                Some(bits) => Ok((bits, shape)),
                None => {
                    let expected =
                        format!("numbers of a matrix of shape {shape:?} in words of 32 bits");
                    Err(numbers.wrong(expected, format!("shape {:?}", info.shape)))
                }
            }
        }
    }
}

impl Shaped {
    /// The two sizes that the tensor holds.
    fn pair(&self) -> Result<[usize; 2]> {
        let numbers = self.whole("I64 or I32", 2)?;
        match numbers[..].try_into().map(|pair: [i64; 2]| pair.map(usize::try_from)) {
            Ok([Ok(rows), Ok(columns)]) => Ok([rows, columns]),
            _ => Err(self.stored.wrong("two sizes".to_owned(), format!("{numbers:?}"))),
        }
    }

    /// So many whole numbers.
    pub fn whole(&self, types: &str, count: usize) -> Result<Vec<i64>> {
        self.expect(&[count])?;
        let wide = |bytes: [u8; 4]| i32::from_le_bytes(bytes).into();
        match self.stored.dtype() {
            Dtype::I64 => {
                Ok(self.stored.bytes(0, count)?.into_iter().map(i64::from_le_bytes).collect())
            }
            Dtype::I32 => Ok(self.stored.bytes(0, count)?.into_iter().map(wide).collect()),
            other => Err(self.stored.wrong(format!("type {types}"), format!("type {other:?}"))),
        }
    }

    /// That it has this shape.
    pub fn expect(&self, shape: &[usize]) -> Result<()> {
        if self.shape == shape {
            return Ok(());
        }
        let got = format!("shape {:?}", self.shape);
        Err(self.stored.wrong(format!("shape {shape:?}"), got))
    }

    /// That it has this type.
    pub fn expect_type(&self, dtype: Dtype) -> Result<()> {
        match self.stored.dtype() {
            got if got == dtype => Ok(()),
            got => Err(self.stored.wrong(format!("type {dtype:?}"), format!("type {got:?}"))),
        }
    }
}

impl Parts {
    /// That there is no tensor of its scales, or of its zero points.
    pub fn missing(&self, what: &str, number: usize) -> Error {
        let ends = if self.kind == Kind::Compressed { COMPRESSED } else { OLD };
        let expected = format!("its {what} in a tensor {}{}", self.base, ends[number]);
        self.numbers.wrong(expected, "no such tensor".to_owned())
    }

    /// What is said of their type.
    pub fn called(&self) -> String {
        format!("INT{}", self.bits)
    }
}
