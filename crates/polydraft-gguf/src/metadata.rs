//! Metadata: key-value pairs. Errors report the key, the expected and the actual value.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Fault, Location, shown};
use crate::reader::Reader;
use crate::value::{Array, Value, ValueType};
use crate::{Error, Result};

/// Maximum length of a key, by the format.
const MAX_KEY: u64 = 65_535;
/// Minimum size of an entry: length of the key, one letter, type, one byte.
const MIN_ENTRY: u64 = 8 + 1 + 4 + 1;

/// Key-value pairs of a file, decoded on access.
#[derive(Debug)]
pub struct Metadata {
    path: Arc<Path>,
    bytes: Vec<u8>,
    entries: BTreeMap<Box<str>, Entry>,
}

/// Type and position of a value in the header.
#[derive(Debug, Clone)]
struct Entry {
    kind: ValueType,
    /// For arrays, the type and number of elements.
    element: Option<(ValueType, usize)>,
    bytes: Range<usize>,
}

/// Metadata of a header that is being read.
pub(crate) struct Entries(BTreeMap<Box<str>, Entry>);

impl Entries {
    /// Reads `count` key-value pairs. Rejects nested arrays, because no known key has one and their
    /// depth is unbounded.
    pub fn read(reader: &mut Reader, count: u64) -> Result<Self> {
        let max = reader.left() / MIN_ENTRY;
        if count > max {
            let expected = format!("at most {max} keys, by the length of the file");
            return Err(reader.fault(Fault::header(expected, format!("{count}")).incomplete()));
        }
        let mut entries = BTreeMap::new();
        for number in 0..count {
            let range = reader.string(MAX_KEY, &|| Location::Key(format!("number {number}")))?;
            let key = match std::str::from_utf8(reader.bytes(range)) {
                Ok(key) if !key.is_empty() => Box::<str>::from(key),
                other => {
                    let got =
                        if other.is_ok() { "an empty one" } else { "bytes that are not UTF-8" };
                    return Err(reader.fault(Fault::key(
                        &format!("number {number}"),
                        "a name",
                        got,
                    )));
                }
            };
            let entry = Entry::read(reader, &key)?;
            if entries.contains_key(&key) {
                return Err(reader.fault(Fault::key(&key, "one value", "two of that key")));
            }
            entries.insert(key, entry);
        }
        Ok(Self(entries))
    }

    pub fn finish(self, path: Arc<Path>, header: Vec<u8>) -> Metadata {
        Metadata { path, bytes: header, entries: self.0 }
    }

    /// Returns `general.alignment`, which is needed to read the rest of the header.
    pub fn alignment(&self, reader: &Reader) -> Result<Option<u64>> {
        const KEY: &str = "general.alignment";
        let Some(entry) = self.0.get(KEY) else { return Ok(None) };
        let value = Value::scalar(entry.kind, reader.bytes(entry.bytes.clone()));
        match value {
            Value::Integer(value)
                if value > 0 && value <= 1 << 30 && (value as u64).is_power_of_two() =>
            {
                Ok(Some(value as u64))
            }
            _ => Err(reader.fault(Fault::key(KEY, "a power of two", value.to_string()))),
        }
    }
}

impl Entry {
    fn read(reader: &mut Reader, key: &str) -> Result<Self> {
        let location = || Location::Key(shown(key));
        let kind = Self::kind(reader, key)?;
        if kind == ValueType::Array {
            return Self::array(reader, key);
        }
        let bytes = match kind {
            ValueType::String => reader.string(u64::MAX, &location)?,
            _ => reader.take(kind.size() as u64, &location)?,
        };
        if kind == ValueType::Bool && reader.bytes(bytes.clone())[0] > 1 {
            let got = reader.bytes(bytes)[0].to_string();
            return Err(reader.fault(Fault::key(key, "0 or 1", got)));
        }
        Ok(Self { kind, element: None, bytes })
    }

