//! The header of one file: magic, version, metadata, where the tensors are.
//!
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>. Everything that the file
//! claims is checked against its length, and the tensors against each other, before anything is
//! read for them.

use std::collections::BTreeMap;

use crate::error::{Fault, Location, shown};
use crate::metadata::{Entries, Metadata};
use crate::reader::Reader;
use crate::source::Source;
use crate::tensor_type::TensorType;
use crate::{Error, Result};

/// The longest name of a tensor; the format's own limit.
const LONGEST_NAME: u64 = 64;
/// Dimensions at most.
const MOST_DIMENSIONS: u32 = 4;
/// The shortest entry of a tensor: the length of its name, one letter, no dimension, its type, its
/// place.
const SMALLEST: u64 = 8 + 1 + 4 + 4 + 8;
/// What tensors are aligned to where the metadata says nothing.
const ALIGNMENT: u64 = 32;

/// Where a tensor is, and what it is.
#[derive(Debug, Clone)]
pub(crate) struct Info {
    pub kind: TensorType,
    /// As in the file: the length of a row first.
    pub dimensions: Vec<usize>,
    /// Of its first byte in the file.
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
        let alignment = entries.alignment(&reader)?.unwrap_or(ALIGNMENT);
        let tensors = infos(&mut reader, tensors)?;
        // Tensors are placed relative to the end of the header, rounded up.
        let data = (reader.at() as u64).next_multiple_of(alignment);
        let tensors = place_all(tensors, data, alignment, source)?;
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
        // The format's own way to tell: the other order moves a small number to the upper half.
        _ if version & 0xffff == 0 && version != 0 => {
            format!("version {} in big-endian order, which is not supported", version.swap_bytes())
        }
        _ => format!("version {version}"),
    };
    Err(reader.fault(Fault::header("version 2 or 3, little-endian", got)))
}

/// The tensors' entries; `start` is still relative.
fn infos(reader: &mut Reader, count: u64) -> Result<BTreeMap<Box<str>, Info>> {
    let most = reader.left() / SMALLEST;
    if count > most {
        let expected = format!("at most {most} tensors, for which its bytes would do");
        return Err(reader.fault(Fault::header(expected, format!("{count}"))));
    }
    let mut infos = BTreeMap::new();
    for number in 0..count {
        let nth = format!("number {number}");
        let range = reader.string(LONGEST_NAME, &|| Location::Tensor(nth.clone()))?;
        let name = match std::str::from_utf8(reader.bytes(range)) {
            Ok(name) if !name.is_empty() => Box::<str>::from(name),
            other => {
                let got = if other.is_ok() { "an empty one" } else { "bytes that are no UTF-8" };
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
    let wrong = |reader: &Reader, expected: String, got: String| -> Error {
        reader.fault(Fault::tensor(name, expected, got))
    };
    let count = reader.u32(&location)?;
    if count > MOST_DIMENSIONS {
        return Err(wrong(
            reader,
            format!("at most {MOST_DIMENSIONS} dimensions"),
            count.to_string(),
        ));
    }
    let mut sizes = [0; MOST_DIMENSIONS as usize];
    for size in &mut sizes[..count as usize] {
        *size = reader.u64(&location)?;
    }
    let sizes = &sizes[..count as usize];
    let number = reader.u32(&location)?;
    let kind = TensorType::new(number).map_err(|got| wrong(reader, "a known type".into(), got))?;
    let offset = reader.u64(&location)?;

    let size = |size: &u64| usize::try_from(*size).ok().filter(|size| *size > 0);
    let Some(dimensions) = sizes.iter().map(size).collect::<Option<Vec<usize>>>() else {
        return Err(wrong(reader, "dimensions of at least 1".into(), format!("{sizes:?}")));
    };
    let row = dimensions.first().copied().unwrap_or(1);
    if !row.is_multiple_of(kind.block()) {
        let expected = format!("rows of a multiple of {} numbers, for type {kind}", kind.block());
        return Err(wrong(reader, expected, row.to_string()));
    }
    let row_bytes = (row / kind.block()).checked_mul(kind.block_bytes());
    let bytes = dimensions
        .iter()
        .skip(1)
        .try_fold(row_bytes.unwrap_or(usize::MAX), |all, size| all.checked_mul(*size));
    let Some(bytes) = bytes.filter(|bytes| *bytes < isize::MAX as usize) else {
        return Err(wrong(
            reader,
            "fewer bytes than there are addresses".into(),
            format!("shape {sizes:?}"),
        ));
    };
    Ok(Info { kind, dimensions, start: offset, bytes: bytes as u64 })
}

/// Gives every tensor its place in the file, and refuses those that are not in it or share bytes.
fn place_all(
    mut tensors: BTreeMap<Box<str>, Info>,
    data: u64,
    alignment: u64,
    source: &Source,
) -> Result<BTreeMap<Box<str>, Info>> {
    let wrong = |name: &str, expected: String, got: String| {
        Err(Fault::tensor(name, expected, got).at(&source.path))
    };
    for (name, info) in &mut tensors {
        let offset = info.start;
        if !offset.is_multiple_of(alignment) {
            return wrong(
                name,
                format!("an offset that is a multiple of {alignment}"),
                offset.to_string(),
            );
        }
        let end = data.checked_add(offset).and_then(|start| start.checked_add(info.bytes));
        if end.is_none_or(|end| end > source.length) {
            let expected = format!("its {} bytes inside the file's {}", info.bytes, source.length);
            return wrong(name, expected, format!("offset {offset} after a header of {data}"));
        }
        info.start = data + offset;
    }
    let mut order: Vec<(&str, &Info)> =
        tensors.iter().map(|(name, info)| (&**name, info)).collect();
    order.sort_unstable_by_key(|(_, info)| info.start);
    for pair in order.windows(2) {
        let ((first, before), (second, behind)) = (pair[0], pair[1]);
        if before.start + before.bytes > behind.start {
            let expected = "bytes of its own".to_owned();
            return wrong(second, expected, format!("some that are tensor {}'s too", shown(first)));
        }
    }
    Ok(tensors)
}
