//! Locates the tensors of a `pytorch_model.bin`: an uncompressed zip archive with a pickle that
//! lists them.
//!
//! The tensors are then read from the file itself, like those of a safetensors file.

mod objects;

use std::collections::{BTreeMap, HashMap};
use std::io::{BufReader, Read as _};
use std::path::Path;

use safetensors::tensor::{Dtype, TensorInfo};
use zip::{CompressionMethod, ZipArchive};

use crate::error::{Error, Result};
use objects::{Object, ObjectId, Objects, ReadResult};

/// Maximum length of the pickle in bytes. The list of a head's tensors takes a few thousand bytes,
/// one of a vocabulary's tokens five bytes per token.
const MAX_PICKLE_BYTES: u64 = 1 << 20;
/// Maximum number of dimensions of a tensor, as in PyTorch.
const MAX_DIMENSIONS: usize = 64;

/// Tensors by name; their offsets count from the file's first byte.
pub(super) fn tensors(path: &Path) -> Result<BTreeMap<String, TensorInfo>> {
    read(path, |objects, entries| {
        let Object::Dict(pairs) = objects.get(objects.root) else {
            return Err("expected a dictionary of tensors".to_owned());
        };
        let mut tensors = BTreeMap::new();
        for [name, value] in pairs {
            let Object::Str(name) = objects.get(*name) else { continue };
            // Other values describe the dictionary.
            if let Some(info) =
                tensor(objects, *value, entries).map_err(|e| format!("tensor {name}: {e}"))?
                && tensors.insert((*name).to_owned(), info).is_some()
            {
                return Err(format!("expected tensor {name} once, got it again"));
            }
        }
        Ok(tensors)
    })
}

/// Reads a pickle that is a list of integers.
pub(crate) fn integers(path: &Path) -> Result<Vec<usize>> {
    read(path, |objects, _| match objects.get(objects.root) {
        Object::List(values) | Object::Tuple(values) => numbers(objects, values),
        _ => Err("expected a list of numbers".to_owned()),
    })
}

/// Reads the pickle and converts it, given the offsets of the archive's other entries.
fn read<T>(path: &Path, convert: fn(&Objects, &ZipEntries) -> ReadResult<T>) -> Result<T> {
    let invalid = |problem: String| Error::File { path: path.to_owned(), problem };
    let failed = |source| Error::Read { path: path.to_owned(), source };
    let file = polydraft_files::open(path).map_err(failed)?;
    let invalid_zip =
        |e: zip::result::ZipError| invalid(format!("expected a zip as PyTorch writes it: {e}"));
    let mut zip = ZipArchive::new(BufReader::new(file)).map_err(invalid_zip)?;
    let (mut entries, mut pickle) = (ZipEntries::new(), Vec::new());
    for number in 0..zip.len() {
        let mut entry = zip.by_index_raw(number).map_err(invalid_zip)?;
        // All entries are in one folder.
        let name = entry
            .name()
            .map_err(invalid_zip)?
            .split_once('/')
            .map_or("", |(_, name)| name)
            .to_owned();
        if entry.compression() != CompressionMethod::Stored {
            return Err(invalid(format!(
                "expected entries that are not compressed, got {name}, which is compressed"
            )));
        }
        if name == "data.pkl" {
            if entry.size() > MAX_PICKLE_BYTES {
                let got = entry.size();
                return Err(invalid(format!(
                    "data.pkl: expected at most {MAX_PICKLE_BYTES} bytes, got {got}"
                )));
            }
            entry.read_to_end(&mut pickle).map_err(failed)?;
        } else if let Some(start) = entry.data_start() {
            entries.insert(name, (start as usize, entry.size() as usize));
        }
    }
    let found = Objects::read(&pickle).and_then(|objects| convert(&objects, &entries));
    found.map_err(|problem| invalid(format!("data.pkl: {problem}")))
}

/// Offset and length of each entry of the archive.
type ZipEntries = HashMap<String, (usize, usize)>;

