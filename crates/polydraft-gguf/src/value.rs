//! Values of the metadata.

use std::fmt;

use crate::reader::array;

/// Type of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // self-explanatory
pub enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

impl ValueType {
    /// Returns the type with a number in files.
    pub(crate) fn new(number: u32) -> Option<Self> {
        use ValueType::*;
        [U8, I8, U16, I16, U32, I32, F32, Bool, String, Array, U64, I64, F64]
            .get(number as usize)
            .copied()
    }

    /// Returns the number of bytes of a value; the minimum for strings and arrays.
    pub(crate) fn size(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::String => 8,
            Self::Array => 12,
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        })
    }
}

/// A value of the metadata. Integers of all widths are one variant, and so are floats.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'m> {
    /// Any integer.
    Integer(i128),
    /// A number of type f32 or f64.
    Float(f64),
    /// A Boolean.
    Bool(bool),
    /// Bytes of a string, which may not be UTF-8.
    String(&'m [u8]),
    /// An array of values of one type.
    Array(Array<'m>),
}

impl<'m> Value<'m> {
    /// Creates a value other than an array from its bytes; for strings, without the length.
    pub(crate) fn scalar(kind: ValueType, bytes: &'m [u8]) -> Self {
        match kind {
            ValueType::U8 => Self::Integer(u8::from_le_bytes(array(bytes)).into()),
            ValueType::I8 => Self::Integer(i8::from_le_bytes(array(bytes)).into()),
            ValueType::U16 => Self::Integer(u16::from_le_bytes(array(bytes)).into()),
            ValueType::I16 => Self::Integer(i16::from_le_bytes(array(bytes)).into()),
            ValueType::U32 => Self::Integer(u32::from_le_bytes(array(bytes)).into()),
            ValueType::I32 => Self::Integer(i32::from_le_bytes(array(bytes)).into()),
            ValueType::U64 => Self::Integer(u64::from_le_bytes(array(bytes)).into()),
            ValueType::I64 => Self::Integer(i64::from_le_bytes(array(bytes)).into()),
            ValueType::F32 => Self::Float(f32::from_le_bytes(array(bytes)).into()),
            ValueType::F64 => Self::Float(f64::from_le_bytes(array(bytes))),
            ValueType::Bool => Self::Bool(bytes.first().is_some_and(|byte| *byte != 0)),
            // Arrays never occur here, because nested arrays are rejected.
            ValueType::String | ValueType::Array => Self::String(bytes),
        }
    }
}

/// Formats for errors and listings: on one line, truncated if long.
impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Integer(value) => write!(f, "{value}"),
            Self::Float(value) => write!(f, "{value}"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::String(bytes) => {
                // A character has at most four bytes, so this prefix has all that is shown.
                let start = &bytes[..bytes.len().min(4 * 81)];
                let text = crate::error::shown(&String::from_utf8_lossy(start));
                write!(f, "\"{text}\"")
            }
            Self::Array(values) => write!(f, "{} values of type {}", values.len(), values.kind()),
        }
    }
}

/// An array of values of one type.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Array<'m> {
    kind: ValueType,
    count: usize,
    bytes: &'m [u8],
}

impl<'m> Array<'m> {
    pub(crate) fn new(kind: ValueType, count: usize, bytes: &'m [u8]) -> Self {
        Self { kind, count, bytes }
    }

    /// Returns the type of the values.
    pub fn kind(&self) -> ValueType {
        self.kind
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether the array is empty.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns an iterator over the values.
    pub fn iter(&self) -> Values<'m> {
        Values { kind: self.kind, left: self.count, bytes: self.bytes }
    }
}

/// Iterator over the values of an [`Array`].
#[derive(Debug, Clone)]
pub struct Values<'m> {
    kind: ValueType,
    left: usize,
    bytes: &'m [u8],
}

impl<'m> Iterator for Values<'m> {
    type Item = Value<'m>;

    fn next(&mut self) -> Option<Value<'m>> {
        self.left = self.left.checked_sub(1)?;
        let mut size = self.kind.size();
        if self.kind == ValueType::String {
            let (length, rest) = self.bytes.split_first_chunk::<8>()?;
            self.bytes = rest;
            size = u64::from_le_bytes(*length) as usize;
        }
        let (value, rest) = self.bytes.split_at_checked(size)?;
        self.bytes = rest;
        Some(Value::scalar(self.kind, value))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Values<'_> {}
