//! Incremental parser of messages in channels, as gpt-oss writes them.
//!
//! Source: OpenAI's Harmony format. An output is a list of messages `header <|message|> content`,
//! each up to `<|end|>`, `<|call|>` or `<|return|>`. The header names a channel (`analysis` is
//! reasoning, `final` and `commentary` are for the user) and, in calls, a recipient:
//! `to=functions.NAME`.
//! Method: withhold headers, and text that may become a mark.
//! Complexity: linear in the text.

use super::OutputPart;
use super::pattern::partial_mark_len;

/// Mark at the end of the output.
pub(crate) const RETURN: &str = "<|return|>";
/// Marks that end a message.
const ENDS: [&str; 4] = ["<|end|>", RETURN, "<|call|>", "<|start|>"];
/// Marks of a header.
const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
/// What a header may begin with: otherwise the output is plain text.
const STARTS: [&str; 4] = [CHANNEL, "<|start|>", "to=", "assistant"];

/// All marks of the format.
pub const MARKS: [&str; 7] =
    [CHANNEL, MESSAGE, "<|start|>", "<|end|>", "<|call|>", RETURN, "<|constrain|>"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Header,
    Reasoning,
    Text,
    Arguments,
}

/// Parser of one output.
#[derive(Debug, Clone)]
pub struct Channels {
    names: Vec<String>,
    state: State,
    pending: String,
    has_reasoning: bool,
    has_text: bool,
}

impl Channels {
    /// Creates a parser for a new output; the model may call tools of these names.
    pub fn new(names: Vec<String>) -> Self {
        let (state, pending) = (State::Header, String::new());
        Self { names, state, pending, has_reasoning: false, has_text: false }
    }

    /// Whether the output is in the reasoning.
    pub fn is_inside(&self) -> bool {
        self.state == State::Reasoning
    }

    /// Adds more output. Returns the decided parts.
    pub fn push(&mut self, text: &str) -> Vec<OutputPart> {
        self.pending.push_str(text);
        let mut parts = Vec::new();
        while self.advance(&mut parts) {}
        parts
    }

    /// Ends the output; `is_cut` is whether a limit did, so that a mark may be incomplete. Returns
    /// the remaining parts.
    pub fn finish(&mut self, is_cut: bool) -> Vec<OutputPart> {
        let mut rest = std::mem::take(&mut self.pending);
        if is_cut && self.state != State::Header {
            let mark = ENDS.iter().map(|mark| partial_mark_len(&rest, mark)).max();
            rest.truncate(rest.len() - mark.unwrap_or(0));
        }
        let mut parts = Vec::new();
        match self.state {
            // A header that was cut.
            State::Header => {}
            _ => self.emit(rest, &mut parts),
        }
        parts
    }

    fn emit(&self, text: String, parts: &mut Vec<OutputPart>) {
        if text.is_empty() {
            return;
        }
        parts.push(match self.state {
            State::Reasoning => OutputPart::Reasoning(text),
            State::Arguments => OutputPart::Arguments(text),
            State::Header | State::Text => OutputPart::Text(text),
        });
    }

    fn advance(&mut self, parts: &mut Vec<OutputPart>) -> bool {
        if self.state == State::Header {
            return self.read_header(parts);
        }
        let next = ENDS.iter().filter_map(|mark| Some((self.pending.find(mark)?, mark.len())));
        let Some((at, length)) = next.min() else {
            let kept = ENDS.iter().map(|mark| partial_mark_len(&self.pending, mark)).max();
            let length = self.pending.len() - kept.unwrap_or(0);
            let text = self.pending.drain(..length).collect();
            self.emit(text, parts);
            return false;
        };
        let text = self.pending.drain(..at).collect();
        self.emit(text, parts);
        self.pending.drain(..length);
        self.state = State::Header;
        true
    }

    fn read_header(&mut self, parts: &mut Vec<OutputPart>) -> bool {
        let Some(at) = self.pending.find(MESSAGE) else {
            let text = self.pending.trim_start();
            let may_be = |start: &&str| start.starts_with(text) || text.starts_with(*start);
            if text.is_empty() || STARTS.iter().any(may_be) {
                return false;
            }
            self.state = State::Text;
            return true;
        };
        let header: String = self.pending.drain(..at + MESSAGE.len()).collect();
        let word_after = |mark: &str| {
            let rest = header.split_once(mark)?.1;
            let end = rest.find(|c: char| c.is_whitespace() || c == '<').unwrap_or(rest.len());
            Some(&rest[..end])
        };
        let tool = word_after("to=").map(|to| to.strip_prefix("functions.").unwrap_or(to));
        if let Some(name) = tool.filter(|tool| self.names.iter().any(|name| name == tool)) {
            self.state = State::Arguments;
            parts.push(OutputPart::Call(name.to_owned()));
            return true;
        }
        let separator = |before: bool| if before { "\n" } else { "" }.to_owned();
        let between = match word_after(CHANNEL) {
            Some("analysis") => {
                self.state = State::Reasoning;
                separator(std::mem::replace(&mut self.has_reasoning, true))
            }
            _ => {
                self.state = State::Text;
                separator(std::mem::replace(&mut self.has_text, true))
            }
        };
        self.emit(between, parts);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(chunks: &[&str]) -> (String, String, Vec<(String, String)>) {
        let mut channels = Channels::new(vec!["f".to_owned()]);
        let mut parts: Vec<OutputPart> =
            chunks.iter().flat_map(|chunk| channels.push(chunk)).collect();
        parts.extend(channels.finish(false));
        let (mut thoughts, mut text, mut calls) = (String::new(), String::new(), Vec::new());
        for part in parts {
            match part {
                OutputPart::Reasoning(more) => thoughts.push_str(&more),
                OutputPart::Text(more) => text.push_str(&more),
                OutputPart::Call(name) => calls.push((name, String::new())),
                OutputPart::Arguments(more) => calls.last_mut().expect("a call").1.push_str(&more),
            }
        }
        (thoughts, text, calls)
    }

    #[test]
    fn separates_channels_however_chunked() {
        let call = |header: &str| format!("{header}<|message|>{{\"a\": 1}}<|call|>");
        let thought = "<|channel|>analysis<|message|>User says < hi.<|end|><|start|>assistant";
        let calls = vec![("f".to_owned(), "{\"a\": 1}".to_owned())];
        for (output, thoughts, text, expected) in [
            (
                format!("{thought}<|channel|>final<|message|>Hello"),
                "User says < hi.",
                "Hello",
                vec![],
            ),
            (
                call(&format!("{thought}<|channel|>commentary to=functions.f <|constrain|>json")),
                "User says < hi.",
                "",
                calls.clone(),
            ),
            (call(" to=functions.f<|channel|>commentary json"), "", "", calls.clone()),
            ("Hello <b>".to_owned(), "", "Hello <b>", vec![]),
            (call("<|channel|>commentary to=other"), "", "{\"a\": 1}", vec![]),
            ("<|channel|>final<|message|>x<|end|><|start|>assis".to_owned(), "", "x", vec![]),
        ] {
            let expected = (thoughts.to_owned(), text.to_owned(), expected);
            assert_eq!(parse(&[&output]), expected, "{output}");
            for (cut, _) in output.char_indices() {
                let (a, b) = output.split_at(cut);
                assert_eq!(parse(&[a, b]), expected, "{a}|{b}");
            }
        }
    }
}
