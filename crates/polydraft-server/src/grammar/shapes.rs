//! Kinds of values that the keywords of a JSON schema have.

use serde_json::{Map, Value};

/// Keywords with schemas by name.
const BY_NAME: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];
/// Keywords with a list.
const LISTS: [&str; 4] = ["anyOf", "oneOf", "allOf", "enum"];

/// Keywords with a number.
const NUMBERS: [&str; 9] = [
    "minimum",
    "maximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
];
/// Names of types.
const TYPES: [&str; 7] = ["object", "array", "string", "number", "integer", "boolean", "null"];

/// Checks that the keywords of a schema that contain others have values of their kind.
///
/// # Errors
/// The first that has not, with its place in the schema.
pub(super) fn check_shapes(schema: &Map<String, Value>, path: &str) -> Result<(), String> {
    let found = |keyword: &str, is_right: fn(&Value) -> bool| {
        schema.get(keyword).filter(|value| !is_right(value)).map(kind_name)
    };
    for (keywords, expected, is_right) in [
        (BY_NAME, "an object of schemas", Value::is_object as fn(&Value) -> bool),
        (LISTS, "a list", Value::is_array),
    ] {
        for keyword in keywords {
            if let Some(kind) = found(keyword, is_right) {
                return Err(format!(
                    "{path}/{keyword}: expected {expected}, got {kind}: correct it, or leave \
                     {keyword} out"
                ));
            }
        }
    }
    if let Some(kind) = found("required", |value| !value.is_null()) {
        return Err(format!(
            "{path}/required: expected a list of names, got {kind}: leave required out"
        ));
    }
    for keyword in NUMBERS {
        if let Some(kind) = found(keyword, Value::is_number) {
            return Err(format!("{path}/{keyword}: expected a number, got {kind}"));
        }
    }
    let types = match schema.get("type") {
        Some(Value::Array(types)) => types.as_slice(),
        one => one.map_or(&[][..], std::slice::from_ref),
    };
    match types.iter().find(|name| !name.as_str().is_some_and(|name| TYPES.contains(&name))) {
        None => Ok(()),
        Some(other) => Err(format!("{path}/type: expected {}, got {other}", TYPES.join(", "))),
    }
}

/// Checks that a part of a schema is one.
///
/// # Errors
/// Another value, with its place in the schema.
pub(super) fn check_schema(schema: &Value, path: &str) -> Result<(), String> {
    match schema {
        Value::Object(_) | Value::Bool(_) => Ok(()),
        other => Err(format!(
            "{path}: expected a schema (an object, true or false), got {}",
            kind_name(other)
        )),
    }
}

fn kind_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::standard::standardise;

    #[test]
    fn names_the_place_of_a_keyword_with_a_value_of_another_kind() {
        for (schema, expected) in [
            (
                json!({ "properties": null }),
                "#/properties: expected an object of schemas, got null",
            ),
            (
                json!({ "properties": { "a": { "anyOf": {} } } }),
                "#/properties/a/anyOf: expected a list, got an object",
            ),
            (json!({ "properties": { "a": 1 } }), "#/properties/a: expected a schema"),
            (json!({ "required": null }), "#/required: expected a list of names, got null"),
            (json!({ "allOf": [{ "type": 3 }] }), "#/allOf/0/type: expected object, array"),
            (json!({ "items": { "type": ["null", "any"] } }), "#/items/type: expected object"),
            (json!({ "minimum": "x" }), "#/minimum: expected a number, got a string"),
        ] {
            let problem = standardise(schema).unwrap_err();
            assert!(problem.starts_with(expected), "{problem}");
        }
    }
}
