//! Parameters from JSON, with errors that name the parameter, in words of JSON.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::error::Problem;

/// Deserializes parameters. Errors name the parameter.
///
/// # Errors
/// A value of another type, or out of its type's range.
pub fn read<T: DeserializeOwned>(value: Value) -> Result<T, Problem> {
    serde_path_to_error::deserialize(&value).map_err(|error| {
        let path = error.path().to_string();
        let words = error.into_inner().to_string();
        // An unknown key, as of an enum: the message shows it.
        let mut path = path.trim_end_matches(".?");
        let is_missing = words.starts_with("missing field `");
        if is_missing {
            // Of an object whose type is known: not of the type itself.
            path = if path == "type" { "." } else { path.strip_suffix(".type").unwrap_or(path) };
        }
        let path = match path {
            "." if is_missing => None,
            "." => flattened_param::<T>(&value, &words),
            _ => Some(path.to_owned()),
        };
        let words = in_words(&words);
        match path {
            None => Problem::invalid(words),
            // Many clients show the message only.
            Some(path) => Problem::invalid(format_args!("{path}: {words}")).with_param(&path),
        }
    })
}

/// Name of the parameter with this error in a flattened structure, of which the path has none: the
/// one that has it on its own.
fn flattened_param<T: DeserializeOwned>(value: &Value, error: &str) -> Option<String> {
    let fails = |(name, value): &(&String, &Value)| {
        let alone = Map::from_iter([((*name).clone(), (*value).clone())]);
        let result: Result<T, _> = serde_json::from_value(Value::Object(alone));
        result.is_err_and(|found| found.to_string() == error)
    };
    value.as_object()?.iter().find(fails).map(|(name, _)| name.clone())
}

/// Maximum characters of a value that an error shows.
const MAX_SHOWN: usize = 80;

/// An error of serde in words of JSON.
fn in_words(error: &str) -> String {
    let message = |prefix: &str| {
        let (got, expected) = error.strip_prefix(prefix)?.rsplit_once(", expected ")?;
        Some(format!("expected {}, got {}", expected_in_words(expected), value_in_words(got)))
    };
    let named = |prefix: &str| Some(error.strip_prefix(prefix)?.split_once('`')?.0);
    if let Some(words) = message("invalid type: ").or_else(|| message("invalid value: ")) {
        return words;
    }
    if let Some(field) = named("missing field `") {
        return format!("the field {field:?} is missing");
    }
    if let Some(field) = named("duplicate field `") {
        return format!("the field {field:?} is given twice, the second time by another name");
    }
    if let Some(rest) = error.strip_prefix("unknown variant `")
        && let Some((got, expected)) = rest.rsplit_once("`, expected ")
    {
        return format!("expected {}, got {:?}", choices(expected), shortened(got));
    }
    if let Some(field) = named("unknown field `").filter(|_| error.ends_with("no fields")) {
        return format!("unknown field {field:?}");
    }
    if let Some(rest) = error.strip_prefix("unknown field `")
        && let Some((got, expected)) = rest.rsplit_once("`, expected ")
    {
        let got = shortened(got);
        return format!("unknown field {got:?}: expected {}", choices(expected));
    }
    if let Some(rest) = error.strip_prefix("invalid length ")
        && let Some((got, expected)) = rest.split_once(", expected ")
    {
        return format!("expected {}, got {got}", expected_in_words(expected));
    }
    // What untagged forms expect.
    let mut forms = ["a ", "an ", "one of ", "pairs ", "true or "].iter();
    match forms.any(|start| error.starts_with(start)) {
        true => format!("expected {error}"),
        false => error.to_owned(),
    }
}

/// Names in serde's quotes, in those of JSON.
fn choices(expected: &str) -> String {
    expected.replace('`', "\"")
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{}..", &text[..end]),
        None => text.to_owned(),
    }
}

