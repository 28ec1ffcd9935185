//! Incremental parser of tool calls in an answer.
//!
//! Problem: a model writes its calls into its text, in the form of its chat template; clients
//! expect them as separate fields, and streamed.
//! Method: 1. pass on text in which no call can begin; 2. after the opening of a call, read its
//! head up to the name of a known tool and the start of its arguments; 3. pass on the arguments
//! unchanged up to their closing brace; 4. parse calls in another order once they are complete, and
//! keep calls of unknown tools as text.
//! Complexity: linear in the text, except that the head of a call is scanned again with every
//! chunk.

use polydraft_text::CallForm;
use serde_json::{Map, Value};

/// Part of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputPart {
    /// More text.
    Text(String),
    /// Start of a call of this tool.
    Call(String),
    /// More of the call's arguments: JSON as the model wrote it.
    Arguments(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// In text, where a call may begin.
    Text,
    /// In text without calls, up to the end.
    Plain,
    /// After the opening of a call.
    Head,
    /// In the arguments of a call.
    Arguments(Braces),
    /// After the arguments of a call.
    Tail,
}

/// Parser of one answer.
#[derive(Debug)]
pub struct Calls {
    form: CallForm,
    /// Names of the request's tools.
    names: Vec<String>,
    state: State,
    /// Text whose part is not decided yet.
    pending: String,
    /// Whether a call was found: white space around calls is dropped.
    has_calls: bool,
}

impl Calls {
    /// Creates a parser for a new answer.
    pub fn new(form: CallForm, names: Vec<String>) -> Self {
        Self { form, names, state: State::Text, pending: String::new(), has_calls: false }
    }

    /// Adds more of the answer. Returns the decided parts.
    pub fn push(&mut self, text: &str) -> Vec<OutputPart> {
        self.pending.push_str(text);
        let mut parts = Vec::new();
        while self.advance(&mut parts) {}
        parts
    }

    /// Ends the answer. Returns the remaining parts.
    pub fn finish(&mut self) -> Vec<OutputPart> {
        let mut parts = Vec::new();
        let pending = std::mem::take(&mut self.pending);
        match self.state {
            // The end of the answer may stand for the closing mark.
            State::Head => match self.parse_complete(&pending) {
                Some(call) => parts.extend(call),
                None => parts.push(OutputPart::Text(format!("{}{pending}", self.form.opening()))),
            },
            State::Text | State::Plain if !(self.has_calls && pending.trim().is_empty()) => {
                parts.push(OutputPart::Text(pending))
            }
            State::Text | State::Plain | State::Arguments(_) | State::Tail => {}
        }
        parts.retain(|part| *part != OutputPart::Text(String::new()));
        parts
    }

    /// Makes one step. Returns whether more can be done with the pending text.
    fn advance(&mut self, parts: &mut Vec<OutputPart>) -> bool {
        match self.state {
            State::Text if self.form.opening().is_empty() => self.detect_bare_call(),
            State::Text => self.scan_text(parts),
            State::Plain => {
                self.emit(self.pending.len(), parts);
                false
            }
            State::Head => self.scan_head(parts),
            State::Arguments(mut braces) => {
                let end = braces.end(&self.pending);
                let arguments: String =
                    self.pending.drain(..end.unwrap_or(self.pending.len())).collect();
                parts.push(OutputPart::Arguments(arguments));
                self.state = if end.is_some() { State::Tail } else { State::Arguments(braces) };
                end.is_some()
            }
            State::Tail => self.scan_tail(),
        }
    }

    /// Emits this many bytes of the pending text.
    fn emit(&mut self, bytes: usize, parts: &mut Vec<OutputPart>) {
        let text: String = self.pending.drain(..bytes).collect();
        if !text.is_empty() {
            parts.push(OutputPart::Text(text));
        }
    }

    /// Decides whether the answer is a call, for forms without an opening mark: only at its start.
    fn detect_bare_call(&mut self) -> bool {
        let first = self.pending.trim_start().chars().next();
        self.state = match first {
            None => return false,
            Some('{') => State::Head,
            Some(_) => State::Plain,
        };
        true
    }

