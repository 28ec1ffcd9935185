//! JSON schemas as the library supports them. Keywords that it lacks are rewritten where that is
//! equivalent, or rejected with their path in the schema.
//!
//! Problem: schemas generated from types have keywords without effect on a value, and others that
//! the grammar has no rule for. Dropping one of the latter would allow output that the schema does
//! not.
//! Method: visit all subschemas. 1. Drop annotations, formats that no validator knows, and keywords
//! without effect. 2. Replace a set of a few known values by the list of its arrangements, known
//! property names by listed properties, and a condition on a property with known values by one case
//! each. 3. Reject all other unsupported keywords.
//! Complexity: linear in the schema, except for 2, which is bounded.

use polydraft_text::Kind;
use serde_json::{Map, Value, json};

use super::counts::{expand_counts, gather_counts};
use super::parts::{visit_parts, with_path_segment};

/// Formats that the library supports.
const SUPPORTED_FORMATS: [&str; 10] =
    ["date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"];
/// Keywords without effect on a value.
const ANNOTATIONS: [&str; 7] = [
    "contentEncoding",
    "contentMediaType",
    "contentSchema",
    "deprecated",
    "example",
    "examples",
    "$vocabulary",
];
/// Keywords that the grammar has no rule for.
const UNSUPPORTED: [&str; 12] = [
    "$dynamicRef",
    "$recursiveRef",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "if",
    "not",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
];
/// Maximum values of a set whose arrangements are listed.
const MAX_SET_VALUES: usize = 5;
/// Bound of integers without one: fifteen digits, which every number type of the library represents
/// exactly. Without a bound a model may repeat digits without end.
pub(super) const MAX_INTEGER: i64 = 999_999_999_999_999;

/// Rewrites a schema for the library.
///
/// # Errors
/// An unsupported keyword, with its path.
pub fn rewrite(schema: Value) -> Result<Value, String> {
    let root = schema.clone();
    walk(schema, &root, &mut String::from("#"))
}

/// Schema for the library, with JSON's spaces as models write them.
pub(super) fn json_of(schema: &Value) -> Result<Value, String> {
    let mut schema = match rewrite(schema.clone())? {
        Value::Bool(true) => json!({}),
        schema => schema,
    };
    if schema.is_object() {
        schema["x-guidance"] = json!({ "whitespace_flexible": false, "item_separator": ", ",
            "key_separator": ": " });
    }
    Ok(schema)
}

fn walk(schema: Value, root: &Value, path: &mut String) -> Result<Value, String> {
    let Value::Object(mut schema) = schema else { return Ok(schema) };
    schema.retain(|keyword, value| is_constraint(keyword, value));
    expand_unique_items(&mut schema, root);
    expand_property_names(&mut schema, root);
    let cases = take_condition(&mut schema, root);
    rename_unevaluated(&mut schema);
    if let Some(keyword) = UNSUPPORTED.into_iter().find(|keyword| schema.contains_key(*keyword)) {
        return Err(format!("{path}: {keyword} is not supported"));
    }
    for keyword in ["const", "enum"] {
        if schema.get(keyword).is_some_and(has_long_integer) {
            return Err(format!("{path}: {keyword}: integers beyond 2^53 are not supported"));
        }
    }
    bound_integers(&mut schema);
    gather_counts(&mut schema);
    expand_counts(&mut schema)
        .map_err(|problem| format!("{path}: minProperties, maxProperties: {problem}"))?;
    visit_parts(&mut schema, path, &mut |part, path| {
        *part = walk(part.take(), root, path)?;
        Ok(())
    })?;
    let Some([then, otherwise]) = cases else { return Ok(Value::Object(schema)) };
    let case = |part: &str, case: Value, path: &mut String| {
        with_path_segment(path, part, |path| walk(case, root, path))
            .map(|case| json!({ "allOf": [schema, case] }))
    };
    let cases = [case("then", then, path)?, case("else", otherwise, path)?];
    Ok(json!({ "anyOf": cases }))
}

/// Whether a keyword changes the allowed values.
fn is_constraint(keyword: &str, value: &Value) -> bool {
    match keyword {
        "format" => value.as_str().is_some_and(|format| SUPPORTED_FORMATS.contains(&format)),
        "uniqueItems" => *value != Value::Bool(false),
        "unevaluatedItems" | "unevaluatedProperties" | "propertyNames" => {
            *value != Value::Bool(true)
                && *value != json!({})
                && *value != json!({ "type": "string" })
        }
        "dependentRequired" | "dependentSchemas" | "dependencies" => *value != json!({}),
        // Without `contains`, which is rejected, they have no effect.
        "minContains" | "maxContains" => false,
        _ => !ANNOTATIONS.contains(&keyword),
    }
}

