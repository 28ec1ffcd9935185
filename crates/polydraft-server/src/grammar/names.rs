//! Names of an object's members, where a model writes them as parameters: what `propertyNames`,
//! `patternProperties`, `required` and `additionalProperties` say of names that `properties` does
//! not list.
//!
//! Method: 1. a list of allowed names leaves those, with the schema of other members; 2. names that
//! are required and not listed become listed, with that schema; 3. each pattern of names becomes a
//! kind of members, of names that match no other pattern; 4. all other names are one more kind.
//! Complexity: linear in the schema.
//! Deviations: a name that matches several patterns, which a schema may allow, is not written.

use regex_syntax::hir::{Look, literal::Extractor};
use serde_json::{Map, Value, json};

use super::patterns::{contained_pattern, lengths, patterns};
use super::schema::listed_values;

/// Members whose names are not listed.
pub(super) struct Others {
    /// Regular expressions that a name matches, as a conjunction after others.
    pub(super) conditions: String,
    /// Schema of their values, and its path.
    pub(super) schema: Value,
    pub(super) path: String,
}

/// Lists the names that a schema requires or allows as properties. Returns the kinds of members
/// that remain.
///
/// # Errors
/// Names of which a grammar cannot tell whether they are allowed.
pub(super) fn expand_names(schema: &mut Value, root: &Value) -> Result<Vec<Others>, String> {
    let Some(members) = schema.as_object_mut() else { return Ok(Vec::new()) };
    let allowed = members.shift_remove("propertyNames");
    let allowed = allowed.filter(|names| *names != json!(true) && *names != json!({}));
    let by_pattern = match members.shift_remove("patternProperties") {
        Some(Value::Object(by_pattern)) => by_pattern,
        _ => Map::new(),
    };
    let mut properties = match members.shift_remove("properties") {
        Some(Value::Object(properties)) => properties,
        _ => Map::new(),
    };
    let rest = match members.get("additionalProperties") {
        Some(Value::Bool(false)) => None,
        None | Some(Value::Bool(true)) => Some(json!({})),
        Some(rest) => Some(rest.clone()),
    };
    // Members that no one describes are left out where others are described.
    let is_open = rest.is_some()
        && (members.contains_key("additionalProperties")
            || (properties.is_empty() && by_pattern.is_empty()));
    let mut conditions = String::new();
    let mut listed_only = false;
    if let Some(allowed) = &allowed {
        if !by_pattern.is_empty() {
            return Err("propertyNames beside patternProperties is not supported".to_owned());
        }
        if let Some(names) = listed_values(allowed, root) {
            let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
            properties.retain(|name, _| names.contains(&name.as_str()));
            for name in names {
                if let (Some(rest), false) = (&rest, properties.contains_key(name)) {
                    properties.insert(name.to_owned(), rest.clone());
                }
            }
            listed_only = true;
        } else {
            conditions = name_conditions(allowed, &properties)?;
        }
    }
    for pattern in by_pattern.keys() {
        if let Some(name) = properties.keys().find(|name| may_match(pattern, name)) {
            return Err(format!(
                "patternProperties: a pattern that the property {name:?} may match is not \
                 supported: begin it with ^ and other letters"
            ));
        }
    }
    let required: Vec<String> = members
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|name| name.as_str().map(str::to_owned))
        .collect();
    for name in required {
        if properties.contains_key(&name) {
            continue;
        }
        match &rest {
            Some(rest) if !listed_only && conditions.is_empty() && by_pattern.is_empty() => {
                properties.insert(name, rest.clone());
            }
            _ => return Err(format!("required: the property {name:?} is not described")),
        }
    }
    members.insert("properties".to_owned(), properties.into());
    let mut others = Vec::new();
    let matching = |pattern: &String| format!("/{}/", contained_pattern(pattern));
    for (pattern, schema) in by_pattern.iter().filter(|(_, schema)| **schema != json!(false)) {
        let no_other = by_pattern.keys().filter(|other| *other != pattern);
        let no_other: String = no_other.map(|other| format!(" & ~{}", matching(other))).collect();
        let conditions = format!(" & {}{no_other}", matching(pattern));
        let path = format!("patternProperties/{pattern}");
        others.push(Others { conditions, schema: schema.clone(), path });
    }
    if let Some(schema) = rest.filter(|_| is_open && !listed_only) {
        let none = by_pattern.keys().map(|pattern| format!(" & ~{}", matching(pattern)));
        conditions.extend(none);
        others.push(Others { conditions, schema, path: "additionalProperties".to_owned() });
    }
    Ok(others)
}

