//! Incremental parser of arguments that are written one after the other, such as
//! `<parameter=a>1</parameter>`, into JSON.

use serde_json::{Map, Value, json};

use super::form::{ArgumentForm, CallForm, Kind, Nested, ParameterForm, ValueForm};
use super::literals::{Kinds, allowed_kinds, read_value};
use super::numbers::as_written;
use super::pattern::{Match, Piece, Slots, matches, partial_mark_len};

/// Result of a step.
pub(crate) enum Step {
    /// More text is needed.
    Wait,
    /// More of the arguments, as JSON.
    Arguments(String),
    /// The end of the arguments.
    End(String),
}

/// State of the parser in one call.
#[derive(Debug, Clone)]
pub(crate) struct Parameters {
    /// Schema of the arguments.
    schema: Value,
    /// Name and id of the call.
    slots: Slots,
    /// Names that the schema lists.
    names: Vec<String>,
    /// Number of parameters so far.
    count: usize,
    /// Names of the parameters so far.
    keys: Vec<String>,
    /// Parameter whose value is read.
    current: Option<Current>,
}

/// Parameter whose value is read.
#[derive(Debug, Clone)]
struct Current {
    key: String,
    /// Kinds that the text before the value allows.
    kinds: Vec<Kind>,
    /// Bytes of the pending text without the value's end.
    scanned: usize,
    /// State of the scan, for values without a mark at their end.
    scan: Scan,
}

impl Parameters {
    pub(crate) fn new(schema: Value, slots: Slots) -> Self {
        let properties = schema.get("properties").and_then(Value::as_object);
        let names = properties.map(|all| all.keys().cloned().collect()).unwrap_or_default();
        Self { schema, slots, names, count: 0, keys: Vec::new(), current: None }
    }

    /// Reads the next parameter, or the end of the arguments. `ended` is whether no more text
    /// follows.
    pub(crate) fn step(&mut self, pending: &mut String, form: &CallForm, ended: bool) -> Step {
        let ArgumentForm::Parameters(parameters) = &form.arguments else {
            return Step::End(String::new());
        };
        match self.current.take() {
            None => self.read_key(pending, form, parameters, ended),
            Some(current) => self.read_value(current, pending, form, parameters, ended),
        }
    }

    fn end(&self) -> Step {
        Step::End(self.closing().to_owned())
    }

