//! Calls of tools, parsed from an answer's text as it comes.
//!
//! Problem: a model writes its calls into its text, in the form that its chat template taught it;
//! clients want them apart from it, and piece by piece.
//! Method: 1. text is passed on as far as no call can begin in it; 2. after a call's opening its
//! head is read, up to the name of a tool that there is and the beginning of its arguments; 3.
//! these are passed on as they stand, up to the brace that closes them. 4. What has another order
//! is read once it is whole; what is no call of a tool that there is stays text.
//! Complexity: linear in the text, but for the head of a call, which is looked at again with every
//! piece.

use polydraft_text::CallForm;
use serde_json::{Map, Value};

/// A part of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// More text.
    Text(String),
    /// A call begins, of the tool of this name.
    Call(String),
    /// More of its arguments, JSON as the model wrote it.
    Arguments(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Text, in which a call may begin.
    Text,
    /// Text to the end.
    Plain,
    /// After the opening of a call.
    Head,
    /// In its arguments.
    Arguments(Braces),
    /// After its arguments.
    Tail,
}

/// Parses one answer.
#[derive(Debug)]
pub struct Calls {
    form: CallForm,
    /// Of the request's tools.
    names: Vec<String>,
    state: State,
    /// What is not decided yet.
    held: String,
    /// Whether there was a call: what is blank around calls is no text.
    called: bool,
}

impl Calls {
    /// At the answer's beginning.
    pub fn new(form: CallForm, names: Vec<String>) -> Self {
        Self { form, names, state: State::Text, held: String::new(), called: false }
    }

    /// Takes more of the answer.
    pub fn push(&mut self, text: &str) -> Vec<Said> {
        self.held.push_str(text);
        let mut said = Vec::new();
        while self.advance(&mut said) {}
        said
    }

    /// The answer is complete.
    pub fn finish(&mut self) -> Vec<Said> {
        let mut said = Vec::new();
        let held = std::mem::take(&mut self.held);
        match self.state {
            // The end may stand for the closing.
            State::Head => match self.call(&held) {
                Some(call) => said.extend(call),
                None => said.push(Said::Text(format!("{}{held}", self.form.opening()))),
            },
            State::Text | State::Plain if !(self.called && held.trim().is_empty()) => {
                said.push(Said::Text(held))
            }
            State::Text | State::Plain | State::Arguments(_) | State::Tail => {}
        }
        said.retain(|said| *said != Said::Text(String::new()));
        said
    }

    /// One step; whether there is more to do with the pending text.
    fn advance(&mut self, said: &mut Vec<Said>) -> bool {
        match self.state {
            State::Text if self.form.opening().is_empty() => self.begin(),
            State::Text => self.text(said),
            State::Plain => {
                self.tell(self.held.len(), said);
                false
            }
            State::Head => self.head(said),
            State::Arguments(mut braces) => {
                let end = braces.end(&self.held);
                let arguments: String = self.held.drain(..end.unwrap_or(self.held.len())).collect();
                said.push(Said::Arguments(arguments));
                self.state = if end.is_some() { State::Tail } else { State::Arguments(braces) };
                end.is_some()
            }
            State::Tail => self.tail(),
        }
    }

    /// Passes on so many bytes of the pending text.
    fn tell(&mut self, bytes: usize, said: &mut Vec<Said>) {
        let text: String = self.held.drain(..bytes).collect();
        if !text.is_empty() {
            said.push(Said::Text(text));
        }
    }

    /// Where a call has no opening: it is the answer's first word, or there is none.
    fn begin(&mut self) -> bool {
        let first = self.held.trim_start().chars().next();
        self.state = match first {
            None => return false,
            Some('{') => State::Head,
            Some(_) => State::Plain,
        };
        true
    }

    fn text(&mut self, said: &mut Vec<Said>) -> bool {
        let opening = self.form.opening();
        if let Some(at) = self.held.find(opening) {
            let before = self.held[..at].trim_end().len();
            self.tell(before, said);
            self.held.drain(..at - before + opening.len());
            self.state = State::Head;
            return true;
        }
        // A part of an opening, and what is blank before it, may be no text.
        let part =
            (1..opening.len()).rev().find(|&n| self.held.ends_with(&opening[..n])).unwrap_or(0);
        let text = self.held[..self.held.len() - part].trim_end().len();
        self.tell(text, said);
        false
    }

    fn head(&mut self, said: &mut Vec<Said>) -> bool {
        if let Some((name, arguments)) = head(&self.held)
            && self.names.contains(&name)
        {
            self.held.drain(..arguments);
            said.push(Said::Call(name));
            self.called = true;
            self.state = State::Arguments(Braces::default());
            return true;
        }
        let closing = self.form.closing();
        let (end, next) = match closing {
            "" => match Braces::default().end(&self.held) {
                Some(end) => (end, end),
                None => return false,
            },
            closing => match self.held.find(closing) {
                Some(end) => (end, end + closing.len()),
                None => return false,
            },
        };
        let body: String = self.held.drain(..next).collect();
        match self.call(&body[..end]) {
            Some(call) => {
                said.extend(call);
                self.called = true;
                self.state = if closing.is_empty() { State::Tail } else { State::Text };
            }
            None => {
                said.push(Said::Text(format!("{}{body}", self.form.opening())));
                self.state = if closing.is_empty() { State::Plain } else { State::Text };
            }
        }
        true
    }

