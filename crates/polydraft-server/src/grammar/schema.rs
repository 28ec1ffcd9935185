//! JSON schemas as the library knows them: what it has no word for is rewritten, where that says
//! the same, or refused by its place in the schema.
//!
//! Problem: schemas that libraries make of types have words that say nothing about a value, and
//! others that the grammar has no rule for. To drop one of the latter would allow output that the
//! schema does not.
//! Method: a walk over all places where a schema may stand. 1. Annotations, formats that no
//! validator knows, and words without effect are dropped. 2. A set of a few known values is a list
//! of all their arrangements; an object with known names lists its properties; a condition on a
//! property with known values is one case for each of them. 3. All else is refused.
//! Complexity: linear in the schema, but for 2, which is bounded.

use serde_json::{Map, Value, json};

/// Formats that the library has a rule for.
const FORMATS: [&str; 10] =
    ["date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"];
/// Words that say nothing about a value.
const ANNOTATIONS: [&str; 7] = [
    "contentEncoding",
    "contentMediaType",
    "contentSchema",
    "deprecated",
    "example",
    "examples",
    "$vocabulary",
];
/// Words that the grammar has no rule for.
const REFUSED: [&str; 12] = [
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
/// Where schemas stand by name, one by one, and in lists.
const BY_NAME: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];
const ALONE: [&str; 3] = ["items", "additionalProperties", "additionalItems"];
const LISTED: [&str; 4] = ["anyOf", "oneOf", "allOf", "prefixItems"];

/// Values of a set of which all arrangements are listed.
const SET: usize = 5;
/// An integer has at most fifteen digits where no bound is given, which every number of the library
/// can say exactly: a model that has begun to write digits may write nothing else.
const INTEGER: i64 = 999_999_999_999_999;

/// The schema, as the library knows it.
///
/// # Errors
/// A part that cannot be enforced, and where it stands.
pub fn rewritten(schema: Value) -> Result<Value, String> {
    let root = schema.clone();
    walk(schema, &root, &mut String::from("#"))
}

/// Inside a part of the schema.
fn inside<T>(
    path: &mut String,
    part: &str,
    work: impl FnOnce(&mut String) -> Result<T, String>,
) -> Result<T, String> {
    let length = path.len();
    path.push('/');
    path.push_str(part);
    let done = work(path);
    path.truncate(length);
    done
}

fn walk(schema: Value, root: &Value, path: &mut String) -> Result<Value, String> {
    let Value::Object(mut schema) = schema else { return Ok(schema) };
    schema.retain(|word, value| says_something(word, value));
    set(&mut schema, root);
    names(&mut schema, root);
    let cases = condition(&mut schema, root);
    unevaluated(&mut schema);
    if let Some(word) = REFUSED.into_iter().find(|word| schema.contains_key(*word)) {
        return Err(format!("{path}: {word} is not supported"));
    }
    bound(&mut schema);
    for word in BY_NAME {
        if let Some(Value::Object(members)) = schema.get_mut(word) {
            for (name, member) in members.iter_mut() {
                let part = format!("{word}/{name}");
                *member = inside(path, &part, |path| walk(member.take(), root, path))?;
            }
        }
    }
    for word in ALONE {
        if let Some(member) = schema.get_mut(word) {
            *member = inside(path, word, |path| walk(member.take(), root, path))?;
        }
    }
    for word in LISTED.into_iter().chain(["items"]) {
        if let Some(Value::Array(members)) = schema.get_mut(word) {
            for (number, member) in members.iter_mut().enumerate() {
                let part = format!("{word}/{number}");
                *member = inside(path, &part, |path| walk(member.take(), root, path))?;
            }
        }
    }
    let Some([then, otherwise]) = cases else { return Ok(Value::Object(schema)) };
    let case = |part: &str, case: Value, path: &mut String| {
        inside(path, part, |path| walk(case, root, path))
            .map(|case| json!({ "allOf": [schema, case] }))
    };
    let cases = [case("then", then, path)?, case("else", otherwise, path)?];
    Ok(json!({ "anyOf": cases }))
}

/// Whether a word changes which values are allowed.
fn says_something(word: &str, value: &Value) -> bool {
    match word {
        "format" => value.as_str().is_some_and(|format| FORMATS.contains(&format)),
        "uniqueItems" => *value != Value::Bool(false),
        "unevaluatedItems" | "unevaluatedProperties" | "propertyNames" => {
            *value != Value::Bool(true)
                && *value != json!({})
                && *value != json!({ "type": "string" })
        }
        "dependentRequired" | "dependentSchemas" | "dependencies" => *value != json!({}),
        // Without contains, which is refused, they say nothing.
        "minContains" | "maxContains" => false,
        _ => !ANNOTATIONS.contains(&word),
    }
}

