//! Answers and chunks of them as they are written. Log-probabilities go into the text as they
//! stand, for as JSON values those of a whole vocabulary would take many times its memory.

use serde::Serialize;
use serde_json::{Map, Value};

use super::super::tokens::{ById, ChatTokens, CompletionTokens};

/// An answer, or a chunk of one.
#[derive(Serialize)]
pub struct Frame {
    /// What stands before the choices.
    #[serde(flatten)]
    pub head: Map<String, Value>,
    /// The sequences.
    pub choices: Vec<Choice>,
    /// In conversations, the prompt's: null where they may be and are not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<Option<ById>>,
    /// What stands after them.
    #[serde(flatten)]
    pub tail: Map<String, Value>,
}

impl Frame {
    /// Adds a member.
    pub fn add(&mut self, name: &str, value: impl Into<Value>) {
        self.tail.insert(name.to_owned(), value.into());
    }

    /// Its text.
    pub fn text(&self) -> String {
        // Nothing in it can fail: all names are strings.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// What is said, or is new, of one sequence.
#[derive(Serialize)]
pub struct Choice {
    /// All else.
    #[serde(flatten)]
    pub said: Map<String, Value>,
    /// Its tokens' log-probabilities.
    pub logprobs: Option<Logprobs>,
    /// In completions, its prompt's: null where they may be and are not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<Option<ById>>,
}

/// Log-probabilities, as the route has them.
#[derive(Serialize)]
#[serde(untagged)]
pub enum Logprobs {
    /// In conversations.
    Chat {
        /// Of the answer.
        content: ChatTokens,
        /// Of a refusal, which no model here has apart.
        refusal: (),
    },
    /// In completions.
    Completion(CompletionTokens),
}

/// The members of an object.
pub fn members(object: Value) -> Map<String, Value> {
    match object {
        Value::Object(members) => members,
        _ => Map::new(),
    }
}
