//! Columns of numbers, stored as one-dimensional tensors in a gzip-compressed safetensors file.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use safetensors::tensor::{Dtype, SafeTensors, View};

use crate::trace::{Error, Result};

/// Maximum size of a shard in bytes before compression, which limits the memory of a reader.
pub(crate) const MOST: usize = 512 << 20;
/// Key of the only metadata entry. With several entries, their order in the file would vary.
const METADATA: &str = "polydraft";

/// Number type of a column.
pub(crate) trait Number: Copy {
    const TYPE: Dtype;
    fn append(self, bytes: &mut Vec<u8>);
    fn all(bytes: &[u8]) -> Vec<Self>;
}

macro_rules! number {
    ($($number:ty = $dtype:ident),*) => {$(
        impl Number for $number {
            const TYPE: Dtype = Dtype::$dtype;

            fn append(self, bytes: &mut Vec<u8>) {
                bytes.extend(self.to_le_bytes());
            }

            fn all(bytes: &[u8]) -> Vec<Self> {
                bytes.as_chunks().0.iter().map(|bytes| Self::from_le_bytes(*bytes)).collect()
            }
        }
    )*};
}
number!(u8 = U8, u16 = U16, u32 = U32, u64 = U64, f32 = F32, f64 = F64);

/// A column to be written.
struct Column {
    dtype: Dtype,
    shape: [usize; 1],
    bytes: Vec<u8>,
}

impl View for &Column {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.bytes)
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

/// Columns to be written.
#[derive(Default)]
pub(crate) struct Out(Vec<(String, Column)>);

impl Out {
    pub fn add<T: Number>(
        &mut self,
        name: impl Into<String>,
        numbers: impl ExactSizeIterator<Item = T>,
    ) {
        let shape = [numbers.len()];
        let mut bytes = Vec::with_capacity(shape[0] * size_of::<T>());
        numbers.for_each(|number| number.append(&mut bytes));
        self.0.push((name.into(), Column { dtype: T::TYPE, shape, bytes }));
    }

    /// Returns the compressed file. Deterministic.
    pub fn file(&self, metadata: String) -> std::io::Result<Vec<u8>> {
        let metadata = HashMap::from([(METADATA.to_owned(), metadata)]);
        let columns = self.0.iter().map(|(name, column)| (name, column));
        let file =
            safetensors::serialize(columns, Some(metadata)).map_err(std::io::Error::other)?;
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        gzip.write_all(&file)?;
        gzip.finish()
    }
}

/// Decompresses a file.
pub(crate) fn unpack(location: &str, file: &[u8]) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = GzDecoder::new(file).take(MOST as u64 + 1).read_to_end(&mut bytes);
    match read {
        Ok(length) if length > MOST => Err(Error::content(
            location,
            format!("at most {} MiB", MOST >> 20),
            "more when decompressed",
        )),
        Ok(_) => Ok(bytes),
        Err(error) => Err(Error::content(location, "a safetensors file in gzip", error)),
    }
}

/// Columns of a file.
pub(crate) struct In<'a> {
    location: &'a str,
    tensors: SafeTensors<'a>,
    /// Metadata of the file.
    pub metadata: String,
}

impl<'a> In<'a> {
    pub fn new(location: &'a str, bytes: &'a [u8]) -> Result<Self> {
        let wrong = |error: &dyn ToString| {
            Error::content(location, "a safetensors file", error.to_string())
        };
        let tensors = SafeTensors::deserialize(bytes).map_err(|error| wrong(&error))?;
        let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(|error| wrong(&error))?;
        let metadata = metadata.metadata().as_ref().and_then(|map| map.get(METADATA)).cloned();
        let metadata =
            metadata.ok_or_else(|| wrong(&format!("one without {METADATA:?} in its metadata")))?;
        Ok(Self { location, tensors, metadata })
    }

    /// Returns the number type of a column.
    pub fn dtype(&self, name: &str) -> Result<Dtype> {
        self.tensor(name).map(|tensor| tensor.dtype())
    }

    pub fn column<T: Number>(&self, name: &str) -> Result<Vec<T>> {
        let tensor = self.tensor(name)?;
        if tensor.dtype() != T::TYPE || tensor.shape().len() != 1 {
            let expected = format!("{:?} of one dimension", T::TYPE);
            let got = format!("{:?} of shape {:?}", tensor.dtype(), tensor.shape());
            return Err(Error::content(self.at(name), expected, got));
        }
        Ok(T::all(tensor.data()))
    }

    /// Returns a column, which must have `length` numbers.
    pub fn column_of<T: Number>(&self, name: &str, length: usize) -> Result<Vec<T>> {
        let column = self.column(name)?;
        match column.len() == length {
            true => Ok(column),
            false => Err(Error::content(self.at(name), format!("{length} numbers"), column.len())),
        }
    }

    /// Returns the location of a column for error messages.
    pub fn at(&self, name: &str) -> String {
        format!("{}: tensor {name}", self.location)
    }

    fn tensor(&self, name: &str) -> Result<safetensors::tensor::TensorView<'a>> {
        self.tensors
            .tensor(name)
            .map_err(|_| Error::content(self.at(name), "such a tensor", "none"))
    }
}
