//! Typed access to the fields of a JSON object, with errors that name the field.

use polydraft::Token;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

type Result<T> = std::result::Result<T, String>;

/// Fields of a JSON object; null counts as missing, as in transformers. Errors are messages that
/// name the field; the reader of the file adds its path.
#[derive(Debug, Clone, Copy)]
pub struct Fields<'a>(&'a Map<String, Value>);

impl<'a> Fields<'a> {
    /// Wraps a JSON value.
    ///
    /// # Errors
    /// Fails if the value is not an object.
    pub fn new(value: &'a Value) -> Result<Self> {
        value.as_object().map(Self).ok_or_else(|| "expected a JSON object".to_owned())
    }

    /// Returns a copy of the object.
    pub fn to_value(&self) -> Value {
        Value::Object(self.0.clone())
    }

    /// Returns whether the field is present, even if null: some defaults apply only to missing
    /// fields.
    pub fn contains(&self, field: &str) -> bool {
        self.0.contains_key(field)
    }

    /// Returns a field's value; `None` if it is missing or null.
    ///
    /// # Errors
    /// Fails if the value has another type.
    pub fn get<T: DeserializeOwned>(&self, field: &str) -> Result<Option<T>> {
        match self.0.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => T::deserialize(value).map(Some).map_err(|e| format!("{field}: {}", e)),
        }
    }

    /// Returns a boolean field, or `default` if it is missing.
    ///
    /// # Errors
    /// Fails if the value is not a boolean.
    pub fn flag(&self, field: &str, default: bool) -> Result<bool> {
        Ok(self.get(field)?.unwrap_or(default))
    }

    /// Returns a nested object.
    ///
    /// # Errors
    /// Fails if the value is not an object.
    pub fn object(&self, field: &str) -> Result<Option<Fields<'a>>> {
        match self.0.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => Self::new(value).map(Some).map_err(|e| format!("{field}: {e}")),
        }
    }

    /// Returns a required size from 1 to `most`.
    ///
    /// # Errors
    /// Fails if the field is missing, or its value out of range.
    pub fn size(&self, field: &str, most: usize) -> Result<usize> {
        let value =
            self.get(field)?.ok_or_else(|| format!("{field}: expected a number, got none"))?;
        in_range(field, value, most)
    }

    /// Returns a size from 1 to `most`, or `default` if the field is missing.
    ///
    /// # Errors
    /// Fails if the value is out of range.
    pub fn size_or(&self, field: &str, default: usize, most: usize) -> Result<usize> {
        in_range(field, self.get(field)?.unwrap_or(default), most)
    }

    /// Returns a positive number; `None` if the field is missing.
    ///
    /// # Errors
    /// Fails if the value is not a positive number.
    pub fn number(&self, field: &str) -> Result<Option<f64>> {
        let value = self.get(field)?;
        check_positive(field, value)?;
        Ok(value)
    }
}

/// Checks that a number, if present, is finite and positive.
///
/// # Errors
/// Fails if it is not.
pub fn check_positive(field: &str, value: Option<f64>) -> Result<()> {
    match value {
        Some(value) if !(value.is_finite() && value > 0.0) => {
            Err(format!("{field}: expected a positive number, got {value}"))
        }
        _ => Ok(()),
    }
}

fn in_range(field: &str, value: usize, most: usize) -> Result<usize> {
    if (1..=most).contains(&value) {
        return Ok(value);
    }
    Err(format!("{field}: expected a number from 1 to {most}, got {value}"))
}

/// Returns the tokens of `eos_token_id`: one id, several, or none.
///
/// # Errors
/// Fails if the value is neither an id nor a list of ids.
pub fn end_tokens(fields: &Fields) -> Result<Vec<Token>> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a token id or a list of token ids")]
    enum Ids {
        One(Token),
        Several(Vec<Token>),
    }
    let ids = fields.get::<Ids>("eos_token_id").map_err(|problem| {
        match fields.get::<Value>("eos_token_id") {
            Ok(Some(got)) => {
                format!("{problem}, got {}", got.to_string().chars().take(60).collect::<String>())
            }
            _ => problem,
        }
    })?;
    Ok(match ids {
        None => Vec::new(),
        Some(Ids::One(id)) => vec![id],
        Some(Ids::Several(ids)) => ids,
    })
}
