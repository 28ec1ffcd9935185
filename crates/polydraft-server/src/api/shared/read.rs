//! JSON to parameters, with errors that name the parameter.

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::error::Problem;

/// Reads parameters; the one that is wrong is named.
///
/// # Errors
/// A value of another type, or out of its type's range.
pub fn read<T: DeserializeOwned>(value: Value) -> Result<T, Problem> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let words = error.into_inner();
        match path.as_str() {
            "." => Problem::invalid(words),
            // Many clients show nothing but the message.
            _ => Problem::invalid(format_args!("{path}: {words}")).of(&path),
        }
    })
}
