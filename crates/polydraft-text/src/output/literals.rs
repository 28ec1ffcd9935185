//! Values as models write them: JSON, literals of Python, and JSON with other marks around strings.

use serde_json::{Map, Number, Value};

use super::form::{Kind, Nested, ParameterForm};
use super::numbers::read_json;

/// Kinds of values that a schema allows, by [`Kind`].
pub type Kinds = [bool; Kind::ALL.len()];

/// Maximum nesting of values and schemas.
const MAX_DEPTH: usize = 64;

/// Reads the text of a parameter's value. `kind` is the kind that the text around it names, if any;
/// `allowed` are the kinds that the tool takes. A text that is no such value is a string.
pub(crate) fn read_value(
    text: &str,
    kind: Option<Kind>,
    allowed: Kinds,
    form: &ParameterForm,
) -> Value {
    let string = || Value::String(text.to_owned());
    // Strings in quotes are literals, too.
    let is_quoted =
        form.nested == Nested::Python && form.value(Kind::String) == form.value(Kind::Number);
    let only_string = allowed.iter().filter(|is_allowed| **is_allowed).count() == 1
        && allowed[Kind::String as usize];
    if !is_quoted && (kind == Some(Kind::String) || (kind.is_none() && only_string)) {
        return string();
    }
    let value = read_json(text.trim()).ok().or_else(|| {
        let marks = form.string_marks().filter(|_| form.nested == Nested::Marked);
        Literals { text: text.trim(), at: 0, marks }.whole()
    });
    match value {
        Some(value) if kind.is_some() || allowed[Kind::of(&value) as usize] => value,
        _ => string(),
    }
}

/// Kinds of values that a schema allows; more than that if it is hard to tell.
pub fn allowed_kinds(schema: &Value, root: &Value) -> Kinds {
    kinds_within(schema, root, 0)
}

fn kinds_within(schema: &Value, root: &Value, depth: usize) -> Kinds {
    let mut allowed = [true; Kind::ALL.len()];
    let Some(schema) = schema.as_object().filter(|_| depth < MAX_DEPTH) else { return allowed };
    let mut restrict = |other: Kinds| {
        allowed.iter_mut().zip(other).for_each(|(allowed, other)| *allowed &= other);
    };
    let inner = |schema: &Value| kinds_within(schema, root, depth + 1);
    let union = |all: &mut dyn Iterator<Item = Kinds>| {
        all.fold([false; Kind::ALL.len()], |mut sum, kinds| {
            sum.iter_mut().zip(kinds).for_each(|(sum, kind)| *sum |= kind);
            sum
        })
    };
    let target = schema.get("$ref").and_then(Value::as_str).and_then(|to| to.strip_prefix('#'));
    if let Some(target) = target.and_then(|pointer| root.pointer(pointer)) {
        restrict(inner(target));
    }
    let of_type = |name: &Value| {
        let mut kinds = [false; Kind::ALL.len()];
        match name.as_str() {
            Some("string") => kinds[Kind::String as usize] = true,
            Some("number" | "integer") => kinds[Kind::Number as usize] = true,
            Some("boolean") => kinds[Kind::Boolean as usize] = true,
            Some("null") => kinds[Kind::Null as usize] = true,
            Some("object") => kinds[Kind::Object as usize] = true,
            Some("array") => kinds[Kind::Array as usize] = true,
            _ => kinds = [true; Kind::ALL.len()],
        }
        kinds
    };
    let of_value = |value: &Value| {
        let mut kinds = [false; Kind::ALL.len()];
        kinds[Kind::of(value) as usize] = true;
        kinds
    };
    match schema.get("type") {
        Some(Value::Array(names)) => restrict(union(&mut names.iter().map(of_type))),
        Some(name) => restrict(of_type(name)),
        None => {}
    }
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        restrict(union(&mut values.iter().map(of_value)));
    }
    if let Some(value) = schema.get("const") {
        restrict(of_value(value));
    }
    for key in ["anyOf", "oneOf"] {
        if let Some(all) = schema.get(key).and_then(Value::as_array) {
            restrict(union(&mut all.iter().map(inner)));
        }
    }
    for part in schema.get("allOf").and_then(Value::as_array).into_iter().flatten() {
        restrict(inner(part));
    }
    if schema.get("nullable") == Some(&Value::Bool(true)) {
        allowed[Kind::Null as usize] = true;
    }
    allowed
}

/// Reader of a literal.
struct Literals<'a> {
    text: &'a str,
    at: usize,
    /// Marks around strings; names have no quotes then.
    marks: Option<(&'a str, &'a str)>,
}