    /// What closes the object that the parameters so far are.
    fn closing(&self) -> &'static str {
        if self.keys.is_empty() { "{}" } else { "}" }
    }

    fn read_key(
        &mut self,
        pending: &mut String,
        form: &CallForm,
        parameters: &ParameterForm,
        ended: bool,
    ) -> Step {
        // What the end of the answer cut is no text.
        match matches(&form.tail, pending, &[], self.slots.clone(), false) {
            Match::Yes(..) if !form.tail.is_empty() => return self.end(),
            Match::Partial => return Step::Wait,
            Match::Yes(..) | Match::No => {}
        }
        let (mut found, mut waits): (Option<(usize, String, &str)>, bool) = (None, false);
        for value in &parameters.values {
            let pattern = parameter_start(parameters, self.count, Some(value));
            match matches(&pattern, pending, &self.names, Slots::default(), false) {
                Match::Yes(slots, end) if found.as_ref().is_none_or(|(best, ..)| end > *best) => {
                    let key = self.listed(slots.key.unwrap_or_default());
                    found = Some((end, key, value.before.as_str()));
                }
                Match::Partial => waits = true,
                Match::Yes(..) | Match::No => {}
            }
        }
        if waits && !(ended && found.is_some()) {
            return Step::Wait;
        }
        // What is neither a parameter nor the end is left to the text after the call.
        let Some((end, key, before)) = found else { return self.end() };
        let kinds = Kind::ALL.into_iter().filter(|kind| parameters.value(*kind).before == before);
        let kinds = kinds.collect();
        pending.drain(..end);
        self.current = Some(Current { key, kinds, scanned: 0, scan: Scan::default() });
        Step::Arguments(String::new())
    }

    fn read_value(
        &mut self,
        mut current: Current,
        pending: &mut String,
        form: &CallForm,
        parameters: &ParameterForm,
        ended: bool,
    ) -> Step {
        let around = parameters.value(current.kinds[0]);
        let found = match around.mark() {
            Some(mark) => self.find_mark(&mut current, mark, pending, form, parameters, ended),
            None => find_end(&mut current, pending, form, parameters),
        };
        let Some((length, next)) = found else {
            self.current = Some(current);
            return Step::Wait;
        };
        let member = self.member(&current, &pending[..length], parameters);
        pending.drain(..next);
        Step::Arguments(member)
    }

    /// A parameter with this text as a member of the JSON object; empty if it is repeated.
    fn member(&mut self, current: &Current, text: &str, parameters: &ParameterForm) -> String {
        self.count += 1;
        if self.keys.contains(&current.key) {
            return String::new();
        }
        let text = trimmed(text, parameters.value(current.kinds[0]));
        let schema = self.property(&current.key);
        let value = value_of(text, &current.kinds, schema, &self.schema, parameters);
        let opening = if self.keys.is_empty() { "{" } else { ", " };
        self.keys.push(current.key.clone());
        let exact =
            as_written(text.trim(), &value).map_or_else(|| value.to_string(), str::to_owned);
        format!("{opening}{}: {exact}", Value::from(current.key.as_str()))
    }

    /// Ends the arguments where the answer ends: the pending text is the rest of a value.
    pub(crate) fn finish(&mut self, pending: &mut String, form: &CallForm) -> String {
        let mut rest = String::new();
        if let (Some(current), ArgumentForm::Parameters(parameters)) =
            (self.current.take(), &form.arguments)
        {
            rest = self.member(&current, pending, parameters);
        }
        pending.clear();
        rest + self.closing()
    }

    /// Start and end of the mark after a value: one that another parameter or the end of the
    /// arguments follows.
    fn find_mark(
        &self,
        current: &mut Current,
        mark: &str,
        pending: &str,
        form: &CallForm,
        parameters: &ParameterForm,
        ended: bool,
    ) -> Option<(usize, usize)> {
        let after = &parameters.value(current.kinds[0]).after;
        let key = Slots { key: Some(current.key.clone()), ..Slots::default() };
        let next = parameter_start(parameters, self.count + 1, None);
        while let Some(at) = pending[current.scanned..].find(mark) {
            let at = current.scanned + at;
            let end = match matches(after, &pending[at..], &[], key.clone(), ended) {
                Match::Partial => return None,
                Match::Yes(_, end) => Some(at + end),
                Match::No => None,
            };
            if let Some(end) = end {
                let follows = |pattern: &[Piece]| {
                    matches(pattern, &pending[end..], &[], self.slots.clone(), ended)
                };
                let (is_end, is_next) = (follows(&form.tail), follows(&next));
                let is_yes = |found: &Match| matches!(found, Match::Yes(..));
                if is_yes(&is_end) || is_yes(&is_next) || ended {
                    return Some((at, end));
                }
                if is_end == Match::Partial || is_next == Match::Partial {
                    return None;
                }
            }
            current.scanned = at + mark.len();
        }
        current.scanned = pending.len() - partial_mark_len(pending, mark);
        None
    }

    /// The listed name that `key` is but for white space around it; else `key`.
    fn listed(&self, key: String) -> String {
        if self.names.contains(&key) {
            return key;
        }
        let same = self.names.iter().find(|name| name.trim() == key.trim());
        same.cloned().unwrap_or(key)
    }

    /// Schema of a parameter.
    fn property(&self, key: &str) -> &Value {
        let within = |name: &str| self.schema.get(name);
        let property = within("properties").and_then(|properties| properties.get(key));
        property.or_else(|| within("additionalProperties")).unwrap_or(&Value::Bool(true))
    }
}

impl ValueForm {
    /// Mark at the end of a value, if there is one.
    fn mark(&self) -> Option<&str> {
        match self.after.first() {
            Some(Piece::Text(text)) if !text.trim().is_empty() => Some(text.trim()),
            _ => None,
        }
    }
}

/// Pattern of a parameter's start, up to its value where `value` is given.
fn parameter_start(form: &ParameterForm, before: usize, value: Option<&ValueForm>) -> Vec<Piece> {
    let mut literal = if before == 0 { String::new() } else { form.separator.clone() };
    literal.push_str(&form.before_key);
    let mut pattern = vec![Piece::Text(literal)];
    if let Some(value) = value {
        pattern.extend([Piece::Key, Piece::Text(value.before.clone())]);
    }
    pattern
}

/// Value without the white space that belongs to the marks around it.
fn trimmed<'t>(text: &'t str, around: &ValueForm) -> &'t str {
    let before = &around.before[around.before.trim_end().len()..];
    let text = text.strip_prefix(before).unwrap_or(text);
    let Some(Piece::Text(after)) = around.after.first() else { return text };
    let after = &after[..after.len() - after.trim_start().len()];
    text.strip_suffix(after).unwrap_or(text)
}