    fn scan_text(&mut self, parts: &mut Vec<OutputPart>) -> bool {
        let opening = self.form.opening();
        if let Some(at) = self.pending.find(opening) {
            let before = self.pending[..at].trim_end().len();
            self.emit(before, parts);
            self.pending.drain(..at - before + opening.len());
            self.state = State::Head;
            return true;
        }
        // Withhold a partial opening mark and white space before it.
        let part =
            (1..opening.len()).rev().find(|&n| self.pending.ends_with(&opening[..n])).unwrap_or(0);
        let text = self.pending[..self.pending.len() - part].trim_end().len();
        self.emit(text, parts);
        false
    }

    fn scan_head(&mut self, parts: &mut Vec<OutputPart>) -> bool {
        if let Some((name, arguments)) = scan_head(&self.pending)
            && self.names.contains(&name)
        {
            self.pending.drain(..arguments);
            parts.push(OutputPart::Call(name));
            self.has_calls = true;
            self.state = State::Arguments(Braces::default());
            return true;
        }
        let closing = self.form.closing();
        let (end, next) = match closing {
            "" => match Braces::default().end(&self.pending) {
                Some(end) => (end, end),
                None => return false,
            },
            closing => match self.pending.find(closing) {
                Some(end) => (end, end + closing.len()),
                None => return false,
            },
        };
        let body: String = self.pending.drain(..next).collect();
        match self.parse_complete(&body[..end]) {
            Some(call) => {
                parts.extend(call);
                self.has_calls = true;
                self.state = if closing.is_empty() { State::Tail } else { State::Text };
            }
            None => {
                parts.push(OutputPart::Text(format!("{}{body}", self.form.opening())));
                self.state = if closing.is_empty() { State::Plain } else { State::Text };
            }
        }
        true
    }

    /// Parses a complete call.
    fn parse_complete(&self, body: &str) -> Option<[OutputPart; 2]> {
        let mut object: Map<String, Value> = serde_json::from_str(body.trim()).ok()?;
        let name = object
            .get("name")?
            .as_str()
            .filter(|name| self.names.iter().any(|known| known == name))?;
        let call = OutputPart::Call(name.to_owned());
        let arguments = KEYS.iter().find_map(|key| object.remove(*key))?;
        let text = match arguments {
            Value::String(text) => text,
            arguments @ Value::Object(_) => arguments.to_string(),
            _ => return None,
        };
        Some([call, OutputPart::Arguments(text)])
    }

    fn scan_tail(&mut self) -> bool {
        match self.form.closing() {
            "" => {
                // Skip the call's closing brace and separators before the next call.
                let rest = self
                    .pending
                    .trim_start_matches(|c: char| c.is_whitespace() || c == '}' || c == ';');
                let first = rest.chars().next();
                self.pending = rest.to_owned();
                self.state = match first {
                    None => return false,
                    Some('{') => State::Head,
                    Some(_) => State::Plain,
                };
                true
            }
            closing => {
                let Some(at) = self.pending.find(closing) else { return false };
                self.pending.drain(..at + closing.len());
                self.state = State::Text;
                true
            }
        }
    }
}

/// Names of the arguments' field.
const KEYS: [&str; 2] = ["arguments", "parameters"];

/// Name of a call and the start of its arguments, if they follow directly and are an object.
fn scan_head(text: &str) -> Option<(String, usize)> {
    let blank = |rest: &str| rest.trim_start().len();
    let after = |rest: &'_ str, mark: &str| -> Option<usize> {
        Some(rest.trim_start().strip_prefix(mark)?.len())
    };
    let at = |left: usize| &text[text.len() - left..];
    let mut left = after(text, "{")?;
    for mark in ["\"name\"", ":"] {
        left = after(at(left), mark)?;
    }
    left = blank(at(left));
    let mut strings = serde_json::Deserializer::from_str(at(left)).into_iter::<String>();
    let name = strings.next()?.ok()?;
    left -= strings.byte_offset();
    left = after(at(left), ",")?;
    left = KEYS.iter().find_map(|key| after(at(left), &format!("\"{key}\"")))?;
    left = blank(at(after(at(left), ":")?));
    at(left).starts_with('{').then_some((name, text.len() - left))
}