/// Whether a value has an integer that the library would round.
fn has_long_integer(value: &Value) -> bool {
    const MOST: f64 = 9_007_199_254_740_992.0;
    match value {
        Value::Number(number) => number.as_f64().is_some_and(|number| number.abs() >= MOST),
        Value::Array(all) => all.iter().any(has_long_integer),
        Value::Object(all) => all.values().any(has_long_integer),
        _ => false,
    }
}

/// Follows references within the schema.
fn resolve<'s>(mut schema: &'s Value, root: &'s Value) -> &'s Value {
    // Bounded, so that a cycle of references ends.
    for _ in 0..8 {
        let reference = schema.get("$ref").and_then(Value::as_str);
        let Some(found) = reference
            .and_then(|reference| reference.strip_prefix('#'))
            .and_then(|pointer| root.pointer(pointer))
        else {
            break;
        };
        schema = found;
    }
    schema
}

/// Values of a schema, if it lists them.
pub(super) fn listed_values(schema: &Value, root: &Value) -> Option<Vec<Value>> {
    let schema = resolve(schema, root);
    match (schema.get("enum"), schema.get("const"), schema.get("type")) {
        (Some(Value::Array(values)), ..) => Some(values.clone()),
        (_, Some(value), _) => Some(vec![value.clone()]),
        (.., Some(kind)) if kind == "boolean" => Some(vec![false.into(), true.into()]),
        _ => None,
    }
}

/// Replaces an array of unique items from a few values by the list of its arrangements.
fn expand_unique_items(schema: &mut Map<String, Value>, root: &Value) {
    if schema.get("uniqueItems") != Some(&Value::Bool(true)) {
        return;
    }
    let number = |keyword: &str| schema.get(keyword).and_then(Value::as_u64);
    let (min, max) = (number("minItems").unwrap_or(0), number("maxItems"));
    if max.is_some_and(|max| max <= 1) {
        schema.remove("uniqueItems");
        return;
    }
    let Some(values) = schema.get("items").and_then(|items| listed_values(items, root)) else {
        return;
    };
    if values.len() > MAX_SET_VALUES || schema.contains_key("prefixItems") {
        return;
    }
    let lengths = min as usize..=max.map_or(values.len(), |max| max as usize).min(values.len());
    let mut all = Vec::new();
    arrange(&values, &mut Vec::new(), &lengths, &mut all);
    for keyword in ["uniqueItems", "items", "minItems", "maxItems", "type"] {
        schema.remove(keyword);
    }
    schema.insert("enum".to_owned(), all.into());
}

fn arrange(
    values: &[Value],
    chosen: &mut Vec<usize>,
    lengths: &std::ops::RangeInclusive<usize>,
    all: &mut Vec<Value>,
) {
    if lengths.contains(&chosen.len()) {
        all.push(chosen.iter().map(|number| values[*number].clone()).collect());
    }
    for number in 0..values.len() {
        if chosen.len() < *lengths.end() && !chosen.contains(&number) {
            chosen.push(number);
            arrange(values, chosen, lengths, all);
            chosen.pop();
        }
    }
}

/// Replaces `propertyNames` with listed names or a pattern by properties.
fn expand_property_names(schema: &mut Map<String, Value>, root: &Value) {
    let Some(names) = schema.get("propertyNames") else { return };
    let others = ["properties", "patternProperties"];
    if others.into_iter().any(|keyword| schema.contains_key(keyword)) {
        return;
    }
    let value = schema.get("additionalProperties").cloned().unwrap_or(Value::Bool(true));
    let pattern = resolve(names, root).get("pattern").cloned();
    let (keyword, properties): (_, Map<String, Value>) = match (listed_values(names, root), pattern)
    {
        (Some(names), _) => {
            let names = names.iter().filter_map(Value::as_str);
            (others[0], names.map(|name| (name.to_owned(), value.clone())).collect())
        }
        (None, Some(Value::String(pattern))) => (others[1], Map::from_iter([(pattern, value)])),
        _ => return,
    };
    schema.remove("propertyNames");
    schema.insert(keyword.to_owned(), properties.into());
    schema.insert("additionalProperties".to_owned(), false.into());
}