/// Expectation of serde's, in words.
fn expected_in_words(expected: &str) -> String {
    let first = expected.split(' ').next().unwrap_or_default();
    let words = match expected {
        "i8" | "i16" | "i32" | "i64" | "isize" => "an integer",
        "u32" => "an integer from 0 to 4294967295",
        "u8" | "u16" | "u64" | "usize" => "an integer of at least 0",
        "f32" | "f64" | "a JSON number" => "a number",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" | "a Map" => "an object",
        "string or map" => "an object",
        "variant identifier" | "field identifier" => "a name",
        "any valid JSON value" => "any value",
        _ if matches!(first, "struct" | "internally" | "adjacently") => "an object",
        _ if matches!(first, "enum" | "variant") => "a string or an object",
        _ if matches!(first, "tuple") || expected.starts_with("a tuple") => "a list",
        other => return choices(other),
    };
    words.to_owned()
}

/// Value that serde got, in words.
fn value_in_words(got: &str) -> String {
    let quoted = |prefix: &str| got.strip_prefix(prefix)?.strip_suffix('`');
    if let Some(text) = got.strip_prefix("string ") {
        return match text.chars().count() > MAX_SHOWN {
            true => format!("{}\"", shortened(text)),
            false => text.to_owned(),
        };
    }
    let value = ["boolean `", "integer `", "floating point `"].iter().find_map(|kind| quoted(kind));
    match (value, got) {
        (Some(value), _) => value.to_owned(),
        (None, "map") => "an object".to_owned(),
        (None, "sequence") => "a list".to_owned(),
        (None, "unit" | "Option value" | "unit value") => "null".to_owned(),
        (None, other) => choices(other),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;
    use serde_json::json;

    use super::*;
    use crate::api::shared::values::{OneOrMany, limit};

    #[derive(Debug, Deserialize)]
    #[serde(tag = "type", rename_all = "snake_case")]
    #[expect(dead_code, reason = "only read")]
    enum Format {
        Text {},
        Json { schema: BTreeMap<String, f64> },
    }

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only read")]
    struct Role {
        role: String,
    }

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only read")]
    struct Inner {
        kwargs: Option<Map<String, Value>>,
    }

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only read")]
    struct Params {
        count: Option<usize>,
        seed: Option<i64>,
        ratio: Option<f32>,
        stop: Option<OneOrMany<String>>,
        list: Option<Vec<Role>>,
        format: Option<Format>,
        stream: Option<bool>,
        #[serde(default, deserialize_with = "limit", alias = "n_predict")]
        max_tokens: Option<Option<usize>>,
        #[serde(flatten)]
        inner: Inner,
    }

    #[test]
    fn errors_have_words_of_json() {
        for (value, expected) in [
            (json!({ "count": -1 }), "count: expected an integer of at least 0, got -1"),
            (json!({ "count": "a" }), "count: expected an integer of at least 0, got \"a\""),
            (json!({ "seed": 0.5 }), "seed: expected an integer, got 0.5"),
            (json!({ "ratio": [] }), "ratio: expected a number, got a list"),
            (json!({ "stop": 5 }), "stop: expected a string or a list of strings"),
            (json!({ "list": {} }), "list: expected a list, got an object"),
            (json!({ "list": [5] }), "list[0]: expected an object, got 5"),
            (json!({ "list": [{}] }), "list[0]: the field \"role\" is missing"),
            (json!({ "list": [{ "role": null }] }), "list[0].role: expected a string, got null"),
            (json!({ "format": "json" }), "format: expected an object, got \"json\""),
            (
                json!({ "format": { "type": "xml" } }),
                "format.type: expected \"text\" or \"json\", got \"xml\"",
            ),
            (json!({ "stream": 2 }), "stream: expected true or false, got 2"),
            (json!({ "kwargs": "x" }), "kwargs: expected an object, got \"x\""),
            (json!({ "format": { "type": "json" } }), "format: the field \"schema\" is missing"),
            (
                json!({ "n_predict": -2 }),
                "n_predict: expected at least 0, or -1 for no limit, got -2",
            ),
            (
                json!({ "n_predict": 1, "max_tokens": 1 }),
                "the field \"max_tokens\" is given twice, the second time by another name",
            ),
        ] {
            let problem = read::<Params>(value.clone()).expect_err("invalid");
            assert_eq!(problem.error.message, expected, "{value}");
        }
        let long = json!({ "seed": "a".repeat(500) });
        assert!(read::<Params>(long).expect_err("invalid").error.message.len() < 150);
    }
}