/// Conditions on names by a schema of strings.
fn name_conditions(allowed: &Value, properties: &Map<String, Value>) -> Result<String, String> {
    const KNOWN: [&str; 7] =
        ["type", "pattern", "format", "minLength", "maxLength", "title", "description"];
    let keywords = allowed.as_object().into_iter().flatten();
    let other = keywords.map(|(keyword, _)| keyword).find(|k| !KNOWN.contains(&k.as_str()));
    if let Some(keyword) = other {
        return Err(format!("propertyNames: {keyword} is not supported in this model's calls"));
    }
    let lengths = lengths(allowed).map(|lengths| format!("/(?s:.{lengths})/"));
    let all: Vec<String> = patterns(allowed).into_iter().chain(lengths).collect();
    if !all.is_empty() && !properties.is_empty() {
        return Err("propertyNames beside properties is supported with enum only".to_owned());
    }
    Ok(all.into_iter().map(|part| format!(" & {part}")).collect())
}

/// Whether a name may match a pattern: false only where the pattern begins with other letters.
fn may_match(pattern: &str, name: &str) -> bool {
    let Ok(parsed) = regex_syntax::parse(pattern) else { return true };
    if !parsed.properties().look_set_prefix().contains(Look::Start) {
        return true;
    }
    let starts = Extractor::new().extract(&parsed);
    let Some(starts) = starts.literals() else { return true };
    starts.iter().any(|start| name.as_bytes().starts_with(start.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_patterns_unless_those_begin_otherwise() {
        for (pattern, name, expected) in [
            ("^x-", "x-a", true),
            ("^x-", "a", false),
            ("^(x|y)_", "z_", false),
            ("^(x|y)_", "y_1", true),
            ("x", "a", true),
            ("^[a-z]+$", "b", true),
        ] {
            assert_eq!(may_match(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn required_and_allowed_names_become_properties() {
        let names = |mut schema: Value| {
            let others = expand_names(&mut schema, &json!({}))?;
            let listed = schema["properties"].as_object().expect("an object").keys().cloned();
            Ok::<_, String>((listed.collect::<Vec<_>>().join(" "), others.len()))
        };
        let listed = |text: &str, others: usize| Ok((text.to_owned(), others));
        let a = json!({ "a": {} });
        assert_eq!(names(json!({ "properties": a, "required": ["b"] })), listed("a b", 0));
        assert_eq!(names(json!({ "required": ["b"] })), listed("b", 1));
        let enumerated = json!({ "properties": a, "propertyNames": { "enum": ["a", "b"] } });
        assert_eq!(names(enumerated), listed("a b", 0));
        let closed = json!({ "properties": a, "additionalProperties": false,
            "propertyNames": { "enum": ["a", "b"] } });
        assert_eq!(names(closed), listed("a", 0));
        let patterns = json!({ "properties": a, "additionalProperties": true,
            "patternProperties": { "^x": {}, "^y": {} } });
        assert_eq!(names(patterns), listed("a", 3));
        for refused in [
            json!({ "properties": a, "required": ["b"], "additionalProperties": false }),
            json!({ "properties": a, "patternProperties": { "a": {} } }),
            json!({ "propertyNames": { "not": {} } }),
        ] {
            assert!(names(refused.clone()).is_err(), "{refused}");
        }
    }
}
