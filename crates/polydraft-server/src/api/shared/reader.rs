//! How the answers of a request are read.

use std::sync::Arc;

use polydraft_engine::Finish;
use polydraft_text::{OutputForm, OutputParser, PromptEnd, Tool};

/// Reads the answers of a request.
pub struct OutputReader {
    /// Formats of the answers.
    pub form: OutputForm,
    /// Whether reasoning is separate.
    pub splits_reasoning: bool,
    /// Where the prompt ends.
    pub prompt: PromptEnd,
    /// Tools whose calls are recognised.
    pub tools: Arc<Vec<Tool>>,
    /// Whether a grammar holds the calls.
    pub has_grammar: bool,
    /// Whether the reasoning is left out of the answer.
    pub omits_reasoning: bool,
}

impl OutputReader {
    /// Keeps the reasoning in the text, with its marks.
    pub fn keep_reasoning(&mut self) {
        self.splits_reasoning = false;
    }

    /// Parser of a new answer.
    pub fn parser(&self) -> OutputParser {
        let tools = self.tools.clone();
        let mut parser = OutputParser::new(&self.form, self.splits_reasoning, self.prompt, tools);
        if self.has_grammar {
            parser.require_outer_tags();
        }
        parser
    }
}

/// Whether an answer was truncated by a limit.
pub fn is_truncated(finish: Option<Finish>) -> bool {
    matches!(finish, Some(Finish::MaxTokens | Finish::Context))
}