/// What a reference within the schema refers to.
fn resolved<'s>(mut schema: &'s Value, root: &'s Value) -> &'s Value {
    // A circle of references ends too.
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

/// The values of a schema, if it lists them.
fn values(schema: &Value, root: &Value) -> Option<Vec<Value>> {
    let schema = resolved(schema, root);
    match (schema.get("enum"), schema.get("const"), schema.get("type")) {
        (Some(Value::Array(values)), ..) => Some(values.clone()),
        (_, Some(value), _) => Some(vec![value.clone()]),
        (.., Some(kind)) if kind == "boolean" => Some(vec![false.into(), true.into()]),
        _ => None,
    }
}

/// A list whose items differ, of a few values: all their arrangements.
fn set(schema: &mut Map<String, Value>, root: &Value) {
    if schema.get("uniqueItems") != Some(&Value::Bool(true)) {
        return;
    }
    let number = |word: &str| schema.get(word).and_then(Value::as_u64);
    let (least, most) = (number("minItems").unwrap_or(0), number("maxItems"));
    if most.is_some_and(|most| most <= 1) {
        schema.remove("uniqueItems");
        return;
    }
    let Some(values) = schema.get("items").and_then(|items| values(items, root)) else { return };
    if values.len() > SET || schema.contains_key("prefixItems") {
        return;
    }
    let lengths =
        least as usize..=most.map_or(values.len(), |most| most as usize).min(values.len());
    let mut all = Vec::new();
    arrange(&values, &mut Vec::new(), &lengths, &mut all);
    for word in ["uniqueItems", "items", "minItems", "maxItems", "type"] {
        schema.remove(word);
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

/// An object whose names are listed, or match an expression.
fn names(schema: &mut Map<String, Value>, root: &Value) {
    let Some(names) = schema.get("propertyNames") else { return };
    let others = ["properties", "patternProperties"];
    if others.into_iter().any(|word| schema.contains_key(word)) {
        return;
    }
    let value = schema.get("additionalProperties").cloned().unwrap_or(Value::Bool(true));
    let pattern = resolved(names, root).get("pattern").cloned();
    let (word, properties): (_, Map<String, Value>) = match (values(names, root), pattern) {
        (Some(names), _) => {
            let names = names.iter().filter_map(Value::as_str);
            (others[0], names.map(|name| (name.to_owned(), value.clone())).collect())
        }
        (None, Some(Value::String(pattern))) => (others[1], Map::from_iter([(pattern, value)])),
        _ => return,
    };
    schema.remove("propertyNames");
    schema.insert(word.to_owned(), properties.into());
    schema.insert("additionalProperties".to_owned(), false.into());
}

/// A condition on one property that is always there and whose values are listed: the case in which
/// it holds, and the other one.
fn condition(schema: &mut Map<String, Value>, root: &Value) -> Option<[Value; 2]> {
    let holds = schema.get("if");
    let Some(holds) = holds else {
        // They say nothing alone.
        schema.remove("then");
        schema.remove("else");
        return None;
    };
    let tested = holds.get("properties")?.as_object()?;
    let others = holds.as_object()?.keys().any(|word| word != "properties" && word != "required");
    let (name, test) = tested.iter().next().filter(|_| tested.len() == 1 && !others)?;
    let required = |schema: &Value| {
        schema
            .get("required")
            .and_then(Value::as_array)
            .is_some_and(|all| all.contains(&json!(name)))
    };
    let name = name.clone();
    let is_there = required(&Value::Object(schema.clone()));
    let all = values(schema.get("properties")?.get(&name)?, root)?;
    let wanted = values(test, root)?;
    if !is_there {
        return None;
    }
    let (yes, no): (Vec<Value>, Vec<Value>) =
        all.into_iter().partition(|value| wanted.contains(value));
    let mut case = |word: &str, values: Vec<Value>| {
        let rest = schema.remove(word).unwrap_or(Value::Bool(true));
        json!({ "allOf": [{ "properties": { &*name: { "enum": values } } }, rest] })
    };
    let cases = [case("then", yes), case("else", no)];
    schema.remove("if");
    Some(cases)
}

/// What no other part of a schema has looked at: without parts that could, what is left over.
fn unevaluated(schema: &mut Map<String, Value>) {
    let parts = ["allOf", "anyOf", "oneOf", "$ref", "if"];
    if parts.into_iter().any(|word| schema.contains_key(word)) {
        return;
    }
    let rests = [("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")];
    for (word, rest) in rests {
        if let Some(value) = schema.remove(word) {
            schema.entry(rest).or_insert(value);
        }
    }
}

/// Integers without bounds get some.
fn bound(schema: &mut Map<String, Value>) {
    if schema.get("type") != Some(&json!("integer")) {
        return;
    }
    let has = |schema: &Map<String, Value>, words: [&str; 3]| {
        words.into_iter().any(|word| schema.contains_key(word))
    };
    if !has(schema, ["minimum", "exclusiveMinimum", "enum"]) {
        schema.insert("minimum".to_owned(), (-INTEGER).into());
    }
    if !has(schema, ["maximum", "exclusiveMaximum", "enum"]) {
        schema.insert("maximum".to_owned(), INTEGER.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_are_dropped() {
        let schema = json!({ "type": "object", "deprecated": true, "properties": {
            "a": { "type": "string", "format": "password", "examples": ["x"] },
            "b": { "type": "string", "format": "date" },
            "format": { "type": "array", "uniqueItems": false,
                "items": { "format": "binary" } } } });
        let expected = json!({ "type": "object", "properties": {
            "a": { "type": "string" }, "b": { "type": "string", "format": "date" },
            "format": { "type": "array", "items": {} } } });
        assert_eq!(rewritten(schema), Ok(expected));
    }

    #[test]
    fn what_cannot_be_enforced_is_named_by_its_place() {
        for (part, word) in [
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
            let expected = format!("#/properties/a/anyOf/1: {word} is not supported");
            assert_eq!(rewritten(schema), Err(expected));
        }
        // Where no schema stands, words are values or names.
        let schema = json!({ "const": { "not": 1 }, "properties": { "not": { "enum": ["if"] } },
            "default": { "contains": 2 } });
        assert_eq!(rewritten(schema.clone()), Ok(schema));
    }

    #[test]
    fn sets_of_a_few_values_are_their_arrangements() {
        let schema = json!({ "$defs": { "c": { "enum": ["r", "g", "b"] } }, "type": "array",
            "uniqueItems": true, "items": { "$ref": "#/$defs/c" }, "minItems": 1, "maxItems": 2 });
        let rewritten = rewritten(schema).unwrap();
        let all = rewritten["enum"].as_array().unwrap();
        assert_eq!(all.len(), 3 + 6);
        assert!(all.contains(&json!(["b", "r"])) && !all.contains(&json!(["b", "b"])));
    }

    #[test]
    fn names_may_be_listed() {
        let schema = json!({ "type": "object", "additionalProperties": { "type": "integer" },
            "propertyNames": { "enum": ["a", "b"] } });
        let written = rewritten(schema).unwrap();
        assert_eq!(written["additionalProperties"], false);
        assert_eq!(written["properties"]["b"]["type"], "integer");
        let schema = json!({ "type": "object", "propertyNames": { "pattern": "^[a-z]+$" } });
        let written = rewritten(schema).unwrap();
        assert_eq!(written["patternProperties"], json!({ "^[a-z]+$": true }));
    }

    #[test]
    fn conditions_on_listed_values_are_cases() {
        let schema = json!({ "type": "object", "required": ["kind"], "properties": {
            "kind": { "enum": ["a", "b"] }, "x": { "type": "string" } },
            "if": { "properties": { "kind": { "const": "a" } } }, "then": { "required": ["x"] } });
        let written = rewritten(schema).unwrap();
        let [then, otherwise] = &written["anyOf"].as_array().unwrap()[..] else { panic!() };
        let of = |case: &Value| case["allOf"][1]["allOf"].clone();
        assert_eq!(
            of(then),
            json!([{ "properties": { "kind": { "enum": ["a"] } } },
            { "required": ["x"] }])
        );
        assert_eq!(of(otherwise)[0]["properties"]["kind"]["enum"], json!(["b"]));
    }

    #[test]
    fn what_is_left_over_has_a_word_of_its_own() {
        let schema = json!({ "properties": { "a": {} }, "unevaluatedProperties": false });
        let expected = json!({ "properties": { "a": {} }, "additionalProperties": false });
        assert_eq!(rewritten(schema), Ok(expected));
        assert!(rewritten(json!({ "anyOf": [{}], "unevaluatedItems": false })).is_err());
    }

    #[test]
    fn integers_are_bounded() {
        let written = rewritten(json!({ "type": "integer", "minimum": 3 })).unwrap();
        assert_eq!((&written["minimum"], &written["maximum"]), (&json!(3), &json!(INTEGER)));
    }
}