    fn array(reader: &mut Reader, key: &str) -> Result<Self> {
        let location = || Location::Key(shown(key));
        let element = Self::kind(reader, key)?;
        if element == ValueType::Array {
            return Err(reader.fault(Fault::key(
                key,
                "an array of plain values",
                "an array of arrays",
            )));
        }
        let count = reader.u64(&location)?;
        let max = reader.left() / element.size() as u64;
        if count > max {
            let expected =
                format!("at most {max} values of type {element}, by the length of the file");
            return Err(reader.fault(Fault::key(key, expected, format!("{count}")).incomplete()));
        }
        let start = reader.at();
        if element == ValueType::String {
            for number in 0..count {
                reader.string(u64::MAX, &|| {
                    Location::Key(format!("{}, string {number}", shown(key)))
                })?;
            }
        } else {
            // Cannot overflow: at most the rest of the file.
            reader.take(count * element.size() as u64, &location)?;
        }
        let bytes = start..reader.at();
        let invalid = match element {
            ValueType::Bool => reader.bytes(bytes.clone()).iter().find(|byte| **byte > 1),
            _ => None,
        };
        if let Some(byte) = invalid {
            return Err(reader.fault(Fault::key(key, "values 0 or 1", byte.to_string())));
        }
        Ok(Self { kind: ValueType::Array, element: Some((element, count as usize)), bytes })
    }

    fn kind(reader: &mut Reader, key: &str) -> Result<ValueType> {
        let number = reader.u32(&|| Location::Key(shown(key)))?;
        let fault = || Fault::key(key, "a type from 0 (u8) to 12 (f64)", format!("type {number}"));
        ValueType::new(number).ok_or_else(|| reader.fault(fault()))
    }
}