/// Takes a condition on one required property with listed values. Returns the cases in which it
/// holds and does not hold.
fn take_condition(schema: &mut Map<String, Value>, root: &Value) -> Option<[Value; 2]> {
    let holds = schema.get("if");
    let Some(holds) = holds else {
        // Without `if` they have no effect.
        schema.remove("then");
        schema.remove("else");
        return None;
    };
    let tested = holds.get("properties")?.as_object()?;
    let others =
        holds.as_object()?.keys().any(|keyword| keyword != "properties" && keyword != "required");
    let (name, test) = tested.iter().next().filter(|_| tested.len() == 1 && !others)?;
    let required = |schema: &Value| {
        schema
            .get("required")
            .and_then(Value::as_array)
            .is_some_and(|all| all.contains(&json!(name)))
    };
    let name = name.clone();
    let is_there = required(&Value::Object(schema.clone()));
    let all = listed_values(schema.get("properties")?.get(&name)?, root)?;
    let wanted = listed_values(test, root)?;
    if !is_there {
        return None;
    }
    let (yes, no): (Vec<Value>, Vec<Value>) =
        all.into_iter().partition(|value| wanted.contains(value));
    let mut case = |keyword: &str, values: Vec<Value>| {
        let rest = schema.remove(keyword).unwrap_or(Value::Bool(true));
        json!({ "allOf": [{ "properties": { &*name: { "enum": values } } }, rest] })
    };
    let cases = [case("then", yes), case("else", no)];
    schema.remove("if");
    Some(cases)
}

/// Replaces `unevaluated..` by `additional..` where no other part of the schema evaluates members.
fn rename_unevaluated(schema: &mut Map<String, Value>) {
    let parts = ["allOf", "anyOf", "oneOf", "$ref", "if"];
    if parts.into_iter().any(|keyword| schema.contains_key(keyword)) {
        return;
    }
    let rests = [("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")];
    for (keyword, rest) in rests {
        if let Some(value) = schema.remove(keyword) {
            schema.entry(rest).or_insert(value);
        }
    }
}

/// Adds bounds to integers without any.
fn bound_integers(schema: &mut Map<String, Value>) {
    if schema.get("type") != Some(&json!("integer")) {
        return;
    }
    let has = |schema: &Map<String, Value>, words: [&str; 3]| {
        words.into_iter().any(|keyword| schema.contains_key(keyword))
    };
    if !has(schema, ["minimum", "exclusiveMinimum", "enum"]) {
        schema.insert("minimum".to_owned(), (-MAX_INTEGER).into());
    }
    if !has(schema, ["maximum", "exclusiveMaximum", "enum"]) {
        schema.insert("maximum".to_owned(), MAX_INTEGER.into());
    }
}

/// Schema of the values of these kinds, for the library.
///
/// # Errors
/// An unsupported keyword, with its path in the schema.
pub(super) fn json_of_kinds(schema: &Value, kinds: &[Kind], root: &Value) -> Result<Value, String> {
    // The schema is the first of two parts.
    json_of(&restricted(schema, kinds, root)).map_err(|problem| {
        match problem.strip_prefix("#/allOf/0") {
            Some(rest) => format!("#{rest}"),
            None => problem,
        }
    })
}

/// A problem in a part of a schema, with its path in the whole.
pub(super) fn within(part: &str, problem: &str) -> String {
    match problem.strip_prefix('#') {
        Some(rest) => format!("#/{part}{rest}"),
        None => format!("#/{part}: {problem}"),
    }
}