/// Finds the closing brace of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Braces {
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl Braces {
    /// Continues with `text`. Returns where the object ends, if in it.
    fn end(&mut self, text: &str) -> Option<usize> {
        for (at, byte) in text.bytes().enumerate() {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                _ if self.in_string => {}
                b'{' => self.depth += 1,
                b'}' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(at + 1);
                    }
                }
                _ => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(form: CallForm) -> Calls {
        Calls::new(form, vec!["add".to_owned(), "now".to_owned()])
    }

    /// Joins the text, and the arguments of each call.
    fn collect(parts: Vec<OutputPart>) -> (String, Vec<(String, String)>) {
        let (mut text, mut calls) = (String::new(), Vec::<(String, String)>::new());
        for part in parts {
            match part {
                OutputPart::Text(more) => text.push_str(&more),
                OutputPart::Call(name) => calls.push((name, String::new())),
                OutputPart::Arguments(more) => calls.last_mut().expect("a call").1.push_str(&more),
            }
        }
        (text, calls)
    }

    /// Parses an answer whole, by characters, and split at each position: all must agree.
    fn parse_any_chunking(form: CallForm, answer: &str) -> (String, Vec<(String, String)>) {
        let parse_chunks = |chunks: &[&str]| {
            let mut calls = calls(form);
            let mut parts: Vec<OutputPart> =
                chunks.iter().flat_map(|chunk| calls.push(chunk)).collect();
            parts.extend(calls.finish());
            collect(parts)
        };
        let expected = parse_chunks(&[answer]);
        let single: Vec<String> = answer.chars().map(String::from).collect();
        assert_eq!(
            parse_chunks(&single.iter().map(String::as_str).collect::<Vec<_>>()),
            expected,
            "{answer}"
        );
        for (cut, _) in answer.char_indices() {
            let (a, b) = answer.split_at(cut);
            assert_eq!(parse_chunks(&[a, b]), expected, "{a}|{b}");
        }
        expected
    }

    fn owned(calls: &[(&str, &str)]) -> Vec<(String, String)> {
        calls
            .iter()
            .map(|(name, arguments)| (String::from(*name), String::from(*arguments)))
            .collect()
    }

    #[test]
    fn parses_hermes_calls_however_chunked() {
        let form = CallForm::Hermes;
        let one = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": \"}\\\"{\", \"b\": \
            [{}]}}\n</tool_call>";
        let add = ("add", "{\"a\": \"}\\\"{\", \"b\": [{}]}");
        assert_eq!(parse_any_chunking(form, one), (String::new(), owned(&[add])));
        let two = format!(
            "Let me see.\n\n{one}\n<tool_call>{{ \"arguments\" : {{}}, \
             \"name\":\"now\"}}</tool_call>\n"
        );
        assert_eq!(
            parse_any_chunking(form, &two),
            ("Let me see.".to_owned(), owned(&[add, ("now", "{}")]))
        );
        // Text is unchanged, even if it looks like the start of a call.
        for text in [
            "a <b>\n ",
            "x <tool_",
            "<tool_call>{\"name\": \"other\", \"arguments\": {}}</tool_call> ü",
            "  ",
        ] {
            assert_eq!(parse_any_chunking(form, text), (text.to_owned(), vec![]));
        }
        // A truncated call has the arguments so far.
        let cut = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": ";
        assert_eq!(parse_any_chunking(form, cut), (String::new(), owned(&[("add", "{\"a\": ")])));
        let text = "<tool_call>\n{\"name\": \"ad";
        assert_eq!(parse_any_chunking(form, text), (text.to_owned(), vec![]));
        // The end of the answer stands for the closing mark.
        let unclosed = "<tool_call>{\"arguments\": \"{}\", \"name\": \"now\"}";
        assert_eq!(parse_any_chunking(form, unclosed), (String::new(), owned(&[("now", "{}")])));
    }

    #[test]
    fn parses_llama_calls_however_chunked() {
        let form = CallForm::Llama;
        assert_eq!(
            parse_any_chunking(form, "\n{\"name\": \"add\", \"parameters\": {\"a\": 1}}"),
            (String::new(), owned(&[("add", "{\"a\": 1}")]))
        );
        assert_eq!(
            parse_any_chunking(
                form,
                "{\"name\": \"add\", \"parameters\": {}}; {\"name\": \"now\", \"parameters\": {}} "
            ),
            (String::new(), owned(&[("add", "{}"), ("now", "{}")]))
        );
        for text in [
            "Hello {\"name\": \"add\", \"parameters\": {}}",
            "{\"a\": 1} b",
            "{\"name\": \"no\", \"parameters\": {}}",
        ] {
            assert_eq!(parse_any_chunking(form, text), (text.to_owned(), vec![]));
        }
    }
}
