//! Fields of a JSON object, with errors that name them.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

type Result<T> = std::result::Result<T, String>;

/// The fields of an object; one that is null counts as missing, as in transformers.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a>(&'a Map<String, Value>);

impl<'a> Fields<'a> {
    pub fn of(value: &'a Value) -> Result<Self> {
        value.as_object().map(Self).ok_or_else(|| "expected a JSON object".to_owned())
    }

    /// Whether the field is there, null included: some defaults hold only for a field that is missing.
    pub fn given(&self, field: &str) -> bool {
        self.0.contains_key(field)
    }

    pub fn get<T: DeserializeOwned>(&self, field: &str) -> Result<Option<T>> {
        match self.0.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => T::deserialize(value).map(Some).map_err(|e| format!("{field}: {e}")),
        }
    }

    pub fn flag(&self, field: &str, default: bool) -> Result<bool> {
        Ok(self.get(field)?.unwrap_or(default))
    }

    /// An object inside.
    pub fn object(&self, field: &str) -> Result<Option<Fields<'a>>> {
        match self.0.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => Self::of(value).map(Some).map_err(|e| format!("{field}: {e}")),
        }
    }

    /// A size that must be given.
    pub fn size(&self, field: &str, most: usize) -> Result<usize> {
        let value = self.get(field)?.ok_or_else(|| format!("{field}: expected a number, found none"))?;
        in_range(field, value, most)
    }

    pub fn size_or(&self, field: &str, default: usize, most: usize) -> Result<usize> {
        in_range(field, self.get(field)?.unwrap_or(default), most)
    }

    pub fn number(&self, field: &str) -> Result<Option<f64>> {
        let value = self.get(field)?;
        positive(field, value)?;
        Ok(value)
    }
}

/// That a number, if there is one, is finite and above 0.
pub(crate) fn positive(field: &str, value: Option<f64>) -> Result<()> {
    match value {
        Some(value) if !(value.is_finite() && value > 0.0) => {
            Err(format!("{field}: expected a positive number, found {value}"))
        }
        _ => Ok(()),
    }
}

fn in_range(field: &str, value: usize, most: usize) -> Result<usize> {
    if (1..=most).contains(&value) {
        return Ok(value);
    }
    Err(format!("{field}: expected a number from 1 to {most}, found {value}"))
}
