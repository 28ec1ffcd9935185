//! Values that are written in another notation than JSON: Gemma's, with other marks around strings
//! and none around names, and Python's literals.
//!
//! Python's strings may have either quote and `True`, `False`, `None` JSON's words, as models write
//! both. Strings with a pattern have neither the quote nor a backslash in them.

use std::fmt::Write;

use polydraft_text::{Kind, Nested, Piece, ValueForm, allowed_kinds};
use serde_json::{Value, json};

use super::literal::literal;
use super::parameters::{Level, NAMES, Rules};
use super::patterns::{lengths, patterns};
use super::schema::json_of_kinds;

/// Quotes of Python's strings.
const QUOTES: [char; 2] = ['"', '\''];

/// Characters of Python's strings that are written as an escape sequence.
const ESCAPES: &str = r#"\\(["'\\nrt]|x[0-9a-f]{2}|u[0-9a-ce-f][0-9a-f]{3}|ud[0-7][0-9a-f]{2})"#;

impl Rules<'_> {
    fn is_python(&self) -> bool {
        self.parameters.form.nested == Nested::Python
    }

    /// Text between members of an object and elements of a list.
    pub(super) fn nested_separator(&self) -> &'static str {
        if self.is_python() { ", " } else { "," }
    }

    /// Names of members that the schema does not list.
    pub(super) fn nested_names(&self) -> &'static str {
        if self.is_python() { r#"/[^"'\\\x00-\x1f]{0,64}/"# } else { NAMES }
    }

    /// Term of a member's name.
    pub(super) fn nested_key(&self, name: &str) -> String {
        if self.is_python() { literal_of(&name.into()) } else { self.parameters.marks.terms(name) }
    }

    /// Terms of a member's name that is itself a term.
    pub(super) fn nested_key_term(&self, name: &str) -> String {
        if !self.is_python() {
            return name.to_owned();
        }
        let quoted = QUOTES.map(|quote| literal(&quote.to_string()));
        let quoted = quoted.map(|quote| format!("{quote} {name} {quote}"));
        format!("({})", quoted.join(" | "))
    }

    /// A member of an object: its name as a term, and its value.
    pub(super) fn nested_member(&mut self, key: &str, schema: &Value) -> Result<String, String> {
        let colon = if self.is_python() { ": " } else { ":" };
        let value = self.nested(schema)?;
        self.rule(&format!("{key} {} {value}", literal(colon)))
    }

    /// A value in the notation of the template.
    fn nested(&mut self, schema: &Value) -> Result<String, String> {
        // Any value, which may have any values in it.
        let is_any = *schema == Value::Bool(true) || *schema == json!({});
        let reference = schema.get("$ref").and_then(Value::as_str).or(is_any.then_some(""));
        let reference = reference.map(str::to_owned);
        if let Some(reference) = &reference {
            if let Some((_, name)) = self.references.iter().find(|(known, _)| known == reference) {
                return Ok(name.clone());
            }
            let name = format!("{}_ref_{}", self.parameters.prefix, self.references.len());
            self.references.push((reference.clone(), name.clone()));
            let kinds = allowed_kinds(schema, self.parameters.root);
            let kinds: Vec<Kind> =
                Kind::ALL.into_iter().filter(|kind| kinds[*kind as usize]).collect();
            let body = self.nested_of(schema, &kinds)?;
            let _ = writeln!(self.lark, "{name}: {body}");
            return Ok(name);
        }
        let kinds = allowed_kinds(schema, self.parameters.root);
        let kinds: Vec<Kind> = Kind::ALL.into_iter().filter(|kind| kinds[*kind as usize]).collect();
        self.nested_of(schema, &kinds)
    }

    pub(super) fn nested_of(&mut self, schema: &Value, kinds: &[Kind]) -> Result<String, String> {
        let schema = self.merged(schema, 0)?;
        if let Some(choices) = ["anyOf", "oneOf"].iter().find_map(|k| schema.get(*k)?.as_array()) {
            let fitting = choices.iter().filter(|choice| {
                let allowed = allowed_kinds(choice, self.parameters.root);
                kinds.iter().any(|kind| allowed[*kind as usize])
            });
            let fitting: Vec<Value> = fitting.cloned().collect();
            let choices: Vec<String> =
                fitting.iter().map(|choice| self.nested(choice)).collect::<Result<_, _>>()?;
            return self.rule(&choices.join(" | "));
        }
        if self.is_python()
            && let Some(listed) = listed(&schema)
        {
            let fitting = listed.iter().filter(|value| kinds.contains(&Kind::of(value)));
            let fitting: Vec<String> = fitting.map(literal_of).collect();
            return self.rule(&fitting.join(" | "));
        }
        let (opening, closing) = self.parameters.form.string_marks().unwrap_or(("\"", "\""));
        let (opening, closing) = (opening.to_owned(), closing.to_owned());
        let mut choices = Vec::new();
        for kind in kinds {
            choices.push(match kind {
                Kind::String if self.is_python() => self.quoted(&schema)?,
                Kind::Boolean if self.is_python() => {
                    [true, false].map(|value| literal_of(&value.into())).join(" | ")
                }
                Kind::Null if self.is_python() => literal_of(&Value::Null),
                Kind::String => {
                    let around = ValueForm {
                        before: String::new(),
                        after: vec![Piece::Text(closing.clone())],
                    };
                    let text = self.text(&schema, &around)?;
                    format!("{} {text}", self.parameters.marks.terms(&opening))
                }
                Kind::Object => {
                    let members = self.members(&schema, Level::Nested)?;
                    format!("\"{{\" {members} \"}}\"")
                }
                Kind::Array => {
                    let item = schema.get("items").cloned().unwrap_or_else(|| json!({}));
                    let item = match item {
                        Value::Object(ref members) if members.is_empty() => self.scalar()?,
                        item => self.nested(&item)?,
                    };
                    let between = literal(self.nested_separator());
                    let list = self.list(&schema, &item, &between)?;
                    format!("\"[\" {list} \"]\"")
                }
                kind => {
                    let schema = json_of_kinds(&schema, &[*kind], self.parameters.root)?;
                    format!("%json {schema}")
                }
            });
        }
        let rules: Vec<String> =
            choices.iter().map(|choice| self.rule(choice)).collect::<Result<_, _>>()?;
        self.rule(&rules.join(" | "))
    }

    /// Any value but objects and lists.
    fn scalar(&mut self) -> Result<String, String> {
        self.nested_of(&json!({}), &[Kind::String, Kind::Number, Kind::Boolean, Kind::Null])
    }

    /// A string between quotes.
    fn quoted(&mut self, schema: &Value) -> Result<String, String> {
        let (lengths, patterns) = (lengths(schema), patterns(schema));
        let mut choices = Vec::new();
        for quote in QUOTES {
            let name = format!("{}_TEXT_{}", self.parameters.prefix.to_uppercase(), self.count);
            self.count += 1;
            let plain = format!(r"[^{quote}\\\x00-\x1f]");
            let body = if patterns.is_empty() {
                let times = lengths.as_deref().unwrap_or("*");
                format!("/({plain}|{ESCAPES}){times}/")
            } else {
                let lengths = lengths.as_ref().map(|lengths| format!("/(?s:.{lengths})/"));
                let all = patterns.iter().cloned().chain(lengths);
                all.chain([format!("/{plain}*/")]).collect::<Vec<_>>().join(" & ")
            };
            let _ = writeln!(self.lark, "{name}: {body}");
            let quote = literal(&quote.to_string());
            choices.push(format!("{quote} {name} {quote}"));
        }
        self.rule(&choices.join(" | "))
    }
}

