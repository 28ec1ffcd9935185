//! Serialized form of answers and chunks. Log-probabilities are written directly: as JSON values,
//! the log-probabilities of a full vocabulary would take many times the memory.

use serde::Serialize;
use serde_json::{Map, Value};

use super::super::tokens::{ChatTokens, CompletionTokens, PromptLogprobs};

/// An answer, or a chunk of one.
#[derive(Serialize)]
pub struct Frame {
    /// Fields before the choices.
    #[serde(flatten)]
    pub head: Map<String, Value>,
    /// One choice per sequence.
    pub choices: Vec<Choice>,
    /// Scores of the prompt in conversations: null if not requested, omitted in chunks without
    /// them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<Option<PromptLogprobs>>,
    /// Fields after the choices.
    #[serde(flatten)]
    pub tail: Map<String, Value>,
}

impl Frame {
    /// Adds a field.
    pub fn add(&mut self, name: &str, value: impl Into<Value>) {
        self.tail.insert(name.to_owned(), value.into());
    }

    /// Serializes the frame.
    pub fn to_json(&self) -> String {
        // Cannot fail: all keys are strings.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// A sequence, or its new output.
#[derive(Serialize)]
pub struct Choice {
    /// All other fields.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
    /// Log-probabilities of the tokens.
    pub logprobs: Option<Logprobs>,
    /// Scores of the prompt in completions: null if not requested, omitted in chunks without them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<Option<PromptLogprobs>>,
}

/// Log-probabilities in the form of the route.
#[derive(Serialize)]
#[serde(untagged)]
pub enum Logprobs {
    /// Form of conversations.
    Chat {
        /// Tokens of the answer.
        content: ChatTokens,
        /// Tokens of a refusal: always null, because models here have none.
        refusal: (),
    },
    /// Form of completions.
    Completion(CompletionTokens),
}

/// Fields of an object.
pub fn members(object: Value) -> Map<String, Value> {
    match object {
        Value::Object(members) => members,
        _ => Map::new(),
    }
}
