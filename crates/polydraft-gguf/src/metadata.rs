//! The metadata: key-value pairs, read with errors that name the key, what was expected and what is
//! there.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Fault, Location, shown};
use crate::reader::Reader;
use crate::value::{Array, Value, ValueType};
use crate::{Error, Result};

/// The longest key; the format's own limit.
const LONGEST_KEY: u64 = 65_535;
/// The shortest entry: the length of its key, one letter, its type, one byte.
const SMALLEST: u64 = 8 + 1 + 4 + 1;

/// Key-value pairs, borrowed from the header as it was read.
#[derive(Debug)]
pub struct Metadata {
    path: Arc<Path>,
    bytes: Vec<u8>,
    entries: BTreeMap<Box<str>, Entry>,
}

/// A value's place in the header.
#[derive(Debug, Clone)]
struct Entry {
    kind: ValueType,
    /// Of an array: the type and the number of its values.
    element: Option<(ValueType, usize)>,
    bytes: Range<usize>,
}

/// The metadata of a header that is still being read.
pub(crate) struct Entries(BTreeMap<Box<str>, Entry>);

impl Entries {
    /// Reads `count` key-value pairs. Nested arrays are refused: no known key has one, and their
    /// depth would have no bound.
    pub fn read(reader: &mut Reader, count: u64) -> Result<Self> {
        let most = reader.left() / SMALLEST;
        if count > most {
            let expected = format!("at most {most} keys, for which its bytes would do");
            return Err(reader.fault(Fault::header(expected, format!("{count}"))));
        }
        let mut entries = BTreeMap::new();
        for number in 0..count {
            let range =
                reader.string(LONGEST_KEY, &|| Location::Key(format!("number {number}")))?;
            let key = match std::str::from_utf8(reader.bytes(range)) {
                Ok(key) if !key.is_empty() => Box::<str>::from(key),
                other => {
                    let got =
                        if other.is_ok() { "an empty one" } else { "bytes that are no UTF-8" };
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

    /// `general.alignment`, which the rest of the header needs.
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
        let most = reader.left() / element.size() as u64;
        if count > most {
            let expected =
                format!("at most {most} values of type {element}, for which its bytes would do");
            return Err(reader.fault(Fault::key(key, expected, format!("{count}"))));
        }
        let start = reader.at();
        if element == ValueType::String {
            for number in 0..count {
                reader.string(u64::MAX, &|| {
                    Location::Key(format!("{}, string {number}", shown(key)))
                })?;
            }
        } else {
            // Cannot overflow: it is no more than what is left of the file.
            reader.take(count * element.size() as u64, &location)?;
        }
        let bytes = start..reader.at();
        let odd = match element {
            ValueType::Bool => reader.bytes(bytes.clone()).iter().find(|byte| **byte > 1),
            _ => None,
        };
        if let Some(byte) = odd {
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
    /// The file that it is of; of a model in several files the first.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All keys, in alphabetical order, with the types of their values and the values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, ValueType, Value<'_>)> {
        self.entries.iter().map(|(key, entry)| (&**key, entry.kind, self.value(entry)))
    }

    /// Whether there is a value.
    pub fn has(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    /// A value, if there is one.
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

    /// An error about a key.
    pub(crate) fn wrong(
        &self,
        key: &str,
        expected: impl Into<String>,
        got: impl Into<String>,
    ) -> Error {
        Fault::key(key, expected, got).at(&self.path)
    }

    /// A value by what it is expected to be.
    fn take<'m, T>(
        &'m self,
        key: &str,
        expected: &str,
        convert: impl FnOnce(Value<'m>) -> Option<T>,
    ) -> Result<T> {
        let Some(entry) = self.entries.get(key) else {
            return Err(self.wrong(key, expected, "no such key"));
        };
        let value = self.value(entry);
        convert(value).ok_or_else(|| {
            let got = match value {
                Value::Array(_) => value.to_string(),
                _ => format!("{value} of type {}", entry.kind),
            };
            self.wrong(key, expected, got)
        })
    }

    /// A value that may be missing: `metadata.optional("llama.vocab_size", Metadata::u32)?`.
    ///
    /// # Errors
    /// A value that is there but not of the kind.
    pub fn optional<'m, T>(
        &'m self,
        key: &str,
        get: impl FnOnce(&'m Self, &str) -> Result<T>,
    ) -> Result<Option<T>> {
        if self.has(key) { get(self, key).map(Some) } else { Ok(None) }
    }

    /// An integer of any type that fits.
    ///
    /// # Errors
    /// No such key; another type; a number that does not fit.
    pub fn u32(&self, key: &str) -> Result<u32> {
        self.take(key, "an integer from 0 to 4294967295", |value| match value {
            Value::Integer(value) => value.try_into().ok(),
            _ => None,
        })
    }

    /// An integer of any type that fits.
    ///
    /// # Errors
    /// No such key; another type; a number that does not fit.
    pub fn u64(&self, key: &str) -> Result<u64> {
        self.take(key, "an integer that is not negative", |value| match value {
            Value::Integer(value) => value.try_into().ok(),
            _ => None,
        })
    }

    /// An integer of any type that fits.
    ///
    /// # Errors
    /// No such key; another type; a number that does not fit.
    pub fn i64(&self, key: &str) -> Result<i64> {
        self.take(key, "an integer of 64 bits", |value| match value {
            Value::Integer(value) => value.try_into().ok(),
            _ => None,
        })
    }

    /// A number, f32 or f64.
    ///
    /// # Errors
    /// No such key; another type.
    pub fn f64(&self, key: &str) -> Result<f64> {
        self.take(key, "a number of type f32 or f64", |value| match value {
            Value::Float(value) => Some(value),
            _ => None,
        })
    }

    /// A truth value.
    ///
    /// # Errors
    /// No such key; another type.
    pub fn bool(&self, key: &str) -> Result<bool> {
        self.take(key, "a bool", |value| match value {
            Value::Bool(value) => Some(value),
            _ => None,
        })
    }

    /// A string.
    ///
    /// # Errors
    /// No such key; another type; bytes that are no UTF-8.
    pub fn str<'m>(&'m self, key: &str) -> Result<&'m str> {
        self.take(key, "a string in UTF-8", |value| match value {
            Value::String(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        })
    }

    /// An array, of whatever type.
    ///
    /// # Errors
    /// No such key; no array.
    pub fn array<'m>(&'m self, key: &str) -> Result<Array<'m>> {
        self.take(key, "an array", |value| match value {
            Value::Array(values) => Some(values),
            _ => None,
        })
    }

    /// An array of strings, borrowed.
    ///
    /// # Errors
    /// No such key; another type; a string that is no UTF-8, by its number.
    pub fn strings<'m>(&'m self, key: &str) -> Result<Vec<&'m str>> {
        let text = |value| match value {
            Value::String(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        };
        self.values(key, "strings in UTF-8", text)
    }

    /// An array of integers, of any type that fits.
    ///
    /// # Errors
    /// No such key; another type; a number that does not fit, by its place.
    pub fn i32s(&self, key: &str) -> Result<Vec<i32>> {
        let integer = |value| match value {
            Value::Integer(value) => value.try_into().ok(),
            _ => None,
        };
        self.values(key, "integers of 32 bits", integer)
    }

    /// An array of numbers, as f32.
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

    /// An array of truth values.
    ///
    /// # Errors
    /// No such key; another type.
    pub fn bools(&self, key: &str) -> Result<Vec<bool>> {
        let truth = |value| match value {
            Value::Bool(value) => Some(value),
            _ => None,
        };
        self.values(key, "bools", truth)
    }

    /// The values of an array, if all are of the kind.
    fn values<'m, T>(
        &'m self,
        key: &str,
        expected: &'static str,
        convert: impl Fn(Value<'m>) -> Option<T>,
    ) -> Result<Vec<T>> {
        let array = self.array(key)?;
        // Its bytes were seen in the file, so there is room for as many.
        let mut values = Vec::with_capacity(array.len());
        for (number, value) in array.iter().enumerate() {
            let Some(value) = convert(value) else {
                let got = format!("{value} of type {} as number {number}", array.kind());
                return Err(self.wrong(key, format!("an array of {expected}"), got));
            };
            values.push(value);
        }
        Ok(values)
    }
}
