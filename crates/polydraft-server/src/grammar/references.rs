//! References of JSON schemas as pointers into their definitions.
//!
//! Problem: a reference may name an `$id` or an `$anchor`, be relative to the `$id` of a schema
//! around it, or have escaped characters; and a part of a schema is used alone, with the
//! definitions of the whole.
//! Method: note the place of every `$id` and `$anchor`; replace each reference by the pointer of
//! what it names. What lies outside the definitions is copied into them.
//! Source: JSON Schema 2020-12, sections 8.2 and 9.1.
//! Complexity: linear in the schema for each reference.

use std::collections::HashMap;

use serde_json::{Value, json};

/// Keywords whose values are no schemas.
const VALUES: [&str; 4] = ["const", "enum", "default", "examples"];
/// Keywords whose values are schemas by name.
const BY_NAME: [&str; 5] =
    ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];

/// Places of schemas by what references call them.
#[derive(Default)]
struct Places {
    /// Pointers by `$id`, and by `$id#anchor`.
    named: HashMap<String, String>,
    /// Copied schemas, by pointer: their names in the definitions.
    copied: Vec<(String, String)>,
}

/// Schema whose references are pointers into its definitions; without `$id` and `$anchor`.
///
/// # Errors
/// A reference to what the schema does not have, with its place.
pub(super) fn localise(schema: Value) -> Result<Value, String> {
    let mut places = Places::default();
    places.named.insert(String::new(), String::new());
    places.note(&schema, "", "", false);
    let mut done = schema.clone();
    places.rewrite(&mut done, &schema, ("", ""), false)?;
    let mut next = 0;
    while let Some((pointer, name)) = places.copied.get(next).cloned() {
        let mut copy = schema.pointer(&pointer).cloned().unwrap_or_default();
        if let Some(members) = copy.as_object_mut() {
            members.remove("$defs");
            members.remove("definitions");
        }
        let base = places.base_at(&schema, &pointer);
        places.rewrite(&mut copy, &schema, (&base, &pointer), false)?;
        let definitions = done.as_object_mut().map(|done| done.entry("$defs"));
        if let Some(Value::Object(definitions)) = definitions.map(|all| all.or_insert(json!({}))) {
            definitions.insert(name, copy);
        }
        next += 1;
    }
    Ok(done)
}

impl Places {
    /// Notes names in a schema at `pointer` whose references are relative to `base`, or in schemas
    /// by name.
    fn note(&mut self, schema: &Value, base: &str, pointer: &str, by_name: bool) {
        match schema {
            Value::Object(members) => {
                let text = |keyword: &str| {
                    members.get(keyword).and_then(Value::as_str).filter(|_| !by_name)
                };
                let base = base_of(text("$id"), base);
                if text("$id").is_some() {
                    self.named.entry(base.clone()).or_insert_with(|| pointer.to_owned());
                }
                if let Some(anchor) = text("$anchor") {
                    self.named.insert(format!("{base}#{anchor}"), pointer.to_owned());
                }
                for (name, member) in members {
                    if by_name || !VALUES.contains(&name.as_str()) {
                        let pointer = format!("{pointer}/{}", escaped(name));
                        self.note(member, &base, &pointer, !by_name && has_names(name));
                    }
                }
            }
            Value::Array(all) => {
                for (number, member) in all.iter().enumerate() {
                    self.note(member, base, &format!("{pointer}/{number}"), false);
                }
            }
            _ => {}
        }
    }

    /// Base of references at a place, without that of the schema there.
    fn base_at(&self, root: &Value, pointer: &str) -> String {
        let mut base = String::new();
        let ends = pointer.char_indices().filter(|(_, letter)| *letter == '/').map(|(at, _)| at);
        for end in ends {
            let id = root.pointer(&pointer[..end]).and_then(|schema| schema.get("$id")?.as_str());
            base = base_of(id, &base);
        }
        base
    }

