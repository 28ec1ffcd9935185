//! Parameters from JSON, with errors that name the parameter.

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::error::Problem;

/// Deserializes parameters. Errors name the parameter.
///
/// # Errors
/// A value of another type, or out of its type's range.
pub fn read<T: DeserializeOwned>(value: Value) -> Result<T, Problem> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let words = error.into_inner();
        match path.as_str() {
            "." => Problem::invalid(words),
            // Many clients show the message only.
            _ => Problem::invalid(format_args!("{path}: {words}")).with_param(&path),
        }
    })
}