/// Value of a text, by the kinds that the form and the schema allow.
fn value_of(
    text: &str,
    kinds: &[Kind],
    schema: &Value,
    root: &Value,
    form: &ParameterForm,
) -> Value {
    let mut allowed: Kinds = allowed_kinds(schema, root);
    let kind = match kinds {
        [kind] => Some(*kind),
        _ => None,
    };
    if kinds.len() < Kind::ALL.len() && kind.is_none() {
        Kind::ALL.into_iter().filter(|kind| !kinds.contains(kind)).for_each(|kind| {
            allowed[kind as usize] = false;
        });
    }
    if form.nested == Nested::Tags && text.trim().is_empty() && !allowed[Kind::String as usize] {
        // Nothing inside the tags is an empty list or object.
        return if allowed[Kind::Array as usize] { Value::Array(vec![]) } else { json!({}) };
    }
    if form.nested == Nested::Tags && text.trim_start().starts_with(form.before_key.trim()) {
        return tagged(text, schema, root, form);
    }
    read_value(text, kind, allowed, form)
}

/// Value that is written as parameters inside a parameter.
fn tagged(text: &str, schema: &Value, root: &Value, form: &ParameterForm) -> Value {
    let (mut members, mut rest) = (Vec::new(), text.trim_start());
    let around = form.value(Kind::Object);
    while !rest.trim().is_empty() {
        let start = parameter_start(form, members.len(), Some(around));
        let Match::Yes(Slots { key: Some(key), .. }, at) =
            matches(&start, rest, &[], Slots::default(), true)
        else {
            return Value::String(text.to_owned());
        };
        let slots = Slots { key: Some(key.clone()), ..Slots::default() };
        let end =
            (at..rest.len()).filter(|end| rest.is_char_boundary(*end)).find_map(
                |end| match matches(&around.after, &rest[end..], &[], slots.clone(), true) {
                    Match::Yes(_, length) => Some((end, end + length)),
                    _ => None,
                },
            );
        let Some((end, next)) = end else { return Value::String(text.to_owned()) };
        let inner = match key.as_str() {
            "item" => schema.get("items"),
            key => schema.get("properties").and_then(|properties| properties.get(key)),
        };
        let inner = inner.unwrap_or(&Value::Bool(true));
        members.push((key, value_of(&rest[at..end], &Kind::ALL, inner, root, form)));
        rest = &rest[next..];
    }
    let allowed = allowed_kinds(schema, root);
    let is_list = members.iter().all(|(key, _)| key == "item") && allowed[Kind::Array as usize];
    if is_list && !members.is_empty() {
        return members.into_iter().map(|(_, value)| value).collect();
    }
    Value::Object(members.into_iter().collect::<Map<_, _>>())
}

/// State of the search for the end of a literal.
#[derive(Debug, Clone, Default)]
struct Scan {
    depth: usize,
    quote: Option<char>,
    in_marks: bool,
    escaped: bool,
}

/// Finds the end of a value without a mark: what begins the next parameter, or ends the
/// arguments, outside of brackets and strings.
fn find_end(
    current: &mut Current,
    pending: &str,
    form: &CallForm,
    parameters: &ParameterForm,
) -> Option<(usize, usize)> {
    let marks = parameters.string_marks();
    let separator = parameters.separator.trim();
    let tail = match form.tail.first() {
        Some(Piece::Text(text)) => text.trim(),
        _ => "",
    };
    let ends = |rest: &str| {
        [separator, tail]
            .iter()
            .any(|mark| mark.chars().next().is_some_and(|first| rest.starts_with(first)))
    };
    let scan = &mut current.scan;
    while let Some(character) = pending[current.scanned..].chars().next() {
        let rest = &pending[current.scanned..];
        if let Some((opening, closing)) = marks {
            let mark = if scan.in_marks { closing } else { opening };
            if rest.starts_with(mark) {
                scan.in_marks = !scan.in_marks;
                current.scanned += mark.len();
                continue;
            }
            if mark.starts_with(rest) {
                return None;
            }
        }
        match character {
            _ if scan.in_marks => {}
            _ if scan.escaped => scan.escaped = false,
            '\\' if scan.quote.is_some() => scan.escaped = true,
            _ if scan.quote == Some(character) => scan.quote = None,
            _ if scan.quote.is_some() => {}
            '"' | '\'' if marks.is_none() => scan.quote = Some(character),
            _ if scan.depth == 0 && ends(rest) => {
                return Some((current.scanned, current.scanned));
            }
            '{' | '[' | '(' => scan.depth += 1,
            '}' | ']' | ')' => scan.depth = scan.depth.saturating_sub(1),
            _ => {}
        }
        current.scanned += character.len_utf8();
    }
    None
}