    /// A call that is whole.
    fn call(&self, body: &str) -> Option<[Said; 2]> {
        let mut object: Map<String, Value> = serde_json::from_str(body.trim()).ok()?;
        let name = object
            .get("name")?
            .as_str()
            .filter(|name| self.names.iter().any(|known| known == name))?;
        let call = Said::Call(name.to_owned());
        let arguments = KEYS.iter().find_map(|key| object.remove(*key))?;
        let text = match arguments {
            Value::String(text) => text,
            arguments @ Value::Object(_) => arguments.to_string(),
            _ => return None,
        };
        Some([call, Said::Arguments(text)])
    }

    fn tail(&mut self) -> bool {
        match self.form.closing() {
            "" => {
                // The brace that closes the call, and what stands before another one.
                let rest = self
                    .held
                    .trim_start_matches(|c: char| c.is_whitespace() || c == '}' || c == ';');
                let first = rest.chars().next();
                self.held = rest.to_owned();
                self.state = match first {
                    None => return false,
                    Some('{') => State::Head,
                    Some(_) => State::Plain,
                };
                true
            }
            closing => {
                let Some(at) = self.held.find(closing) else { return false };
                self.held.drain(..at + closing.len());
                self.state = State::Text;
                true
            }
        }
    }
}

/// What arguments are called.
const KEYS: [&str; 2] = ["arguments", "parameters"];

/// The name in a call, and where its arguments begin, if these come next and are an object.
fn head(text: &str) -> Option<(String, usize)> {
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

/// Finds the brace that closes an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Braces {
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl Braces {
    /// Goes on with `text`; where the object ends in it.
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

    /// Text, and calls with their arguments.
    fn summed(said: Vec<Said>) -> (String, Vec<(String, String)>) {
        let (mut text, mut calls) = (String::new(), Vec::<(String, String)>::new());
        for said in said {
            match said {
                Said::Text(more) => text.push_str(&more),
                Said::Call(name) => calls.push((name, String::new())),
                Said::Arguments(more) => calls.last_mut().expect("a call").1.push_str(&more),
            }
        }
        (text, calls)
    }

    /// However it is cut into pieces.
    fn read(form: CallForm, answer: &str) -> (String, Vec<(String, String)>) {
        let whole = |pieces: &[&str]| {
            let mut calls = calls(form);
            let mut said: Vec<Said> = pieces.iter().flat_map(|piece| calls.push(piece)).collect();
            said.extend(calls.finish());
            summed(said)
        };
        let expected = whole(&[answer]);
        let single: Vec<String> = answer.chars().map(String::from).collect();
        assert_eq!(
            whole(&single.iter().map(String::as_str).collect::<Vec<_>>()),
            expected,
            "{answer}"
        );
        for (cut, _) in answer.char_indices() {
            let (a, b) = answer.split_at(cut);
            assert_eq!(whole(&[a, b]), expected, "{a}|{b}");
        }
        expected
    }

    fn of(calls: &[(&str, &str)]) -> Vec<(String, String)> {
        calls
            .iter()
            .map(|(name, arguments)| (String::from(*name), String::from(*arguments)))
            .collect()
    }

    #[test]
    fn hermes() {
        let form = CallForm::Hermes;
        let one = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": \"}\\\"{\", \"b\": \
            [{}]}}\n</tool_call>";
        let add = ("add", "{\"a\": \"}\\\"{\", \"b\": [{}]}");
        assert_eq!(read(form, one), (String::new(), of(&[add])));
        let two = format!(
            "Let me see.\n\n{one}\n<tool_call>{{ \"arguments\" : {{}}, \
             \"name\":\"now\"}}</tool_call>\n"
        );
        assert_eq!(read(form, &two), ("Let me see.".to_owned(), of(&[add, ("now", "{}")])));
        // Text as it stands, also where it looks like the beginning of a call.
        for text in [
            "a <b>\n ",
            "x <tool_",
            "<tool_call>{\"name\": \"other\", \"arguments\": {}}</tool_call> ü",
            "  ",
        ] {
            assert_eq!(read(form, text), (text.to_owned(), vec![]));
        }
        // Broken off: what there is.
        let cut = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": ";
        assert_eq!(read(form, cut), (String::new(), of(&[("add", "{\"a\": ")])));
        let text = "<tool_call>\n{\"name\": \"ad";
        assert_eq!(read(form, text), (text.to_owned(), vec![]));
        // The end stands for the closing.
        let unclosed = "<tool_call>{\"arguments\": \"{}\", \"name\": \"now\"}";
        assert_eq!(read(form, unclosed), (String::new(), of(&[("now", "{}")])));
    }

    #[test]
    fn llama() {
        let form = CallForm::Llama;
        assert_eq!(
            read(form, "\n{\"name\": \"add\", \"parameters\": {\"a\": 1}}"),
            (String::new(), of(&[("add", "{\"a\": 1}")]))
        );
        assert_eq!(
            read(
                form,
                "{\"name\": \"add\", \"parameters\": {}}; {\"name\": \"now\", \"parameters\": {}} "
            ),
            (String::new(), of(&[("add", "{}"), ("now", "{}")]))
        );
        for text in [
            "Hello {\"name\": \"add\", \"parameters\": {}}",
            "{\"a\": 1} b",
            "{\"name\": \"no\", \"parameters\": {}}",
        ] {
            assert_eq!(read(form, text), (text.to_owned(), vec![]));
        }
    }
}
