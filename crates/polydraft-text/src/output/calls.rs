//! Incremental parser of tool calls in an answer.
//!
//! Problem: a model writes its calls into its text, in the form of its chat template; clients
//! expect them as separate fields, and streamed.
//! Method: 1. pass on text in which no call can begin; 2. where one may begin, wait until the text
//! up to its arguments matches the form, with the name of a known tool; 3. pass on arguments in
//! JSON unchanged up to their closing brace, and parameters one by one, as JSON; 4. read JSON
//! objects with members in another order once they are complete, and keep what is no call as text.
//! Complexity: linear in the text, except that the head of a call and what waits for its end are
//! read again with every chunk.

use std::sync::Arc;

use serde_json::Value;

use super::OutputPart;
use super::braces::Braces;
use super::form::{ArgumentForm, CallForm};
use super::objects::{Object, find_object, names_other};
use super::parameters::{Parameters, Step};
use super::pattern::{Literal, Match, Piece, Slots, literal_end, matches, partial_mark_len};

/// Tool that a model may call.
#[derive(Debug, Clone)]
pub struct Tool {
    /// Name.
    pub name: String,
    /// JSON schema of the arguments: an object.
    pub schema: Value,
}

#[derive(Debug, Clone)]
enum State {
    /// At the start of the answer, where a call without a mark may begin.
    Start,
    /// In text, where a call may begin at a mark.
    Text,
    /// In arguments in JSON.
    Json(Braces),
    /// In arguments that are parameters.
    Parameters(Box<Parameters>),
    /// After the arguments, in the object that a call is.
    Object(Braces),
    /// After the arguments, or the object, of a call.
    Tail,
    /// After a call.
    After,
}

/// Start of a text, as far as a call is concerned.
enum Found {
    /// No call.
    None,
    /// More text is needed to tell.
    Unclear,
    /// A call whose arguments start at this byte.
    Head(Slots, usize),
    /// A call of this name with these arguments, up to this byte.
    Whole(String, String, usize),
}

/// Parser of one answer.
#[derive(Debug, Clone)]
pub struct Calls {
    form: Arc<CallForm>,
    /// The form without its outermost tags, which models leave out at times.
    inner: Option<Arc<CallForm>>,
    /// Whether the current call has the inner form.
    is_inner: bool,
    /// Patterns of the first call, and of calls after others.
    first: Vec<Piece>,
    next: Vec<Vec<Piece>>,
    /// Text after the arguments, or after the object, of a call.
    tail: Vec<Piece>,
    tools: Arc<Vec<Tool>>,
    names: Vec<String>,
    state: State,
    /// Text whose part is not decided yet.
    pending: String,
    /// End of the text that may be part of a character that a limit cut.
    partial: String,
    /// Name and id of the current call.
    slots: Slots,
    /// Whether a call was found: white space around calls is dropped.
    has_calls: bool,
    /// Whether text was passed on.
    has_text: bool,
}

impl Calls {
    /// Creates a parser for a new answer.
    pub fn new(form: Arc<CallForm>, tools: Arc<Vec<Tool>>) -> Self {
        let after = |text: &str| {
            let text = Some(Piece::Text(text.to_owned())).filter(|_| !text.trim().is_empty());
            text.into_iter().chain(form.head.iter().cloned()).collect::<Vec<Piece>>()
        };
        let first = after(&form.opening);
        let mut next = vec![after(&form.separator), after(""), first.clone()];
        if form.is_object() {
            // Llama separates calls so.
            next.push(after(";"));
        }
        let tail = match form.is_object() {
            true => vec![Piece::Text(form.after_object().to_owned())],
            false => form.tail.clone(),
        };
        let names = tools.iter().map(|tool| tool.name.clone()).collect();
        Self {
            inner: form.inner().map(Arc::new),
            is_inner: false,
            form,
            first,
            next,
            tail,
            tools,
            names,
            state: State::Start,
            pending: String::new(),
            partial: String::new(),
            slots: Slots::default(),
            has_calls: false,
            has_text: false,
        }
    }