/// Values that a schema lists.
fn listed(schema: &Value) -> Option<Vec<Value>> {
    let of_enum = schema.get("enum").and_then(Value::as_array).cloned();
    of_enum.or_else(|| Some(vec![schema.get("const")?.clone()]))
}

/// Terms of a value as a literal of Python.
fn literal_of(value: &Value) -> String {
    let joined = |parts: Vec<String>| parts.join(" \", \" ");
    match value {
        Value::Null => r#"("None" | "null")"#.to_owned(),
        Value::Bool(true) => r#"("True" | "true")"#.to_owned(),
        Value::Bool(false) => r#"("False" | "false")"#.to_owned(),
        Value::Number(number) => literal(&number.to_string()),
        Value::String(text) => {
            let quoted = QUOTES.map(|quote| literal(&quoted(text, quote)));
            format!("({})", quoted.join(" | "))
        }
        Value::Array(values) => {
            format!("\"[\" {} \"]\"", joined(values.iter().map(literal_of).collect()))
        }
        Value::Object(members) => {
            let member = |(key, value): (&String, &Value)| {
                format!("{} \": \" {}", literal_of(&key.as_str().into()), literal_of(value))
            };
            format!("\"{{\" {} \"}}\"", joined(members.iter().map(member).collect()))
        }
    }
}

/// A string between these quotes, with what Python escapes escaped.
fn quoted(text: &str, quote: char) -> String {
    let mut quoted = String::from(quote);
    for character in text.chars() {
        match character {
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            control if control.is_control() => {
                let _ = write!(quoted, "\\x{:02x}", u32::from(control));
            }
            _ => {
                if character == quote || character == '\\' {
                    quoted.push('\\');
                }
                quoted.push(character);
            }
        }
    }
    quoted.push(quote);
    quoted
}
