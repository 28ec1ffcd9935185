//! Fields of a JSON object, with errors that name them.

use polydraft::Token;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

type Result<T> = std::result::Result<T, String>;

/// The fields of an object; one that is null counts as missing, as in transformers. Errors are
/// messages that name the field: the reader of the file adds the file.
#[derive(Debug, Clone, Copy)]
pub struct Fields<'a>(&'a Map<String, Value>);

impl<'a> Fields<'a> {
    /// Those of a value.
    ///
    /// # Errors
    /// A value that is no object.
    pub fn of(value: &'a Value) -> Result<Self> {
        value.as_object().map(Self).ok_or_else(|| "expected a JSON object".to_owned())
    }

    /// Whether the field is there, null included: some defaults hold only for a field that is
    /// missing.
    pub fn given(&self, field: &str) -> bool {
        self.0.contains_key(field)
    }

    /// A field's value, if it has one.
    ///
    /// # Errors
    /// A value of another type.
    pub fn get<T: DeserializeOwned>(&self, field: &str) -> Result<Option<T>> {
        match self.0.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => T::deserialize(value).map(Some).map_err(|e| format!("{field}: {}", e)),
        }
    }

    /// Whether something is so, `default` if nothing is said.
    ///
    /// # Errors
    /// A value that is no truth value.
    pub fn flag(&self, field: &str, default: bool) -> Result<bool> {
        Ok(self.get(field)?.unwrap_or(default))
    }

    /// An object inside.
    ///
    /// # Errors
    /// A value that is no object.
    pub fn object(&self, field: &str) -> Result<Option<Fields<'a>>> {
        match self.0.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => Self::of(value).map(Some).map_err(|e| format!("{field}: {e}")),
        }
    }

    /// A size from 1 to `most` that must be given.
    ///
    /// # Errors
    /// No value, or another one.
    pub fn size(&self, field: &str, most: usize) -> Result<usize> {
        let value =
            self.get(field)?.ok_or_else(|| format!("{field}: expected a number, got none"))?;
        in_range(field, value, most)
    }

    /// A size from 1 to `most`, `default` if none is given.
    ///
    /// # Errors
    /// Another value.
    pub fn size_or(&self, field: &str, default: usize, most: usize) -> Result<usize> {
        in_range(field, self.get(field)?.unwrap_or(default), most)
    }

    /// A positive number, if there is one.
    ///
    /// # Errors
    /// Another value.
    pub fn number(&self, field: &str) -> Result<Option<f64>> {
        let value = self.get(field)?;
        positive(field, value)?;
        Ok(value)
    }
}

/// That a number, if there is one, is finite and above 0.
///
/// # Errors
/// One that is not.
pub fn positive(field: &str, value: Option<f64>) -> Result<()> {
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

/// The tokens of `eos_token_id`: one id, several, or none.
///
/// # Errors
/// A value that is neither an id nor a list of ids.
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