    /// Rewrites the references of a schema at a place: base of its references, pointer.
    fn rewrite(
        &mut self,
        schema: &mut Value,
        root: &Value,
        (base, pointer): (&str, &str),
        by_name: bool,
    ) -> Result<(), String> {
        match schema {
            Value::Object(members) if by_name => {
                for (name, member) in members {
                    let pointer = format!("{pointer}/{}", escaped(name));
                    self.rewrite(member, root, (base, &pointer), false)?;
                }
            }
            Value::Object(members) => {
                let base = base_of(members.get("$id").and_then(Value::as_str), base);
                members.shift_remove("$id");
                members.shift_remove("$anchor");
                if let Some(Value::String(reference)) = members.get_mut("$ref") {
                    let found = self.find(reference, &base).filter(|at| root.pointer(at).is_some());
                    let problem =
                        || format!("#{pointer}: $ref: {reference:?} is not in the schema");
                    let found = found.ok_or_else(problem)?;
                    if self.names_itself(&found, root) {
                        return Err(format!("#{pointer}: $ref: {reference:?} names only itself"));
                    }
                    *reference = self.definition(found, root);
                }
                for (name, member) in members {
                    if !VALUES.contains(&name.as_str()) {
                        let pointer = format!("{pointer}/{}", escaped(name));
                        self.rewrite(member, root, (&base, &pointer), has_names(name))?;
                    }
                }
            }
            Value::Array(all) => {
                for (number, member) in all.iter_mut().enumerate() {
                    self.rewrite(member, root, (base, &format!("{pointer}/{number}")), false)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Pointer to what a reference names.
    fn find(&self, reference: &str, base: &str) -> Option<String> {
        let (address, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let address = match address {
            "" => base.to_owned(),
            address => joined(base, address),
        };
        if !fragment.is_empty() && !fragment.starts_with('/') {
            return self.named.get(&format!("{address}#{fragment}")).cloned();
        }
        Some(format!("{}{}", self.named.get(&address)?, unescaped(fragment)?))
    }

    /// Whether the schema at a pointer is a reference, and so on without end.
    fn names_itself(&self, pointer: &str, root: &Value) -> bool {
        let mut at = pointer.to_owned();
        for _ in 0..32 {
            let reference = root.pointer(&at).and_then(|schema| schema.get("$ref")?.as_str());
            let Some(reference) = reference else { return false };
            match self.find(reference, &self.base_at(root, &at)) {
                Some(next) => at = next,
                None => return false,
            }
        }
        true
    }

    /// Reference to a definition: the pointer itself, or that of a copy.
    fn definition(&mut self, pointer: String, root: &Value) -> String {
        let is_definition = ["/$defs/", "/definitions/"]
            .iter()
            .any(|place| pointer.strip_prefix(place).is_some_and(|name| !name.contains('/')));
        if is_definition {
            return format!("#{pointer}");
        }
        if let Some((_, name)) = self.copied.iter().find(|(known, _)| *known == pointer) {
            return format!("#/$defs/{name}");
        }
        let taken = |name: &str| root["$defs"].get(name).is_some();
        let mut name = format!("copy{}", self.copied.len());
        while taken(&name) {
            name.push('_');
        }
        let reference = format!("#/$defs/{name}");
        self.copied.push((pointer, name));
        reference
    }
}

/// Whether a keyword's value has schemas by name.
fn has_names(keyword: &str) -> bool {
    BY_NAME.contains(&keyword)
}

/// Base of the references in an object with this `$id`.
fn base_of(id: Option<&str>, base: &str) -> String {
    id.map_or_else(|| base.to_owned(), |id| joined(base, id.trim_end_matches('#')))
}

/// Address that another one is relative to.
fn joined(base: &str, address: &str) -> String {
    let has_scheme = address.split_once(':').is_some_and(|(scheme, _)| {
        !scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+.-".contains(c))
    });
    if has_scheme {
        return address.to_owned();
    }
    let host = base
        .find("://")
        .map_or(0, |at| base[at + 3..].find('/').map_or(base.len(), |slash| at + 3 + slash));
    match address.strip_prefix('/') {
        Some(_) => format!("{}{address}", &base[..host]),
        None => format!("{}{address}", &base[..base.rfind('/').map_or(0, |at| at + 1)]),
    }
}

/// A name as a segment of a pointer.
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// Fragment of an address without its `%20`; `None` where that is no text.
fn unescaped(fragment: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(fragment.len());
    let mut rest = fragment.as_bytes();
    while let [byte, tail @ ..] = rest {
        let code = (*byte == b'%').then(|| tail.get(..2)).flatten();
        let code = code.and_then(|code| u8::from_str_radix(str::from_utf8(code).ok()?, 16).ok());
        bytes.push(code.unwrap_or(*byte));
        rest = if code.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_become_pointers_into_the_definitions() {
        let flag = json!({ "type": "boolean" });
        for (reference, part, expected) in [
            ("#foo", json!({ "$defs": { "a": { "$anchor": "foo" } } }), "#/$defs/a"),
            ("#/$defs/a%20b", json!({ "$defs": { "a b": {} } }), "#/$defs/a b"),
            ("T0", json!({ "definitions": { "a": { "$id": "T0" } } }), "#/definitions/a"),
            (
                "https://x.org/b#/$defs/a",
                json!({ "$id": "https://x.org/b", "$defs": { "a": {} } }),
                "#/$defs/a",
            ),
            (
                "c.json",
                json!({ "$id": "https://x.org/s/b.json", "$defs": { "a": {
                "$id": "https://x.org/s/c.json" } } }),
                "#/$defs/a",
            ),
            (
                "/c",
                json!({ "$id": "https://x.org/s/b", "$defs": { "a": { "$id": "/c" } } }),
                "#/$defs/a",
            ),
        ] {
            let mut schema = part;
            schema["properties"] = json!({ "x": { "$ref": reference } });
            for all in ["$defs", "definitions"] {
                for one in schema.get_mut(all).and_then(Value::as_object_mut).into_iter().flatten()
                {
                    one.1["type"] = flag["type"].clone();
                }
            }
            let done = localise(schema).unwrap();
            assert_eq!(done["properties"]["x"]["$ref"], expected, "{reference}");
            assert_eq!(done.pointer(&expected[1..]), Some(&flag));
        }
    }

    #[test]
    fn what_lies_elsewhere_is_copied() {
        // As TypeBox writes a type that has itself.
        let node = json!({ "$id": "T0", "type": "object", "properties": {
            "nodes": { "type": "array", "items": { "$ref": "T0" } } } });
        let copy = json!({ "type": "object", "properties": {
            "nodes": { "type": "array", "items": { "$ref": "#/$defs/copy0" } } } });
        let done = localise(node.clone()).unwrap();
        assert_eq!(done["$defs"]["copy0"], copy);
        assert_eq!(done["properties"], copy["properties"]);
        let done = localise(json!({ "properties": { "t": node } })).unwrap();
        assert_eq!(done["properties"]["t"], copy);
        assert_eq!(done["$defs"]["copy0"], copy);
        // Names are not keywords, and values are not schemas.
        let schema = json!({ "properties": { "$id": { "type": "string" }, "const": {} },
            "const": { "$ref": "#/none" } });
        assert_eq!(localise(schema.clone()), Ok(schema));
    }

    #[test]
    fn names_the_place_of_an_unknown_reference() {
        let schema = json!({ "properties": { "a": { "$ref": "other.json" } } });
        let expected = "#/properties/a: $ref: \"other.json\" is not in the schema";
        assert_eq!(localise(schema), Err(expected.to_owned()));
        let [a, b] = ["#/$defs/b", "#/$defs/a"].map(|other| json!({ "$ref": other }));
        let schema = json!({ "$defs": { "a": a, "b": b.clone() }, "properties": { "x": b } });
        assert!(localise(schema).unwrap_err().contains("names only itself"));
    }
}
