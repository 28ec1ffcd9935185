//! Where the tensors of a `pytorch_model.bin` lie: a zip whose parts are stored as they are, and a
//! pickle that lists them.
//!
//! Tensors are then read from the file itself, like those of a safetensors file.

mod objects;

use std::collections::{BTreeMap, HashMap};
use std::io::{BufReader, Read as _};
use std::path::Path;

use safetensors::tensor::{Dtype, TensorInfo};
use zip::{CompressionMethod, ZipArchive};

use crate::error::{Error, Result};
use objects::{Object, Objects, Place, Read};

/// Bytes of the pickle at most. The list of a head's tensors takes a few thousand, one of a
/// vocabulary's tokens five each.
const LONGEST_LIST: u64 = 1 << 20;
/// Dimensions of a tensor at most, as in PyTorch.
const DIMENSIONS: usize = 64;

/// The tensors by name; their offsets count from the file's first byte.
pub(super) fn tensors(path: &Path) -> Result<BTreeMap<String, TensorInfo>> {
    read(path, |list, parts| {
        let Object::Dict(entries) = list.get(list.root) else {
            return Err("expected a dictionary of tensors".to_owned());
        };
        let mut tensors = BTreeMap::new();
        for [name, value] in entries {
            let Object::Text(name) = list.get(*name) else { continue };
            // What is no tensor describes the dictionary.
            if let Some(info) =
                tensor(list, *value, parts).map_err(|e| format!("tensor {name}: {e}"))?
                && tensors.insert((*name).to_owned(), info).is_some()
            {
                return Err(format!("expected tensor {name} once, got it again"));
            }
        }
        Ok(tensors)
    })
}

/// A list of whole numbers that was saved by itself.
pub(crate) fn whole_numbers(path: &Path) -> Result<Vec<usize>> {
    read(path, |list, _| match list.get(list.root) {
        Object::List(values) | Object::Tuple(values) => numbers(list, values),
        _ => Err("expected a list of numbers".to_owned()),
    })
}

/// What `convert` makes of the pickle, given where the other parts' bytes are.
fn read<T>(path: &Path, convert: fn(&Objects, &Parts) -> Read<T>) -> Result<T> {
    let wrong = |problem: String| Error::File { path: path.to_owned(), problem };
    let failed = |source| Error::Read { path: path.to_owned(), source };
    let file = polydraft_files::open(path).map_err(failed)?;
    let zipped =
        |e: zip::result::ZipError| wrong(format!("expected a zip as PyTorch writes it: {e}"));
    let mut zip = ZipArchive::new(BufReader::new(file)).map_err(zipped)?;
    let (mut parts, mut list) = (Parts::new(), Vec::new());
    for number in 0..zip.len() {
        let mut part = zip.by_index_raw(number).map_err(zipped)?;
        // All parts are in one folder.
        let name =
            part.name().map_err(zipped)?.split_once('/').map_or("", |(_, name)| name).to_owned();
        if part.compression() != CompressionMethod::Stored {
            return Err(wrong(format!(
                "expected parts that are not compressed, got {name} that is"
            )));
        }
        if name == "data.pkl" {
            if part.size() > LONGEST_LIST {
                let got = part.size();
                return Err(wrong(format!(
                    "data.pkl: expected at most {LONGEST_LIST} bytes, got {got}"
                )));
            }
            part.read_to_end(&mut list).map_err(failed)?;
        } else if let Some(start) = part.data_start() {
            parts.insert(name, (start as usize, part.size() as usize));
        }
    }
    let found = Objects::read(&list).and_then(|list| convert(&list, &parts));
    found.map_err(|problem| wrong(format!("data.pkl: {problem}")))
}

/// First byte and length of each part.
type Parts = HashMap<String, (usize, usize)>;