    /// Takes no calls without their outermost tags.
    pub(crate) fn require_outer_tags(&mut self) {
        self.inner = None;
    }

    /// Adds more of the answer. Returns the decided parts.
    pub fn push(&mut self, text: &str) -> Vec<OutputPart> {
        let mut text = std::mem::take(&mut self.partial) + text;
        self.partial = text.split_off(text.trim_end_matches(char::REPLACEMENT_CHARACTER).len());
        self.pending.push_str(&text);
        let mut parts = Vec::new();
        while self.advance(&mut parts, false) {}
        parts
    }

    /// Ends the answer; `is_cut` is whether a limit did. Returns the remaining parts.
    pub fn finish(&mut self, is_cut: bool) -> Vec<OutputPart> {
        let mut parts = Vec::new();
        let partial = std::mem::take(&mut self.partial);
        if is_cut && self.begins_call() {
            self.pending.clear();
        } else if !(is_cut && self.has_calls) {
            self.pending.push_str(&partial);
        }
        while self.advance(&mut parts, true) {}
        if let State::Parameters(parameters) = &mut self.state
            && !is_cut
        {
            // The end of the answer stands for the end of the call.
            let form = self.inner.as_ref().filter(|_| self.is_inner).unwrap_or(&self.form);
            let rest = parameters.finish(&mut self.pending, form);
            parts.push(OutputPart::Arguments(rest));
        }
        let rest = std::mem::take(&mut self.pending);
        let is_text = matches!(self.state, State::Start | State::Text | State::After);
        if is_text && !(self.has_calls && rest.trim().is_empty()) {
            parts.push(OutputPart::Text(rest));
        }
        parts.retain(|part| *part != OutputPart::Text(String::new()));
        parts
    }

    /// Makes one step. Returns whether more can be done with the pending text. `ended` is whether
    /// no more text follows.
    fn advance(&mut self, parts: &mut Vec<OutputPart>, ended: bool) -> bool {
        match &mut self.state {
            State::Start if self.form.trigger().is_empty() => {
                let found = self.find_call(0, &self.first, ended);
                self.begin(found, State::Text, parts)
            }
            State::Start => {
                self.state = State::Text;
                true
            }
            State::Text => self.scan_text(parts, ended),
            State::Json(braces) => {
                let end = braces.end(&self.pending);
                let length = end.unwrap_or(self.pending.len());
                parts.push(OutputPart::Arguments(self.pending.drain(..length).collect()));
                if end.is_some() {
                    self.state = match self.form.object_depth() {
                        0 => State::Tail,
                        depth => State::Object(Braces::inside(depth)),
                    };
                }
                end.is_some()
            }
            State::Parameters(parameters) => {
                let form = self.inner.as_ref().filter(|_| self.is_inner).unwrap_or(&self.form);
                let (text, is_end) = match parameters.step(&mut self.pending, form, ended) {
                    Step::Wait => return false,
                    Step::Arguments(text) => (text, false),
                    Step::End(text) => (text, true),
                };
                parts.push(OutputPart::Arguments(text));
                if is_end {
                    self.state = State::Tail;
                }
                true
            }
            State::Object(braces) => {
                let end = braces.end(&self.pending);
                self.pending.drain(..end.unwrap_or(self.pending.len()));
                if end.is_some() {
                    self.state = State::Tail;
                }
                end.is_some()
            }
            State::Tail => {
                let slots = self.slots.clone();
                let inner = self.inner.as_ref().filter(|_| self.is_inner);
                let tail = inner.map_or(&self.tail, |inner| &inner.tail);
                match matches(tail, &self.pending, &self.names, slots, false) {
                    // The end of the answer stands for the rest of it.
                    Match::Partial if ended => self.pending.clear(),
                    Match::Partial => return false,
                    Match::Yes(_, end) => drop(self.pending.drain(..end)),
                    Match::No => {}
                }
                self.state = State::After;
                true
            }
            State::After => self.scan_after(parts, ended),
        }
    }

