//! Arguments that are written as parameters, as a grammar.
//!
//! Problem: a schema describes an object; the model writes its members one by one, strings without
//! quotes, in the notation of its template.
//! Method: 1. a rule for every member, in the order of the schema (or sorted, where the template
//! does), required ones always; 2. a value is any of the kinds that its schema allows: strings as
//! plain text up to the mark after them, all else as JSON of that kind, or by the same method where
//! the template has its own notation; 3. members that the schema does not list are allowed only
//! where it says so.
//! Complexity: linear in the schema.

use std::fmt::Write;

use polydraft_text::{Kind, Nested, ParameterForm, Piece, ValueForm, allowed_kinds};
use serde_json::{Map, Value, json};

use super::counts::Counts;
use super::marks::{Marks, escape_regex};
use super::names::{Others, expand_names};
use super::patterns::{lengths, patterns};
use super::schema::{json_of_kinds, within};

/// Maximum number of rules of a tool: schemas may refer to themselves.
const MAX_RULES: usize = 2000;
/// Maximum number of objects in each other.
const MAX_DEPTH: usize = 32;

/// Keywords of objects that these grammars do not hold.
const UNSUPPORTED: [&str; 7] =
    ["const", "enum", "not", "if", "dependentRequired", "dependentSchemas", "dependencies"];

/// Names that a schema does not list.
pub(super) const NAMES: &str = "/[A-Za-z_][A-Za-z0-9_.-]{0,63}/";

/// Grammar of one tool's arguments.
pub(super) struct Parameters<'a> {
    pub(super) form: &'a ParameterForm,
    pub(super) marks: Marks<'a>,
    /// Schema of the arguments.
    pub(super) root: &'a Value,
    /// Start of all rules' names.
    pub(super) prefix: String,
}

/// Rules under construction.
pub(super) struct Rules<'a> {
    pub(super) parameters: &'a Parameters<'a>,
    pub(super) lark: String,
    pub(super) count: usize,
    /// Objects around the one whose members are being written.
    depth: usize,
    /// References whose rules exist or are being made.
    pub(super) references: Vec<(String, String)>,
}

impl Parameters<'_> {
    /// Rules that define `name` as the parameters.
    ///
    /// # Errors
    /// A schema with unsupported parts.
    pub(super) fn rules(&self, name: &str) -> Result<String, String> {
        let mut rules = Rules {
            parameters: self,
            lark: String::new(),
            count: 0,
            depth: 0,
            references: Vec::new(),
        };
        let members = rules.members(self.root, Level::Parameters)?;
        Ok(format!("{name}: {members}\n{}", rules.lark))
    }
}

/// Where members stand.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    /// Parameters of a call, or of a parameter in nested tags.
    Parameters,
    /// Members of an object in another notation than JSON.
    Nested,
}