/// Schema of the values of these kinds.
fn restricted(schema: &Value, kinds: &[Kind], root: &Value) -> Value {
    let names: Vec<&str> = kinds
        .iter()
        .map(|kind| match kind {
            Kind::String => "string",
            Kind::Number => "number",
            Kind::Boolean => "boolean",
            Kind::Null => "null",
            Kind::Object => "object",
            Kind::Array => "array",
        })
        .collect();
    let kinds = json!({ "type": &names });
    let mut schema = schema.clone();
    if schema.get("nullable") == Some(&Value::Bool(true))
        && let Some(members) = schema.as_object_mut()
    {
        members.shift_remove("nullable");
        if let Some(kind) = members.get_mut("type") {
            let mut kinds = kind.as_array().cloned().unwrap_or_else(|| vec![kind.take()]);
            kinds.push("null".into());
            *kind = kinds.into();
        }
    }
    // Merged ones may be a list, which only `text` knows.
    if let Some(members) = schema.as_object_mut().filter(|_| !names.contains(&"string")) {
        members.shift_remove("pattern");
    }
    let mut all = json!({ "allOf": [schema, kinds] });
    if schema.to_string().contains("\"$ref\"") {
        for key in ["$defs", "definitions"] {
            if let Some(defined) = root.get(key) {
                all[key] = defined.clone();
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_annotations() {
        let schema = json!({ "type": "object", "deprecated": true, "properties": {
            "a": { "type": "string", "format": "password", "examples": ["x"] },
            "b": { "type": "string", "format": "date" },
            "format": { "type": "array", "uniqueItems": false,
                "items": { "format": "binary" } } } });
        let expected = json!({ "type": "object", "properties": {
            "a": { "type": "string" }, "b": { "type": "string", "format": "date" },
            "format": { "type": "array", "items": {} } } });
        assert_eq!(rewrite(schema), Ok(expected));
    }

    #[test]
    fn names_the_path_of_an_unsupported_keyword() {
        for (part, keyword) in [
            (json!({ "not": { "type": "null" } }), "not"),
            (json!({ "type": "array", "contains": { "const": 1 } }), "contains"),
            (
                json!({ "type": "array", "uniqueItems": true, "items": { "type": "string" } }),
                "uniqueItems",
            ),
            (json!({ "if": { "type": "string" }, "then": {} }), "if"),
            (json!({ "propertyNames": { "minLength": 2 } }), "propertyNames"),
        ] {
            let schema = json!({ "properties": { "a": { "anyOf": [{}, part] } } });
            let expected = format!("#/properties/a/anyOf/1: {keyword} is not supported");
            assert_eq!(rewrite(schema), Err(expected));
        }
        // In values and names, these words are not keywords.
        let schema = json!({ "const": { "not": 1 }, "properties": { "not": { "enum": ["if"] } },
            "default": { "contains": 2 } });
        assert_eq!(rewrite(schema.clone()), Ok(schema));
    }

    #[test]
    fn lists_the_arrangements_of_small_sets() {
        let schema = json!({ "$defs": { "c": { "enum": ["r", "g", "b"] } }, "type": "array",
            "uniqueItems": true, "items": { "$ref": "#/$defs/c" }, "minItems": 1, "maxItems": 2 });
        let rewritten = rewrite(schema).unwrap();
        let all = rewritten["enum"].as_array().unwrap();
        assert_eq!(all.len(), 3 + 6);
        assert!(all.contains(&json!(["b", "r"])) && !all.contains(&json!(["b", "b"])));
    }

    #[test]
    fn rewrites_property_names_as_properties_or_patterns() {
        let schema = json!({ "type": "object", "additionalProperties": { "type": "integer" },
            "propertyNames": { "enum": ["a", "b"] } });
        let written = rewrite(schema).unwrap();
        assert_eq!(written["additionalProperties"], false);
        assert_eq!(written["properties"]["b"]["type"], "integer");
        let schema = json!({ "type": "object", "propertyNames": { "pattern": "^[a-z]+$" } });
        let written = rewrite(schema).unwrap();
        assert_eq!(written["patternProperties"], json!({ "^[a-z]+$": true }));
    }

    #[test]
    fn rewrites_conditions_on_listed_values_as_cases() {
        let schema = json!({ "type": "object", "required": ["kind"], "properties": {
            "kind": { "enum": ["a", "b"] }, "x": { "type": "string" } },
            "if": { "properties": { "kind": { "const": "a" } } }, "then": { "required": ["x"] } });
        let written = rewrite(schema).unwrap();
        let [then, otherwise] = &written["anyOf"].as_array().unwrap()[..] else { panic!() };
        let conditions = |case: &Value| case["allOf"][1]["allOf"].clone();
        assert_eq!(
            conditions(then),
            json!([{ "properties": { "kind": { "enum": ["a"] } } },
            { "required": ["x"] }])
        );
        assert_eq!(conditions(otherwise)[0]["properties"]["kind"]["enum"], json!(["b"]));
    }

    #[test]
    fn rewrites_unevaluated_properties_as_additional() {
        let schema = json!({ "properties": { "a": {} }, "unevaluatedProperties": false });
        let expected = json!({ "properties": { "a": {} }, "additionalProperties": false });
        assert_eq!(rewrite(schema), Ok(expected));
        assert!(rewrite(json!({ "anyOf": [{}], "unevaluatedItems": false })).is_err());
    }

    #[test]
    fn bounds_integers_without_limits() {
        let written = rewrite(json!({ "type": "integer", "minimum": 3 })).unwrap();
        assert_eq!((&written["minimum"], &written["maximum"]), (&json!(3), &json!(MAX_INTEGER)));
    }
}