/// Converts a call of `_rebuild_tensor_v2(storage, offset, size, stride, ..)`, which may be the
/// argument of `_rebuild_parameter`; `None` for other values.
fn tensor(
    objects: &Objects,
    value: ObjectId,
    entries: &ZipEntries,
) -> ReadResult<Option<TensorInfo>> {
    let call = match objects.call(value) {
        Some(("_rebuild_parameter", [inner, ..])) => objects.call(*inner),
        call => call,
    };
    let Some(("_rebuild_tensor_v2", [storage, offset, size, stride, ..])) = call else {
        return Ok(None);
    };
    let Object::Persistent(storage) = objects.get(*storage) else { return Ok(None) };
    let Object::Tuple(storage) = objects.get(*storage) else {
        return Err("expected a storage".to_owned());
    };
    let [_, class, key, ..] = storage[..] else {
        return Err("expected a storage's type and name".to_owned());
    };
    let (Object::Class(class), Object::Str(key)) = (objects.get(class), objects.get(key)) else {
        return Err("expected a storage's type and name".to_owned());
    };
    let (dtype, width) = dtype(class)?;
    let (Object::Tuple(size), Object::Tuple(stride)) = (objects.get(*size), objects.get(*stride))
    else {
        return Err("expected a size and strides".to_owned());
    };
    if size.len() > MAX_DIMENSIONS || stride.len() != size.len() {
        let (size, stride) = (size.len(), stride.len());
        return Err(format!(
            "expected at most {MAX_DIMENSIONS} dimensions with a stride each, got {size} with \
             {stride} strides"
        ));
    }
    let (size, stride) = (numbers(objects, size)?, numbers(objects, stride)?);
    let mut expected = 1;
    for (size, stride) in size.iter().zip(&stride).rev() {
        if *size != 1 && *stride != expected {
            return Err(format!("expected contiguous rows, got strides {stride:?}"));
        }
        expected = expected.checked_mul(*size).ok_or("expected a smaller shape")?;
    }
    let entry = entries.get(&format!("data/{key}"));
    let &(start, length) =
        entry.ok_or_else(|| format!("expected an entry data/{key}, got none"))?;
    let [offset] = numbers(objects, &[*offset])?[..] else { return Ok(None) };
    let end = offset.checked_add(expected).and_then(|end| end.checked_mul(width));
    let Some(end) = end.filter(|end| *end <= length) else {
        return Err(format!("expected shape {size:?} from {offset} on inside of {length} bytes"));
    };
    let data_offsets = (start + offset * width, start + end);
    Ok(Some(TensorInfo { dtype, shape: size, data_offsets }))
}

fn dtype(storage: &str) -> ReadResult<(Dtype, usize)> {
    Ok(match storage {
        "FloatStorage" => (Dtype::F32, 4),
        "HalfStorage" => (Dtype::F16, 2),
        "BFloat16Storage" => (Dtype::BF16, 2),
        "DoubleStorage" => (Dtype::F64, 8),
        "LongStorage" => (Dtype::I64, 8),
        "IntStorage" => (Dtype::I32, 4),
        "BoolStorage" => (Dtype::BOOL, 1),
        "ByteStorage" => (Dtype::U8, 1),
        other => return Err(format!("expected numbers of a known type, got {other}")),
    })
}

fn numbers(objects: &Objects, ids: &[ObjectId]) -> ReadResult<Vec<usize>> {
    let number = |id: &ObjectId| match objects.get(*id) {
        Object::Integer(value) => usize::try_from(*value).ok(),
        _ => None,
    };
    ids.iter()
        .map(|id| number(id).ok_or_else(|| "expected integers that are not negative".to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_objects_are_not_copied() {
        // Pairs whose elements are both the pair before: as a tree 2^200 leaves.
        let pairs = (1..=200).flat_map(|n| [b'h', n - 1, b'h', n - 1, 0x86, b'q', n]);
        let list: Vec<u8> =
            b"\x80\x02K\x07q\x00".iter().copied().chain(pairs).chain(*b".").collect();
        let objects = Objects::read(&list).unwrap();
        let Object::Tuple(pair) = objects.get(objects.root) else { panic!("no pair") };
        assert_eq!(pair[0], pair[1]);
        // Nesting does not recurse.
        let deep = [b"K\x07".as_slice(), &[0x85; 1 << 20], b"."].concat();
        assert!(Objects::read(&deep).is_ok());
    }

    #[test]
    fn rejects_sizes_and_strides_of_different_lengths() {
        let parts = ZipEntries::from([("data/0".to_owned(), (64, 24))]);
        let found = |size: &[u8], stride: &[u8]| {
            let numbers = |numbers: &[u8]| {
                let numbers: Vec<u8> = numbers.iter().flat_map(|number| [b'K', *number]).collect();
                [b"(", &numbers[..], b"t"].concat()
            };
            let list = [
                b"ctorch._utils\n_rebuild_tensor_v2\n(".as_slice(),
                b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000tQK\0",
                &numbers(size),
                &numbers(stride),
                b"tR.",
            ];
            let list = list.concat();
            let objects = Objects::read(&list).unwrap();
            tensor(&objects, objects.root, &parts).map(|tensor| tensor.unwrap().data_offsets)
        };
        assert_eq!(found(&[2, 3], &[3, 1]), Ok((64, 88)));
        assert!(found(&[2, 3], &[1]).unwrap_err().contains("got 2 with 1 strides"));
        assert!(found(&[100, 2, 3], &[3, 1]).unwrap_err().contains("got 3 with 2 strides"));
        assert!(found(&[1; 65], &[1; 65]).unwrap_err().contains("at most 64 dimensions"));
    }
}