impl Metadata {
    /// Returns the path of the file, or of the first shard of a split model.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns all keys in alphabetical order, with types and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, ValueType, Value<'_>)> {
        self.entries.iter().map(|(key, entry)| (&**key, entry.kind, self.value(entry)))
    }

    /// Whether a key exists.
    pub fn has(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    /// Returns the value of a key, if it exists.
    pub fn get(&self, key: &str) -> Option<Value<'_>> {
        self.entries.get(key).map(|entry| self.value(entry))
    }

    fn value(&self, entry: &Entry) -> Value<'_> {
        let bytes = &self.bytes[entry.bytes.clone()];
        match entry.element {
            Some((kind, count)) => Value::Array(Array::new(kind, count, bytes)),
            None => Value::scalar(entry.kind, bytes),
        }
    }

    /// Returns an error about a key.
    pub(crate) fn invalid_key(
        &self,
        key: &str,
        expected: impl Into<String>,
        got: impl Into<String>,
    ) -> Error {
        Fault::key(key, expected, got).at(&self.path)
    }

    /// Returns the value of a key, converted by `convert`.
    fn convert<'m, T>(
        &'m self,
        key: &str,
        expected: &str,
        convert: impl FnOnce(Value<'m>) -> Option<T>,
    ) -> Result<T> {
        let Some(entry) = self.entries.get(key) else {
            return Err(self.invalid_key(key, expected, "no such key"));
        };
        let value = self.value(entry);
        convert(value).ok_or_else(|| {
            let got = match value {
                Value::Array(_) => value.to_string(),
                _ => format!("{value} of type {}", entry.kind),
            };
            self.invalid_key(key, expected, got)
        })
    }

    /// Returns a value that may be missing:
    /// `metadata.optional("llama.vocab_size", Metadata::u32)?`.
    ///
    /// # Errors
    /// A value of another type.
    pub fn optional<'m, T>(
        &'m self,
        key: &str,
        get: impl FnOnce(&'m Self, &str) -> Result<T>,
    ) -> Result<Option<T>> {
        if self.has(key) { get(self, key).map(Some) } else { Ok(None) }
    }

    /// Returns an integer of any type as u32.
    ///
    /// # Errors
    /// No such key; another type; a number out of range.
    pub fn u32(&self, key: &str) -> Result<u32> {
        self.convert(key, "an integer from 0 to 4294967295", |value| match value {
            Value::Integer(value) => value.try_into().ok(),
            _ => None,
        })
    }

    /// Returns an integer of any type as u64.
    ///
    /// # Errors
    /// No such key; another type; a number out of range.
    pub fn u64(&self, key: &str) -> Result<u64> {
        self.convert(key, "an integer that is not negative", |value| match value {
            Value::Integer(value) => value.try_into().ok(),
            _ => None,
        })
    }

    /// Returns an integer of any type as i64.
    ///
    /// # Errors
    /// No such key; another type; a number out of range.
    pub fn i64(&self, key: &str) -> Result<i64> {
        self.convert(key, "an integer of 64 bits", |value| match value {
            Value::Integer(value) => value.try_into().ok(),
            _ => None,
        })
    }

    /// Returns a number of type f32 or f64.
    ///
    /// # Errors
    /// No such key; another type.
    pub fn f64(&self, key: &str) -> Result<f64> {
        self.convert(key, "a number of type f32 or f64", |value| match value {
            Value::Float(value) => Some(value),
            _ => None,
        })
    }

    /// Returns a Boolean.
    ///
    /// # Errors
    /// No such key; another type.
    pub fn bool(&self, key: &str) -> Result<bool> {
        self.convert(key, "a bool", |value| match value {
            Value::Bool(value) => Some(value),
            _ => None,
        })
    }

    /// Returns a string.
    ///
    /// # Errors
    /// No such key; another type; bytes that are not UTF-8.
    pub fn str<'m>(&'m self, key: &str) -> Result<&'m str> {
        self.convert(key, "a string in UTF-8", |value| match value {
            Value::String(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        })
    }

    /// Returns an array of any type.
    ///
    /// # Errors
    /// No such key; not an array.
    pub fn array<'m>(&'m self, key: &str) -> Result<Array<'m>> {
        self.convert(key, "an array", |value| match value {
            Value::Array(values) => Some(values),
            _ => None,
        })
    }

    /// Returns an array of strings.
    ///
    /// # Errors
    /// No such key; another type; a string that is not UTF-8, with its index.
    pub fn strings<'m>(&'m self, key: &str) -> Result<Vec<&'m str>> {
        let string = |value| match value {
            Value::String(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        };
        self.values(key, "strings in UTF-8", string)
    }

    /// Returns an array of integers of any type as i32.
    ///
    /// # Errors
    /// No such key; another type; a number out of range, with its index.
    pub fn i32s(&self, key: &str) -> Result<Vec<i32>> {
        let integer = |value| match value {
            Value::Integer(value) => value.try_into().ok(),
            _ => None,
        };
        self.values(key, "integers of 32 bits", integer)
    }

    /// Returns an array of numbers as f32.
    ///
    /// # Errors
    /// No such key; another type.
    pub fn f32s(&self, key: &str) -> Result<Vec<f32>> {
        let number = |value| match value {
            Value::Float(value) => Some(value as f32),
            Value::Integer(value) => Some(value as f32),
            _ => None,
        };
        self.values(key, "numbers", number)
    }

    /// Returns an array of Booleans.
    ///
    /// # Errors
    /// No such key; another type.
    pub fn bools(&self, key: &str) -> Result<Vec<bool>> {
        let boolean = |value| match value {
            Value::Bool(value) => Some(value),
            _ => None,
        };
        self.values(key, "bools", boolean)
    }

    /// Returns the elements of an array, each converted by `convert`.
    fn values<'m, T>(
        &'m self,
        key: &str,
        expected: &'static str,
        convert: impl Fn(Value<'m>) -> Option<T>,
    ) -> Result<Vec<T>> {
        let array = self.array(key)?;
        // The capacity is limited by the file, which was checked to contain the elements.
        let mut values = Vec::with_capacity(array.len());
        for (number, value) in array.iter().enumerate() {
            let Some(value) = convert(value) else {
                let got = format!("{value} of type {} as number {number}", array.kind());
                return Err(self.invalid_key(key, format!("an array of {expected}"), got));
            };
            values.push(value);
        }
        Ok(values)
    }
}