impl Rules<'_> {
    /// Adds a rule. Returns its name.
    pub(super) fn rule(&mut self, body: &str) -> Result<String, String> {
        self.count += 1;
        if self.count > MAX_RULES {
            return Err(format!("expected a schema of at most {MAX_RULES} parts"));
        }
        let name = format!("{}_{}", self.parameters.prefix, self.count);
        let _ = writeln!(self.lark, "{name}: {body}");
        Ok(name)
    }

    /// Members of an object, without what is around it.
    pub(super) fn members(&mut self, schema: &Value, level: Level) -> Result<String, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(format!("expected a schema of at most {MAX_DEPTH} objects in each other"));
        }
        let members = self.members_within(schema, level);
        self.depth -= 1;
        members
    }

    fn members_within(&mut self, schema: &Value, level: Level) -> Result<String, String> {
        let mut schema = self.merged(schema, 0)?;
        if let Some(keyword) = UNSUPPORTED.iter().find(|keyword| schema.get(**keyword).is_some()) {
            return Err(format!("{keyword} is not supported for objects in this model's calls"));
        }
        // Choices of objects: each with what holds for all.
        let choices = ["anyOf", "oneOf"]
            .iter()
            .find_map(|key| schema.as_object_mut().and_then(|members| members.shift_remove(*key)));
        if let Some(Value::Array(choices)) = choices {
            let choices: Vec<String> = choices
                .iter()
                .map(|choice| {
                    let members = self.members(&json!({ "allOf": [schema, choice] }), level)?;
                    self.rule(&members)
                })
                .collect::<Result<_, _>>()?;
            return self.rule(&choices.join(" | "));
        }
        let others = expand_names(&mut schema, self.parameters.root)?;
        let empty = Map::new();
        let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&empty);
        let required: Vec<&str> = schema
            .get("required")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let mut names: Vec<&String> = properties.keys().collect();
        if self.parameters.form.sorted {
            names.sort();
        }
        let separator = match level {
            Level::Parameters => self.parameters.form.separator.as_str(),
            Level::Nested => self.nested_separator(),
        };
        let separator = self.parameters.marks.terms(separator);
        let other = self.other_members(others, &names, level)?;
        // From the last member to the first: what follows after each number of members.
        let count = |key: &str| schema.get(key).and_then(Value::as_u64);
        let least = count("minProperties").unwrap_or(0);
        let counts = Counts { least, most: count("maxProperties") };
        let highest = counts.highest(names.len());
        let mut after: Vec<Option<String>> = Vec::new();
        for so_far in 0..=highest {
            let body = counts.others(so_far as u64, other.as_deref(), &separator);
            after.push(body.map(|body| self.rule(&body)).transpose()?);
        }
        for (before, name) in names.into_iter().enumerate().rev() {
            let key = match level {
                Level::Nested => self.nested_key(name),
                Level::Parameters => self.parameters.marks.terms(name),
            };
            let member = self.member(&key, &properties[name], level);
            let member =
                member.map_err(|problem| within(&format!("properties/{name}"), &problem))?;
            let optional = !required.contains(&name.as_str());
            let mut here = Vec::new();
            for so_far in 0..=highest.min(before) {
                let is_full = counts.most == Some(so_far as u64);
                let next = after[(so_far + 1).min(highest)].as_ref().filter(|_| !is_full);
                let separator = if so_far == 0 { "" } else { separator.as_str() };
                let with = next.map(|next| format!("{separator} {member} {next}"));
                let without = after[so_far].clone().filter(|_| optional);
                let bodies: Vec<String> = with.into_iter().chain(without).collect();
                let has_any = !bodies.is_empty();
                here.push(has_any.then(|| self.rule(&bodies.join(" | "))).transpose()?);
            }
            after = here;
        }
        let no_object = "no object fits minProperties, maxProperties and the properties";
        after.swap_remove(0).ok_or_else(|| no_object.to_owned())
    }

    /// Any member whose name is not listed, if there may be one.
    fn other_members(
        &mut self,
        others: Vec<Others>,
        names: &[&String],
        level: Level,
    ) -> Result<Option<String>, String> {
        let listed: Vec<String> = names.iter().map(|name| escape_regex(name)).collect();
        let not_listed = match listed.is_empty() {
            true => String::new(),
            false => format!(" & ~/({})/", listed.join("|")),
        };
        let mut members = Vec::new();
        for Others { conditions, schema, path } in others {
            let key = format!("{}_KEY_{}", self.parameters.prefix.to_uppercase(), self.count);
            let names = match level {
                Level::Nested => self.nested_names(),
                Level::Parameters => NAMES,
            };
            let _ = writeln!(self.lark, "{key}: {names}{conditions}{not_listed}");
            let key = match level {
                Level::Nested => self.nested_key_term(&key),
                Level::Parameters => key,
            };
            let member = self.member(&key, &schema, level);
            members.push(member.map_err(|problem| within(&path, &problem))?);
        }
        match members.len() {
            0 => Ok(None),
            1 => Ok(members.pop()),
            _ => self.rule(&members.join(" | ")).map(Some),
        }
    }

    /// A member: its name as a term, and its value.
    fn member(&mut self, key: &str, schema: &Value, level: Level) -> Result<String, String> {
        let Parameters { form, marks, .. } = self.parameters;
        if level == Level::Nested {
            return self.nested_member(key, schema);
        }
        let before = marks.terms(&form.before_key);
        let kinds = allowed_kinds(schema, self.parameters.root);
        let mut choices = Vec::new();
        let mut done: Vec<&ValueForm> = Vec::new();
        for kind in Kind::ALL.into_iter().filter(|kind| kinds[*kind as usize]) {
            let around = form.value(kind);
            // Strings that are written like other values are literals.
            let is_text = kind == Kind::String && is_string_text(form);
            if !is_text && done.contains(&around) {
                continue;
            }
            let value = match kind {
                Kind::String if is_text => self.text(schema, around)?,
                _ => {
                    done.push(around);
                    let same = |other: &Kind| {
                        kinds[*other as usize]
                            && form.value(*other) == around
                            && (*other != Kind::String || !is_string_text(form))
                    };
                    let same: Vec<Kind> = Kind::ALL.into_iter().filter(same).collect();
                    let value = self.other(schema, &same)?;
                    format!("{value} {}", self.after(around, key))
                }
            };
            choices.push(format!("{} {value}", marks.terms(&around.before)));
        }
        if choices.is_empty() {
            return Err("a property that no value fits is not supported".to_owned());
        }
        // The mark after a value may repeat the name.
        let choices = choices.join(" | ");
        let choices = choices.replace(KEY, key);
        self.rule(&format!("{before} {key} ({choices})"))
    }

    /// Terms after a value.
    fn after(&self, around: &ValueForm, key: &str) -> String {
        let terms = around.after.iter().map(|piece| match piece {
            Piece::Text(text) => self.parameters.marks.terms(text),
            Piece::Key => key.to_owned(),
            _ => String::new(),
        });
        let terms: Vec<String> = terms.collect();
        if terms.is_empty() { "\"\"".to_owned() } else { terms.join(" ") }
    }

    /// A string as plain text, and the mark after it.
    pub(super) fn text(&mut self, schema: &Value, around: &ValueForm) -> Result<String, String> {
        let marks = self.parameters.marks;
        let mark = match around.after.first() {
            Some(Piece::Text(text)) => text.clone(),
            _ => String::new(),
        };
        let after = self.after(around, KEY);
        let schema = self.merged(schema, 0)?;
        let listed = schema.get("enum").and_then(Value::as_array).cloned();
        let listed = listed.or_else(|| Some(vec![schema.get("const")?.clone()]));
        if let Some(values) = listed {
            let strings = values.iter().filter_map(Value::as_str).map(|text| marks.terms(text));
            let strings: Vec<String> = strings.collect();
            return Ok(format!("({}) {after}", strings.join(" | ")));
        }
        let choices = ["anyOf", "oneOf"].iter().find_map(|key| schema.get(*key)?.as_array());
        if let Some(choices) = choices {
            let of_strings = choices.iter().filter(|choice| {
                allowed_kinds(choice, self.parameters.root)[Kind::String as usize]
            });
            let texts: Vec<String> = of_strings
                .cloned()
                .collect::<Vec<_>>()
                .iter()
                .map(|choice| self.text(choice, around))
                .collect::<Result<_, _>>()?;
            return Ok(format!("({})", texts.join(" | ")));
        }
        let lengths = lengths(&schema).map(|lengths| format!("/(?s:.{lengths})/"));
        let restrictions: Vec<String> = patterns(&schema).into_iter().chain(lengths).collect();
        if restrictions.is_empty() {
            let name = format!("{}_text_{}", self.parameters.prefix, self.count);
            self.count += 1;
            let rules = marks.up_to(&name, &mark, "");
            self.lark.push_str(&rules);
            let rest = self.after(
                &ValueForm { before: String::new(), after: around.after[1..].to_vec() },
                KEY,
            );
            return Ok(format!("{name} {rest}"));
        }
        let name = format!("{}_TEXT_{}", self.parameters.prefix.to_uppercase(), self.count);
        self.count += 1;
        let within = marks.without(&mark, "");
        let within = within.strip_prefix("/(?s:.+)/").unwrap_or_default();
        let _ = writeln!(self.lark, "{name}: {}{within}", restrictions.join(" & "));
        Ok(format!("{name} {after}"))
    }

    /// A value of these kinds that is not plain text.
    fn other(&mut self, schema: &Value, kinds: &[Kind]) -> Result<String, String> {
        let form = self.parameters.form;
        let is_nested = kinds.iter().any(|kind| matches!(kind, Kind::Object | Kind::Array));
        match form.nested {
            Nested::Marked if is_nested => return self.nested_of(schema, kinds),
            Nested::Python => return self.nested_of(schema, kinds),
            Nested::Tags if is_nested => return self.tagged(schema, kinds),
            _ => {}
        }
        let schema = json_of_kinds(schema, kinds, self.parameters.root)?;
        self.rule(&format!("%json {schema}"))
    }

    /// Elements of a list.
    pub(super) fn list(
        &mut self,
        schema: &Value,
        item: &str,
        separator: &str,
    ) -> Result<String, String> {
        let number = |key: &str| schema.get(key).and_then(Value::as_u64);
        let (min, max) = (number("minItems").unwrap_or(0), number("maxItems"));
        if max == Some(0) {
            return Ok("\"\"".to_owned());
        }
        let more = match max {
            Some(1) => return self.optional(item, min == 0),
            Some(max) => format!("{{{},{}}}", min.saturating_sub(1), max - 1),
            None => format!("{{{},}}", min.saturating_sub(1)),
        };
        let list = self.rule(&format!("{item} ({separator} {item}){more}"))?;
        self.optional(&list, min == 0)
    }

    /// A term that may be left out.
    fn optional(&mut self, term: &str, is_optional: bool) -> Result<String, String> {
        if is_optional { self.rule(&format!("({term})?")) } else { Ok(term.to_owned()) }
    }

    /// A value in nested tags.
    fn tagged(&mut self, schema: &Value, kinds: &[Kind]) -> Result<String, String> {
        let is_any = *schema == Value::Bool(true) || *schema == json!({});
        let schema = self.merged(schema, 0)?;
        let mut choices = Vec::new();
        for kind in kinds {
            choices.push(match kind {
                Kind::Object if is_any => self.any_tagged()?,
                Kind::Object => self.members(&schema, Level::Parameters)?,
                Kind::Array => {
                    let items =
                        schema.get("items").cloned().unwrap_or_else(|| json!({ "type": "string" }));
                    let item = self.member("\"item\"", &items, Level::Parameters)?;
                    self.list(&schema, &item, "\"\"")?
                }
                kind => {
                    let schema = json_of_kinds(&schema, &[*kind], self.parameters.root)?;
                    self.rule(&format!("%json {schema}"))?
                }
            });
        }
        self.rule(&choices.join(" | "))
    }

    /// Any members in nested tags, which may have any members in them.
    fn any_tagged(&mut self) -> Result<String, String> {
        if let Some((_, name)) = self.references.iter().find(|(known, _)| known.is_empty()) {
            return Ok(name.clone());
        }
        let name = format!("{}_ref_{}", self.parameters.prefix, self.references.len());
        self.references.push((String::new(), name.clone()));
        let members = self.members(&json!({}), Level::Parameters)?;
        let _ = writeln!(self.lark, "{name}: {members}");
        Ok(name)
    }

    /// A schema with its reference and its parts merged.
    pub(super) fn merged(&self, schema: &Value, depth: usize) -> Result<Value, String> {
        let Value::Object(members) = schema else { return Ok(json!({})) };
        if depth > 32 {
            return Err("references that only name each other are not supported".to_owned());
        }
        let mut merged = members.clone();
        let mut parts = Vec::new();
        if let Some(reference) = merged.shift_remove("$ref") {
            let pointer = reference.as_str().and_then(|reference| reference.strip_prefix('#'));
            let target = pointer.and_then(|pointer| self.parameters.root.pointer(pointer));
            parts.push(
                target.ok_or_else(|| format!("$ref: {reference} is not in the schema"))?.clone(),
            );
        }
        if let Some(Value::Array(all)) = merged.shift_remove("allOf") {
            parts.extend(all);
        }
        for part in parts {
            let Value::Object(part) = self.merged(&part, depth + 1)? else { continue };
            for (key, value) in part {
                match (key.as_str(), merged.get_mut(&key)) {
                    (_, None) => drop(merged.insert(key, value)),
                    ("properties", Some(Value::Object(known))) => {
                        known.extend(value.as_object().cloned().unwrap_or_default());
                    }
                    ("required", Some(Value::Array(known))) => {
                        known.extend(value.as_array().cloned().unwrap_or_default());
                    }
                    ("type", Some(known)) if *known == value => {}
                    (
                        "title" | "description" | "default" | "examples" | "$defs" | "definitions",
                        _,
                    ) => {}
                    (_, Some(known)) if *known == value => {}
                    ("pattern", Some(known)) => {
                        let mut all = match known.take() {
                            Value::Array(all) => all,
                            one => vec![one],
                        };
                        match value {
                            Value::Array(more) => all.extend(more),
                            one => all.push(one),
                        }
                        *known = all.into();
                    }
                    (key, Some(_)) => {
                        return Err(format!("allOf: {key} twice is not supported in parameters"));
                    }
                }
            }
        }
        Ok(Value::Object(merged))
    }
}

/// Stands for the term of a parameter's name in the terms after its value.
const KEY: &str = "\u{1}KEY\u{1}";

/// Whether strings are plain text.
fn is_string_text(form: &ParameterForm) -> bool {
    form.nested != Nested::Python || !form.value(Kind::String).after.is_empty()
}