impl Literals<'_> {
    /// Reads the whole text as one literal.
    fn whole(mut self) -> Option<Value> {
        let value = self.value(0)?;
        self.skip_space();
        (self.at == self.text.len()).then_some(value)
    }

    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn skip_space(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    /// Consumes a text after white space, if it follows.
    fn take(&mut self, expected: &str) -> bool {
        self.skip_space();
        let found = self.rest().starts_with(expected);
        if found {
            self.at += expected.len();
        }
        found
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        if depth > MAX_DEPTH {
            return None;
        }
        if let Some(string) = self.string() {
            return Some(Value::String(string));
        }
        if self.take("{") {
            return self.object(depth);
        }
        for (opening, closing) in [("[", "]"), ("(", ")")] {
            if self.take(opening) {
                return self.list(closing, depth);
            }
        }
        let word = self.word(|character| character.is_alphanumeric() || "+-._".contains(character));
        match word.as_str() {
            "true" | "True" => Some(Value::Bool(true)),
            "false" | "False" => Some(Value::Bool(false)),
            "null" | "None" => Some(Value::Null),
            word => word.parse::<Number>().ok().map(Value::Number),
        }
    }

    fn word(&mut self, is_part: impl Fn(char) -> bool) -> String {
        self.skip_space();
        let rest = self.rest();
        let length = rest.find(|character| !is_part(character)).unwrap_or(rest.len());
        let word = rest[..length].to_owned();
        self.at += length;
        word
    }

    fn object(&mut self, depth: usize) -> Option<Value> {
        let mut members = Map::new();
        while !self.take("}") {
            if !members.is_empty() && !self.take(",") {
                return None;
            }
            let key = match self.string() {
                Some(key) => key,
                None if self.marks.is_some() => {
                    self.word(|character| !matches!(character, ':' | ',' | '{' | '}'))
                }
                None => return None,
            };
            if !self.take(":") {
                return None;
            }
            let value = self.value(depth + 1)?;
            members.insert(key, value);
        }
        Some(Value::Object(members))
    }

    fn list(&mut self, closing: &str, depth: usize) -> Option<Value> {
        let mut values = Vec::new();
        while !self.take(closing) {
            if !values.is_empty() && !self.take(",") {
                return None;
            }
            // A comma after the last one.
            if !values.is_empty() && self.take(closing) {
                break;
            }
            values.push(self.value(depth + 1)?);
        }
        Some(Value::Array(values))
    }

    fn string(&mut self) -> Option<String> {
        if let Some((opening, closing)) = self.marks {
            if !self.take(opening) {
                return None;
            }
            let length = self.rest().find(closing)?;
            let string = self.rest()[..length].to_owned();
            self.at += length + closing.len();
            return Some(string);
        }
        self.skip_space();
        let quote = self.rest().chars().next().filter(|quote| matches!(quote, '"' | '\''))?;
        let mut string = String::new();
        let mut characters = self.text[self.at + 1..].char_indices();
        while let Some((at, character)) = characters.next() {
            match character {
                '\\' => string.push(escaped(&mut characters)?),
                _ if character == quote => {
                    self.at += 1 + at + 1;
                    return Some(string);
                }
                _ => string.push(character),
            }
        }
        None
    }
}

/// Reads the rest of an escape sequence.
fn escaped(characters: &mut std::str::CharIndices) -> Option<char> {
    match characters.next()?.1 {
        'n' => Some('\n'),
        't' => Some('\t'),
        'r' => Some('\r'),
        'b' => Some('\u{8}'),
        'f' => Some('\u{c}'),
        'x' => hexadecimal(characters, 2),
        'u' => hexadecimal(characters, 4),
        'U' => hexadecimal(characters, 8),
        other => Some(other),
    }
}

/// Reads a character by so many digits of its number.
fn hexadecimal(characters: &mut std::str::CharIndices, digits: usize) -> Option<char> {
    let number =
        (0..digits).try_fold(0, |number, _| Some(16 * number + characters.next()?.1.to_digit(16)?));
    char::from_u32(number?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reads_literals_of_python_and_of_other_marks() {
        let read = |text, marks| Literals { text, at: 0, marks }.whole();
        let python = r#"{'a': [True, None, -1.5e3], "b'": 'it\'s\n', 'c': (1, 2)}"#;
        let expected = json!({ "a": [true, null, -1500.0], "b'": "it's\n", "c": [1, 2] });
        assert_eq!(read(python, None), Some(expected));
        let marked = "{a:[true,<|\"|>x, y}<|\"|>],b c:{}}";
        let marks = Some(("<|\"|>", "<|\"|>"));
        assert_eq!(read(marked, marks), Some(json!({ "a": [true, "x, y}"], "b c": {} })));
        for wrong in ["{'a' 1}", "[1 2]", "'open", "{a: 1}", "", "1 2", "nil"] {
            assert_eq!(read(wrong, None), None, "{wrong}");
        }
        assert_eq!(read(&"[".repeat(100_000), None), None);
    }

    #[test]
    fn kinds_follow_the_schema() {
        let root = json!({ "$defs": { "n": { "type": ["integer", "null"] } } });
        let names = |schema: Value| {
            let kinds = allowed_kinds(&schema, &root);
            let all = Kind::ALL.iter().filter(|kind| kinds[**kind as usize]);
            all.map(|kind| format!("{kind:?}")).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names(json!({ "$ref": "#/$defs/n" })), "Number Null");
        assert_eq!(
            names(json!({ "anyOf": [{ "type": "string" }, { "const": [] }] })),
            "String Array"
        );
        assert_eq!(names(json!({ "enum": ["a", 1], "type": "string" })), "String");
        assert_eq!(
            names(json!({ "allOf": [{ "type": ["string", "object"] }, { "type": "object" }] })),
            "Object"
        );
        assert_eq!(names(json!(true)).split(' ').count(), 6);
    }
}
