//! Output of one sequence so far: text, reasoning, calls and scores.

use std::sync::Arc;

use polydraft_engine::{Finish, Scored, Trace};
use polydraft_text::{OutputParser, OutputPart, Tokenizer, read_json};
use serde_json::{Value, json};

use super::reader::is_truncated;
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

    /// Parsed arguments: an empty object if they are not one, because the model was cut off or
    /// wrote something else.
    pub fn parsed(&self) -> Value {
        let parsed = read_json(&self.arguments).ok().filter(Value::is_object);
        parsed.unwrap_or_else(|| json!({}))
    }

    /// The complete call.
    pub fn to_json(&self) -> Value {
        let Self { id, name, arguments, .. } = self;
        let function = json!({ "name": name, "arguments": arguments });
        json!({ "id": id, "type": "function", "function": function })
    }
}

/// Run of one kind in an output, in the order in which the model wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    /// Bytes of the reasoning.
    Reasoning(usize),
    /// Bytes of the text.
    Text(usize),
    /// Call by index.
    Call(usize),
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
    /// Parses reasoning and tool calls, if enabled.
    pub parser: Option<OutputParser>,
    /// Whether the reasoning is counted and left out.
    pub omits_reasoning: bool,
    /// Kinds of output, in order.
    pub runs: Vec<Run>,
    /// Number of tokens at the end of each run.
    pub run_ends: Vec<usize>,
}

impl SequenceOutput {
    /// Adds more output, of this many tokens. Returns how many of them belong to the reasoning: in
    /// a chunk with one of its marks, as many as its text there has.
    pub fn push(&mut self, output: String, tokens: usize, tokenizer: &Tokenizer) -> usize {
        let Some(parser) = &mut self.parser else {
            self.append(vec![OutputPart::Text(output)]);
            return 0;
        };
        let was_inside = parser.is_in_reasoning();
        let parts = parser.push(&output);
        let is_inside = parser.is_in_reasoning();
        let thoughts = parts.iter().filter_map(|part| match part {
            OutputPart::Reasoning(text) => Some(text.as_str()),
            _ => None,
        });
        let count =
            |text: &str| tokenizer.encode_plain(text).map_or(tokens, |part| part.len().min(tokens));
        let has_other = parts.iter().any(|part| !matches!(part, OutputPart::Reasoning(_)));
        let inside = match was_inside && is_inside && !has_other {
            true => tokens,
            false => thoughts.map(count).sum::<usize>().min(tokens),
        };
        self.append(parts);
        inside
    }

    /// Ends the output.
    pub fn finish(&mut self, finish: Finish) {
        self.finish = Some(finish);
        let is_cut = is_truncated(Some(finish));
        let parts = self.parser.as_mut().map(|parser| parser.finish(is_cut)).unwrap_or_default();
        self.append(parts);
        if let Some(call) = self.calls.last_mut()
            && call.arguments.trim().is_empty()
        {
            // A limit cut the call before its arguments.
            call.arguments = "{}".to_owned();
        }
    }

    fn append(&mut self, parts: Vec<OutputPart>) {
        for part in parts {
            match (part, self.calls.last_mut()) {
                (OutputPart::Reasoning(_), _) if self.omits_reasoning => {}
                (OutputPart::Reasoning(more), _) => {
                    self.reasoning.push_str(&more);
                    self.extend_run(Run::Reasoning(more.len()));
                }
                (OutputPart::Text(more), _) => {
                    self.text.push_str(&more);
                    self.extend_run(Run::Text(more.len()));
                }
                (OutputPart::Call(name), _) => {
                    self.runs.push(Run::Call(self.calls.len()));
                    self.calls.push(Call::new(name));
                }
                (OutputPart::Arguments(more), Some(call)) => call.arguments.push_str(&more),
                // Arguments follow a call.
                (OutputPart::Arguments(_), None) => {}
            }
            // The last run has grown.
            self.run_ends.truncate(self.runs.len().saturating_sub(1));
            self.run_ends.resize(self.runs.len(), self.tokens);
        }
    }

    fn extend_run(&mut self, more: Run) {
        match (self.runs.last_mut(), more) {
            (Some(Run::Reasoning(bytes)), Run::Reasoning(more))
            | (Some(Run::Text(bytes)), Run::Text(more)) => *bytes += more,
            (_, Run::Reasoning(0) | Run::Text(0)) => {}
            (_, more) => self.runs.push(more),
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use polydraft_text::{OutputForm, PromptEnd, Tool};

    use super::*;

    /// A word is a token; an underscore is a space.
    #[test]
    fn counts_the_tokens_of_the_reasoning_without_headers_and_calls() {
        let file =
            br#"{"model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0, "b": 1}},
            "pre_tokenizer": {"type": "WhitespaceSplit"}}"#;
        let tokenizer = Tokenizer::parse(file, "tokenizer.json").unwrap();
        let tools = Arc::new(vec![Tool { name: "f".to_owned(), schema: Value::Bool(true) }]);
        let channels = OutputForm { has_channels: true, ..OutputForm::default() };
        let mut marks = OutputForm::default();
        (marks.reasoning.opening, marks.reasoning.closing) = ("<think>".into(), "</think>".into());
        let call = "<|channel|> commentary_to=functions.f <|message|> {} <|call|>";
        for (form, output, expected) in [
            (&channels, "<|channel|> analysis <|message|> a_ b <|end|>", 2),
            (&channels, call, 0),
            (&channels, "<|channel|> final <|message|> a_ b <|end|>", 0),
            (&marks, "<think> a_ b_ a </think> b", 3),
            (&marks, "a_ b", 0),
        ] {
            for size in [1, 2, 3, 20] {
                let words: Vec<String> = output.split(' ').map(|w| w.replace('_', " ")).collect();
                let mut sequence = SequenceOutput {
                    parser: Some(OutputParser::new(form, true, PromptEnd::Before, tools.clone())),
                    ..SequenceOutput::default()
                };
                let counts = words
                    .chunks(size)
                    .map(|chunk| sequence.push(chunk.concat(), chunk.len(), &tokenizer));
                assert_eq!(counts.sum::<usize>(), expected, "{output} by {size}");
            }
        }
    }
}
