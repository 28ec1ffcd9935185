//! Output of one sequence so far: text, reasoning, calls and scores.

use std::sync::Arc;

use polydraft_engine::{Finish, Scored, Trace};
use serde_json::{Value, json};

use super::calls::{Calls, OutputPart};
use super::reasoning::{Reasoning, Split};
use super::tokens::PromptScores;

/// A tool call.
#[derive(Debug)]
pub struct Call {
    /// Id of the call.
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// Arguments so far, as JSON.
    pub arguments: String,
    /// Bytes of the arguments sent so far; `None` before the first delta.
    sent: Option<usize>,
}

impl Call {
    fn new(name: String) -> Self {
        let id = format!("call_{:032x}", polydraft_runtime::random::<u128>());
        Self { id, name, arguments: String::new(), sent: None }
    }

    /// Delta since the last one, if any. The first has the id and the name.
    pub fn delta(&mut self, index: usize) -> Option<Value> {
        let new = &self.arguments[self.sent.unwrap_or(0)..];
        if self.sent.is_some() && new.is_empty() {
            return None;
        }
        let mut delta = json!({ "index": index, "function": { "arguments": new } });
        if self.sent.replace(self.arguments.len()).is_none() {
            delta["id"] = self.id.as_str().into();
            delta["type"] = "function".into();
            delta["function"]["name"] = self.name.as_str().into();
        }
        Some(delta)
    }

    /// Parsed arguments, or a string if they are not JSON.
    pub fn parsed(&self) -> Value {
        let parsed = serde_json::from_str(&self.arguments);
        parsed.unwrap_or_else(|_| Value::String(self.arguments.clone()))
    }

    /// The complete call.
    pub fn to_json(&self) -> Value {
        let Self { id, name, arguments, .. } = self;
        let function = json!({ "name": name, "arguments": arguments });
        json!({ "id": id, "type": "function", "function": function })
    }
}

/// Output of one sequence so far.
#[derive(Debug, Default)]
pub struct SequenceOutput {
    /// Index of the prompt.
    pub prompt: usize,
    /// Scores of the prompt's tokens, until they are sent.
    pub prompt_scores: Option<Arc<PromptScores>>,
    /// Whether the listed tokens begin with the tokens of the prompt.
    pub echoes_prompt: bool,
    /// Reasoning, if it is separated.
    pub reasoning: String,
    /// Text.
    pub text: String,
    /// Tool calls.
    pub calls: Vec<Call>,
    /// Scores of the tokens.
    pub scores: Vec<Scored>,
    /// Traces of the engine's steps.
    pub traces: Vec<Trace>,
    /// Reason of the end.
    pub finish: Option<Finish>,
    /// Characters of the tokens sent so far.
    pub offset: usize,
    /// Whether the first chunk was sent.
    pub started: bool,
    /// Number of tokens so far.
    pub tokens: usize,
    /// Separates reasoning, if enabled.
    pub splitter: Option<Reasoning>,
    /// Parses tool calls, if enabled.
    pub parser: Option<Calls>,
}

impl SequenceOutput {
    /// Adds more output.
    pub fn push(&mut self, output: String) {
        let split = match &mut self.splitter {
            Some(splitter) => splitter.push(&output),
            None => Split { answer: output, ..Split::default() },
        };
        self.append_split(split);
    }

    /// Ends the output.
    pub fn finish(&mut self, finish: Finish) {
        self.finish = Some(finish);
        let rest = self.splitter.as_mut().map(Reasoning::finish).unwrap_or_default();
        self.append_split(rest);
        let parts = self.parser.as_mut().map(Calls::finish).unwrap_or_default();
        self.append(parts);
    }

    fn append_split(&mut self, Split { reasoning, answer }: Split) {
        self.reasoning.push_str(&reasoning);
        let parts = match &mut self.parser {
            _ if answer.is_empty() => Vec::new(),
            Some(parser) => parser.push(&answer),
            None => vec![OutputPart::Text(answer)],
        };
        self.append(parts);
    }

    fn append(&mut self, parts: Vec<OutputPart>) {
        for part in parts {
            match (part, self.calls.last_mut()) {
                (OutputPart::Text(text), _) => self.text.push_str(&text),
                (OutputPart::Call(name), _) => self.calls.push(Call::new(name)),
                (OutputPart::Arguments(more), Some(call)) => call.arguments.push_str(&more),
                // Arguments follow a call.
                (OutputPart::Arguments(_), None) => {}
            }
        }
    }

    /// Reason of the end, as in OpenAI's interface.
    pub fn finish_reason(&self) -> Option<&'static str> {
        Some(match self.finish? {
            Finish::MaxTokens | Finish::Context => "length",
            Finish::End | Finish::Stop | Finish::Stopped if self.calls.is_empty() => "stop",
            Finish::End | Finish::Stop | Finish::Stopped => "tool_calls",
        })
    }

    /// Whether anything is not sent yet.
    pub fn has_unsent(&self) -> bool {
        let has_call_news = self.calls.iter().any(|call| call.sent != Some(call.arguments.len()));
        let has_text = !self.text.is_empty() || !self.reasoning.is_empty();
        let has_scores = !self.scores.is_empty() || !self.traces.is_empty();
        has_text || has_scores || has_call_news || self.finish.is_some()
    }
}
