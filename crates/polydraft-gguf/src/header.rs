//! The header of a file: magic, version, metadata and the positions of tensors.
//!
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>. All counts and positions
//! are checked against the length of the file, and tensors for overlaps, before tensors are read.

use std::collections::BTreeMap;

use crate::error::{Fault, Location, shown};
use crate::metadata::{Entries, Metadata};
use crate::reader::Reader;
use crate::source::Source;
use crate::tensor_type::TensorType;
use crate::{Error, Result};

/// Maximum length of a tensor name, by the format.
const MAX_NAME: u64 = 64;
/// Maximum number of dimensions.
const MAX_DIMENSIONS: u32 = 4;
/// Minimum size of a tensor's entry: length of the name, one letter, no dimensions, type, offset.
const MIN_ENTRY: u64 = 8 + 1 + 4 + 4 + 8;
/// Alignment of tensors if the metadata has none.
const DEFAULT_ALIGNMENT: u64 = 32;

/// Type, shape and position of a tensor.
#[derive(Debug, Clone)]
pub(crate) struct Info {
    pub kind: TensorType,
    /// Dimensions in the order of the file: the length of a row first.
    pub dimensions: Vec<usize>,
    /// Position of the first byte in the file.
    pub start: u64,
    pub bytes: u64,
}

/// The header of a file.
#[derive(Debug)]
pub(crate) struct Header {
    pub version: u32,
    pub alignment: u64,
    pub metadata: Metadata,
    pub tensors: BTreeMap<Box<str>, Info>,
}

impl Header {
    pub fn read(source: &Source) -> Result<Self> {
        let mut reader = Reader::new(source);
        let version = version(&mut reader)?;
        let location = || Location::Header;
        let tensors = reader.u64(&location)?;
        let keys = reader.u64(&location)?;
        let entries = Entries::read(&mut reader, keys)?;
        let alignment = entries.alignment(&reader)?.unwrap_or(DEFAULT_ALIGNMENT);
        let tensors = infos(&mut reader, tensors)?;
        // Offsets of tensors are relative to the aligned end of the header.
        let data = (reader.at() as u64).next_multiple_of(alignment);
        let tensors = resolve_positions(tensors, data, alignment, source)?;
        let metadata = entries.finish(source.path.clone(), reader.finish());
        Ok(Self { version, alignment, metadata, tensors })
    }
}

fn version(reader: &mut Reader) -> Result<u32> {
    let location = || Location::Header;
    let magic = reader.take(4, &location)?;
    if reader.bytes(magic.clone()) != b"GGUF" {
        let got = reader.bytes(magic).escape_ascii().to_string();
        return Err(reader.fault(Fault::header("a file that begins with GGUF", got)));
    }
    let version = reader.u32(&location)?;
    let got = match version {
        2 | 3 => return Ok(version),
        // A big-endian file, by the rule of the format: byte swapping moves a small number to the
        // upper half.
        _ if version & 0xffff == 0 && version != 0 => {
            format!("version {} in big-endian order, which is not supported", version.swap_bytes())
        }
        _ => format!("version {version}"),
    };
    Err(reader.fault(Fault::header("version 2 or 3, little-endian", got)))
}

/// Reads the entries of all tensors, whose `start` is still relative.
fn infos(reader: &mut Reader, count: u64) -> Result<BTreeMap<Box<str>, Info>> {
    let max = reader.left() / MIN_ENTRY;
    if count > max {
        let expected = format!("at most {max} tensors, by the length of the file");
        return Err(reader.fault(Fault::header(expected, format!("{count}")).incomplete()));
    }
    let mut infos = BTreeMap::new();
    for number in 0..count {
        let nth = format!("number {number}");
        let range = reader.string(MAX_NAME, &|| Location::Tensor(nth.clone()))?;
        let name = match std::str::from_utf8(reader.bytes(range)) {
            Ok(name) if !name.is_empty() => Box::<str>::from(name),
            other => {
                let got = if other.is_ok() { "an empty one" } else { "bytes that are not UTF-8" };
                return Err(reader.fault(Fault::tensor(&nth, "a name", got)));
            }
        };
        let info = info(reader, &name)?;
        if infos.insert(name.clone(), info).is_some() {
            return Err(reader.fault(Fault::tensor(&name, "one tensor", "two of that name")));
        }
    }
    Ok(infos)
}

