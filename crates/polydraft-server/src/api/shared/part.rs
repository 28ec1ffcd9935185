//! One sequence of an answer, as far as it is known: what its output is made of.

use std::sync::Arc;

use polydraft_engine::{Finish, Scored, Trace};
use serde_json::{Value, json};

use super::calls::{Calls, Said};
use super::reasoning::{Reasoning, Split};
use super::tokens::PromptScores;

/// A call of a tool.
#[derive(Debug)]
pub struct Call {
    /// Its id.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// JSON, as far as it is known.
    pub arguments: String,
    /// Bytes of it sent so far; none before its first delta.
    told: Option<usize>,
}

impl Call {
    fn new(name: String) -> Self {
        let id = format!("call_{:032x}", polydraft_runtime::random::<u128>());
        Self { id, name, arguments: String::new(), told: None }
    }

    /// What is new of it; none if nothing is. The id and the name stand in the first one.
    pub fn delta(&mut self, index: usize) -> Option<Value> {
        let new = &self.arguments[self.told.unwrap_or(0)..];
        if self.told.is_some() && new.is_empty() {
            return None;
        }
        let mut delta = json!({ "index": index, "function": { "arguments": new } });
        if self.told.replace(self.arguments.len()).is_none() {
            delta["id"] = self.id.as_str().into();
            delta["type"] = "function".into();
            delta["function"]["name"] = self.name.as_str().into();
        }
        Some(delta)
    }

    /// The arguments; a string, where what the model wrote is no JSON.
    pub fn parsed(&self) -> Value {
        let parsed = serde_json::from_str(&self.arguments);
        parsed.unwrap_or_else(|_| Value::String(self.arguments.clone()))
    }

    /// All of it.
    pub fn whole(&self) -> Value {
        let Self { id, name, arguments, .. } = self;
        let function = json!({ "name": name, "arguments": arguments });
        json!({ "id": id, "type": "function", "function": function })
    }
}

/// One sequence.
#[derive(Debug, Default)]
pub struct Part {
    /// The number of its prompt.
    pub prompt: usize,
    /// The scores of its prompt's tokens, where they are known and not sent yet.
    pub prompt_scores: Option<Arc<PromptScores>>,
    /// Whether its tokens begin with the prompt's.
    pub echoes: bool,
    /// What the model thought, where that is told apart.
    pub reasoning: String,
    /// The text.
    pub text: String,
    /// The calls in it.
    pub calls: Vec<Call>,
    /// Scores of its tokens.
    pub scores: Vec<Scored>,
    /// Steps of the engine.
    pub traces: Vec<Trace>,
    /// Why it ended.
    pub finish: Option<Finish>,
    /// Characters of its tokens sent so far.
    pub offset: usize,
    /// Whether its first chunk was sent.
    pub begun: bool,
    /// Its tokens so far.
    pub tokens: usize,
    /// Tells reasoning apart, where there may be some.
    pub reasoner: Option<Reasoning>,
    /// Parses calls in the output, where there may be some.
    pub reader: Option<Calls>,
}

impl Part {
    /// Takes more of the output.
    pub fn push(&mut self, piece: String) {
        let split = match &mut self.reasoner {
            Some(reasoner) => reasoner.push(&piece),
            None => Split { answer: piece, ..Split::default() },
        };
        self.take(split);
    }

    /// The output is complete.
    pub fn finish(&mut self, finish: Finish) {
        self.finish = Some(finish);
        let rest = self.reasoner.as_mut().map(Reasoning::finish).unwrap_or_default();
        self.take(rest);
        let said = self.reader.as_mut().map(Calls::finish).unwrap_or_default();
        self.said(said);
    }

    fn take(&mut self, Split { reasoning, answer }: Split) {
        self.reasoning.push_str(&reasoning);
        let said = match &mut self.reader {
            _ if answer.is_empty() => Vec::new(),
            Some(reader) => reader.push(&answer),
            None => vec![Said::Text(answer)],
        };
        self.said(said);
    }

    fn said(&mut self, said: Vec<Said>) {
        for said in said {
            match (said, self.calls.last_mut()) {
                (Said::Text(text), _) => self.text.push_str(&text),
                (Said::Call(name), _) => self.calls.push(Call::new(name)),
                (Said::Arguments(more), Some(call)) => call.arguments.push_str(&more),
                // There are no arguments without a call.
                (Said::Arguments(_), None) => {}
            }
        }
    }

    /// Why it ended, in the interface's words.
    pub fn reason(&self) -> Option<&'static str> {
        Some(match self.finish? {
            Finish::MaxTokens | Finish::Context => "length",
            Finish::End | Finish::Stop | Finish::Stopped if self.calls.is_empty() => "stop",
            Finish::End | Finish::Stop | Finish::Stopped => "tool_calls",
        })
    }

    /// Whether anything of it is not sent yet.
    pub fn is_news(&self) -> bool {
        let called = self.calls.iter().any(|call| call.told != Some(call.arguments.len()));
        let said = !self.text.is_empty() || !self.reasoning.is_empty();
        let more = !self.scores.is_empty() || !self.traces.is_empty();
        said || more || called || self.finish.is_some()
    }
}
