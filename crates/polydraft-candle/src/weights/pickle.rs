//! Where the tensors of a `pytorch_model.bin` lie: a zip whose parts are stored as they are, and a pickle that lists them.
//!
//! The pickle is parsed into plain objects; nothing of what it asks to be called is. Tensors are then read from the file
//! itself, like those of a safetensors file.

use std::collections::{BTreeMap, HashMap};
use std::io::{BufReader, Cursor, Read};
use std::path::Path;

use candle_core::pickle::{Object, Stack};
use safetensors::tensor::{Dtype, TensorInfo};
use zip::{CompressionMethod, ZipArchive};

use crate::{Error, Result};

/// Bytes of the pickle at most. The list of a head's tensors takes a few thousand, one of a vocabulary's tokens five each.
const LONGEST_LIST: u64 = 1 << 20;
/// Objects within objects are taken apart one inside the other.
const STACK: usize = 1 << 29;

/// The tensors by name; their offsets count from the file's first byte.
pub(super) fn tensors(path: &Path) -> Result<BTreeMap<String, TensorInfo>> {
    read(path, |list, parts| {
        let Object::Dict(entries) = list else { return Err("expected a dictionary of tensors".to_owned()) };
        let mut tensors = BTreeMap::new();
        for (name, value) in entries {
            let Object::Unicode(name) = name else { continue };
            // What is no tensor describes the dictionary.
            if let Some(info) = tensor(value, parts).map_err(|e| format!("tensor {name}: {e}"))? {
                tensors.insert(name.clone(), info);
            }
        }
        Ok(tensors)
    })
}

/// A list of whole numbers that was saved by itself.
pub(crate) fn whole_numbers(path: &Path) -> Result<Vec<usize>> {
    read(path, |list, _| match list {
        Object::List(values) | Object::Tuple(values) => numbers(values),
        _ => Err("expected a list of numbers".to_owned()),
    })
}

/// What `convert` makes of the pickle, given where the other parts' bytes are.
fn read<T: Send + 'static>(
    path: &Path,
    convert: fn(&Object, &Parts) -> std::result::Result<T, String>,
) -> Result<T> {
    let wrong = |problem: String| Error::File { path: path.to_owned(), problem };
    let failed = |source| Error::Read { path: path.to_owned(), source };
    let file = polydraft_files::open(path).map_err(failed)?;
    let zipped = |e: zip::result::ZipError| wrong(format!("expected a zip as PyTorch writes it: {e}"));
    let mut zip = ZipArchive::new(BufReader::new(file)).map_err(zipped)?;
    let (mut parts, mut list) = (Parts::new(), Vec::new());
    for number in 0..zip.len() {
        let mut part = zip.by_index_raw(number).map_err(zipped)?;
        // All parts are in one folder.
        let name = part.name().map_err(zipped)?.split_once('/').map_or("", |(_, name)| name).to_owned();
        if part.compression() != CompressionMethod::Stored {
            return Err(wrong(format!("expected parts that are not compressed, got {name} that is")));
        }
        if name == "data.pkl" {
            if part.size() > LONGEST_LIST {
                let got = part.size();
                return Err(wrong(format!("data.pkl: expected at most {LONGEST_LIST} bytes, got {got}")));
            }
            part.read_to_end(&mut list).map_err(failed)?;
        } else if let Some(start) = part.data_start() {
            parts.insert(name, (start as usize, part.size() as usize));
        }
    }
    let parse = move || -> std::result::Result<T, String> {
        let mut stack = Stack::empty();
        stack.read_loop(&mut Cursor::new(list)).map_err(|e| e.to_string())?;
        convert(&stack.finalize().map_err(|e| e.to_string())?, &parts)
    };
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(parse).map_err(failed)?;
    match thread.join() {
        Ok(found) => found.map_err(|problem| wrong(format!("data.pkl: {problem}"))),
        Err(_) => Err(wrong("data.pkl: expected what PyTorch writes, got something else".to_owned())),
    }
}

/// First byte and length of each part.
type Parts = HashMap<String, (usize, usize)>;

/// `_rebuild_tensor_v2(storage, offset, size, stride, ..)`, perhaps inside a `_rebuild_parameter`.
fn tensor(value: &Object, parts: &Parts) -> std::result::Result<Option<TensorInfo>, String> {
    let Object::Reduce { callable, args } = value else { return Ok(None) };
    let (Object::Class { class_name, .. }, Object::Tuple(args)) = (&**callable, &**args) else {
        return Ok(None);
    };
    match (class_name.as_str(), &args[..]) {
        ("_rebuild_parameter", [inner, ..]) => tensor(inner, parts),
        ("_rebuild_tensor_v2", [Object::PersistentLoad(storage), offset, size, stride, ..]) => {
            let Object::Tuple(storage) = &**storage else { return Err("expected a storage".to_owned()) };
            let [_, Object::Class { class_name, .. }, Object::Unicode(key), ..] = &storage[..] else {
                return Err("expected a storage's type and name".to_owned());
            };
            let (dtype, width) = dtype(class_name)?;
            let (Object::Tuple(size), Object::Tuple(stride)) = (size, stride) else {
                return Err("expected a size and strides".to_owned());
            };
            let (size, stride) = (numbers(size)?, numbers(stride)?);
            let mut expected = 1;
            for (size, stride) in size.iter().zip(&stride).rev() {
                if *size != 1 && *stride != expected {
                    return Err(format!("expected rows behind each other, got strides {stride:?}"));
                }
                expected = expected.checked_mul(*size).ok_or("expected a smaller shape")?;
            }
            let whole = parts.get(&format!("data/{key}"));
            let &(start, length) = whole.ok_or_else(|| format!("expected a part data/{key}, got none"))?;
            let [offset] = numbers(std::slice::from_ref(offset))?[..] else { return Ok(None) };
            let end = offset.checked_add(expected).and_then(|end| end.checked_mul(width));
            let Some(end) = end.filter(|end| *end <= length) else {
                return Err(format!("expected shape {size:?} from {offset} on inside of {length} bytes"));
            };
            let data_offsets = (start + offset * width, start + end);
            Ok(Some(TensorInfo { dtype, shape: size, data_offsets }))
        }
        _ => Ok(None),
    }
}

fn dtype(storage: &str) -> std::result::Result<(Dtype, usize), String> {
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

fn numbers(values: &[Object]) -> std::result::Result<Vec<usize>, String> {
    let number = |value: &Object| match value {
        Object::Int(value) => usize::try_from(*value).ok(),
        Object::Long(value) => usize::try_from(*value).ok(),
        _ => None,
    };
    values.iter().map(|value| number(value).ok_or_else(|| "expected whole numbers".to_owned())).collect()
}