fn info(reader: &mut Reader, name: &str) -> Result<Info> {
    let location = || Location::Tensor(shown(name));
    let invalid = |reader: &Reader, expected: String, got: String| -> Error {
        reader.fault(Fault::tensor(name, expected, got))
    };
    let count = reader.u32(&location)?;
    if count > MAX_DIMENSIONS {
        return Err(invalid(
            reader,
            format!("at most {MAX_DIMENSIONS} dimensions"),
            count.to_string(),
        ));
    }
    let mut sizes = [0; MAX_DIMENSIONS as usize];
    for size in &mut sizes[..count as usize] {
        *size = reader.u64(&location)?;
    }
    let sizes = &sizes[..count as usize];
    let number = reader.u32(&location)?;
    let kind =
        TensorType::new(number).map_err(|got| invalid(reader, "a known type".into(), got))?;
    let offset = reader.u64(&location)?;

    let size = |size: &u64| usize::try_from(*size).ok().filter(|size| *size > 0);
    let Some(dimensions) = sizes.iter().map(size).collect::<Option<Vec<usize>>>() else {
        return Err(invalid(reader, "dimensions of at least 1".into(), format!("{sizes:?}")));
    };
    let row = dimensions.first().copied().unwrap_or(1);
    if !row.is_multiple_of(kind.block()) {
        let expected = format!("rows of a multiple of {} numbers, for type {kind}", kind.block());
        return Err(invalid(reader, expected, row.to_string()));
    }
    let row_bytes = (row / kind.block()).checked_mul(kind.block_bytes());
    let bytes = dimensions
        .iter()
        .skip(1)
        .try_fold(row_bytes.unwrap_or(usize::MAX), |all, size| all.checked_mul(*size));
    let Some(bytes) = bytes.filter(|bytes| *bytes < isize::MAX as usize) else {
        return Err(invalid(
            reader,
            "a size that fits the address space".into(),
            format!("shape {sizes:?}"),
        ));
    };
    Ok(Info { kind, dimensions, start: offset, bytes: bytes as u64 })
}

/// Computes the position of every tensor, and rejects tensors that are outside of the file or
/// overlap.
fn resolve_positions(
    mut tensors: BTreeMap<Box<str>, Info>,
    data: u64,
    alignment: u64,
    source: &Source,
) -> Result<BTreeMap<Box<str>, Info>> {
    let invalid = |name: &str, expected: String, got: String| {
        Err(Fault::tensor(name, expected, got).at(&source.path))
    };
    for (name, info) in &mut tensors {
        let offset = info.start;
        if !offset.is_multiple_of(alignment) {
            return invalid(
                name,
                format!("an offset that is a multiple of {alignment}"),
                offset.to_string(),
            );
        }
        let end = data.checked_add(offset).and_then(|start| start.checked_add(info.bytes));
        if end.is_none_or(|end| end > source.length) {
            let expected = format!("its {} bytes inside the file's {}", info.bytes, source.length);
            let got = format!("offset {offset} after a header of {data}");
            return Err(Fault::tensor(name, expected, got).incomplete().at(&source.path));
        }
        info.start = data + offset;
    }
    let mut order: Vec<(&str, &Info)> =
        tensors.iter().map(|(name, info)| (&**name, info)).collect();
    order.sort_unstable_by_key(|(_, info)| info.start);
    for pair in order.windows(2) {
        let ((first, a), (second, b)) = (pair[0], pair[1]);
        if a.start + a.bytes > b.start {
            let expected = "no overlap".to_owned();
            return invalid(second, expected, format!("bytes of tensor {}", shown(first)));
        }
    }
    Ok(tensors)
}