    /// Begins the call that was found; without one the state becomes `otherwise`. Returns whether
    /// more can be done with the pending text.
    fn begin(&mut self, found: Found, otherwise: State, parts: &mut Vec<OutputPart>) -> bool {
        match found {
            Found::Unclear => return false,
            Found::None => self.state = otherwise,
            Found::Head(slots, start) => {
                self.pending.drain(..start);
                let name = slots.name.clone().unwrap_or_default();
                self.state = match self.form.arguments {
                    ArgumentForm::Json => State::Json(Braces::default()),
                    ArgumentForm::Parameters(_) => {
                        let tool = self.tools.iter().find(|tool| tool.name == name);
                        let schema = tool.map_or(Value::Bool(true), |tool| tool.schema.clone());
                        State::Parameters(Box::new(Parameters::new(schema, slots.clone())))
                    }
                };
                (self.slots, self.has_calls) = (slots, true);
                parts.push(OutputPart::Call(name));
            }
            Found::Whole(name, arguments, end) => {
                self.pending.drain(..end);
                (self.state, self.has_calls) = (State::Tail, true);
                parts.extend([OutputPart::Call(name), OutputPart::Arguments(arguments)]);
            }
        }
        true
    }

    /// Looks for a call with this pattern at this byte of the pending text.
    fn find_call(&self, at: usize, pattern: &[Piece], ended: bool) -> Found {
        let text = &self.pending[at..];
        let unclear = || if ended { Found::None } else { Found::Unclear };
        if text.trim().is_empty() {
            return unclear();
        }
        let found = match matches(pattern, text, &self.names, Slots::default(), ended) {
            Match::Partial => return unclear(),
            Match::Yes(slots, end) if self.form.arguments == ArgumentForm::Json => {
                let rest = text[end..].trim_start();
                match rest.chars().next() {
                    None => return unclear(),
                    Some('{') => Some((slots, self.pending.len() - rest.len())),
                    Some(_) => None,
                }
            }
            Match::Yes(slots, end) => Some((slots, at + end)),
            Match::No => None,
        };
        match found {
            Some((slots, start)) => Found::Head(slots, start),
            None if self.form.is_object() => match find_object(text, pattern, &self.names) {
                Object::None => Found::None,
                Object::Unclear => unclear(),
                Object::Call(name, arguments, end) => Found::Whole(name, arguments, at + end),
            },
            None => Found::None,
        }
    }

    /// Emits this many bytes of the pending text.
    fn emit(&mut self, bytes: usize, parts: &mut Vec<OutputPart>) {
        let text: String = self.pending.drain(..bytes).collect();
        if !text.is_empty() {
            self.has_text = true;
            parts.push(OutputPart::Text(text));
        }
    }

    /// Whether the pending text is the start of a call, up to its arguments at most. Text that
    /// only may become one counts if it is more than a character of a line.
    fn begins_call(&self) -> bool {
        let text = self.pending.trim_start();
        let space = &self.pending[..self.pending.len() - text.len()];
        if text.is_empty() {
            return false;
        }
        let is_unclear =
            |pattern: &Vec<Piece>| matches!(self.find_call(0, pattern, false), Found::Unclear);
        match self.state {
            State::Start | State::Text | State::After if self.has_calls => {
                let inner = self.inner.as_deref().map(|inner| &inner.head);
                self.next.iter().chain([&self.first]).chain(inner).any(is_unclear)
            }
            // Any object may become a call, but few do.
            State::Start => {
                match matches(&self.first, text, &self.names, Slots::default(), false) {
                    Match::Partial => true,
                    Match::Yes(_, end) => text[end..].trim().is_empty(),
                    Match::No => false,
                }
            }
            State::Text => {
                let mut marks = self.marks().filter(|(mark, _)| mark.starts_with(text));
                if let Some((mark, _)) = marks.next() {
                    let begins_line = !self.has_text || space.contains('\n');
                    let is_word = mark.starts_with(char::is_alphabetic);
                    return begins_line || (!is_word && text.chars().count() > 1);
                }
                self.marks().any(|(mark, pattern)| {
                    let names_other = self.form.is_object() && names_other(text, &self.names);
                    text.starts_with(mark) && is_unclear(pattern) && !names_other
                })
            }
            _ => false,
        }
    }