/// `_rebuild_tensor_v2(storage, offset, size, stride, ..)`, perhaps inside a `_rebuild_parameter`.
fn tensor(list: &Objects, value: Place, parts: &Parts) -> Read<Option<TensorInfo>> {
    let call = match list.call(value) {
        Some(("_rebuild_parameter", [inner, ..])) => list.call(*inner),
        call => call,
    };
    let Some(("_rebuild_tensor_v2", [storage, offset, size, stride, ..])) = call else {
        return Ok(None);
    };
    let Object::Outside(storage) = list.get(*storage) else { return Ok(None) };
    let Object::Tuple(storage) = list.get(*storage) else {
        return Err("expected a storage".to_owned());
    };
    let [_, class, key, ..] = storage[..] else {
        return Err("expected a storage's type and name".to_owned());
    };
    let (Object::Class(class), Object::Text(key)) = (list.get(class), list.get(key)) else {
        return Err("expected a storage's type and name".to_owned());
    };
    let (dtype, width) = dtype(class)?;
    let (Object::Tuple(size), Object::Tuple(stride)) = (list.get(*size), list.get(*stride)) else {
        return Err("expected a size and strides".to_owned());
    };
    if size.len() > DIMENSIONS || stride.len() != size.len() {
        let (size, stride) = (size.len(), stride.len());
        return Err(format!(
            "expected at most {DIMENSIONS} dimensions with a stride each, got {size} with {stride} \
             strides"
        ));
    }
    let (size, stride) = (numbers(list, size)?, numbers(list, stride)?);
    let mut expected = 1;
    for (size, stride) in size.iter().zip(&stride).rev() {
        if *size != 1 && *stride != expected {
            return Err(format!("expected contiguous rows, got strides {stride:?}"));
        }
        expected = expected.checked_mul(*size).ok_or("expected a smaller shape")?;
    }
    let whole = parts.get(&format!("data/{key}"));
    let &(start, length) = whole.ok_or_else(|| format!("expected a part data/{key}, got none"))?;
    let [offset] = numbers(list, &[*offset])?[..] else { return Ok(None) };
    let end = offset.checked_add(expected).and_then(|end| end.checked_mul(width));
    let Some(end) = end.filter(|end| *end <= length) else {
        return Err(format!("expected shape {size:?} from {offset} on inside of {length} bytes"));
    };
    let data_offsets = (start + offset * width, start + end);
    Ok(Some(TensorInfo { dtype, shape: size, data_offsets }))
}

fn dtype(storage: &str) -> Read<(Dtype, usize)> {
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

fn numbers(list: &Objects, places: &[Place]) -> Read<Vec<usize>> {
    let number = |place: &Place| match list.get(*place) {
        Object::Whole(value) => usize::try_from(*value).ok(),
        _ => None,
    };
    places
        .iter()
        .map(|place| number(place).ok_or_else(|| "expected whole numbers".to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mentioned_again_is_not_copied() {
        // Pairs of the pair before, twice: as a tree it would have 2^200 leaves.
        let pairs = (1..=200).flat_map(|n| [b'h', n - 1, b'h', n - 1, 0x86, b'q', n]);
        let list: Vec<u8> =
            b"\x80\x02K\x07q\x00".iter().copied().chain(pairs).chain(*b".").collect();
        let list = Objects::read(&list).unwrap();
        let Object::Tuple(pair) = list.get(list.root) else { panic!("no pair") };
        assert_eq!(pair[0], pair[1]);
        // Nor is one taken apart inside the other.
        let deep = [b"K\x07".as_slice(), &[0x85; 1 << 20], b"."].concat();
        assert!(Objects::read(&deep).is_ok());
    }

    #[test]
    fn every_dimension_has_its_stride() {
        let parts = Parts::from([("data/0".to_owned(), (64, 24))]);
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
            let list = Objects::read(&list).unwrap();
            tensor(&list, list.root, &parts).map(|tensor| tensor.unwrap().data_offsets)
        };
        assert_eq!(found(&[2, 3], &[3, 1]), Ok((64, 88)));
        assert!(found(&[2, 3], &[1]).unwrap_err().contains("got 2 with 1 strides"));
        assert!(found(&[100, 2, 3], &[3, 1]).unwrap_err().contains("got 3 with 2 strides"));
        assert!(found(&[1; 65], &[1; 65]).unwrap_err().contains("at most 64 dimensions"));
    }
}