    fn is_inner_head(&self, pattern: &Vec<Piece>) -> bool {
        self.inner.as_deref().is_some_and(|inner| std::ptr::eq(&inner.head, pattern))
    }

    /// Marks at which a call may begin in a text, and the patterns there.
    fn marks(&self) -> impl Iterator<Item = (&str, &Vec<Piece>)> + Clone {
        let separator = self.form.separator.trim();
        // A separator such as `>>>` begins a call after text, too.
        let separator = if separator.len() > 2 { separator } else { "" };
        let inner = self.inner.as_deref().map(|inner| (inner.trigger(), &inner.head));
        let marks = [(self.form.trigger(), &self.first), (separator, &self.next[0])];
        marks.into_iter().chain(inner).filter(|(mark, _)| !mark.is_empty())
    }

    /// Passes on text up to the next call.
    fn scan_text(&mut self, parts: &mut Vec<OutputPart>, ended: bool) -> bool {
        let triggers = self.marks();
        let (mut from, mut found, mut is_inner) = (0, None, false);
        while found.is_none() {
            let next = triggers.clone().filter_map(|(mark, pattern)| {
                Some((from + self.pending[from..].find(mark)?, mark.len(), pattern))
            });
            let Some((at, length, pattern)) = next.min_by_key(|(at, ..)| *at) else { break };
            is_inner = self.is_inner_head(pattern);
            match self.find_call(at, pattern, ended) {
                Found::None => from = at + length,
                call => found = Some((at, call)),
            }
        }
        let marks = triggers.map(|(mark, _)| partial_mark_len(&self.pending, mark));
        let partial = marks.max().unwrap_or(0);
        if ended && found.is_none() {
            // The rest is decided at the end.
            return false;
        }
        let end = found.as_ref().map_or(self.pending.len() - partial, |(at, _)| *at);
        let emitted = self.pending[..end].trim_end().len();
        self.emit(emitted, parts);
        self.is_inner = is_inner;
        found.is_some_and(|(_, found)| self.begin(found.earlier(emitted), State::Text, parts))
    }

    /// After a call: another one, the end of the calls, or text.
    fn scan_after(&mut self, parts: &mut Vec<OutputPart>, ended: bool) -> bool {
        let mut unclear = false;
        let inner = self.inner.as_deref().map(|inner| &inner.head);
        for pattern in self.next.iter().chain(inner) {
            match self.find_call(0, pattern, ended) {
                Found::None => {}
                Found::Unclear => unclear = true,
                found => {
                    self.is_inner = self.is_inner_head(pattern);
                    return self.begin(found, State::Text, parts);
                }
            }
        }
        // A model that leaves out the first tag may write the last.
        let last = if self.is_inner { self.form.last_tag() } else { "" };
        for closing in [self.form.closing.trim(), last] {
            match literal_end(closing, &self.pending) {
                Literal::End(length) if !closing.is_empty() => {
                    self.pending.drain(..length);
                    (self.state, self.is_inner) = (State::Text, false);
                    return true;
                }
                // The end of the answer stands for the rest of it.
                Literal::Partial if ended => self.pending.clear(),
                Literal::Partial => unclear = true,
                Literal::End(_) | Literal::No => {}
            }
        }
        if unclear {
            return false;
        }
        self.state = State::Text;
        true
    }
}

impl Found {
    /// The same after this many bytes of the text were removed.
    fn earlier(self, bytes: usize) -> Self {
        match self {
            Self::Head(slots, start) => Self::Head(slots, start - bytes),
            Self::Whole(name, arguments, end) => Self::Whole(name, arguments, end - bytes),
            other => other,
        }
    }
}
