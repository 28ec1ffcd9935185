//! Parts of a model's output: reasoning, text and tool calls.

mod braces;
mod calls;
mod channels;
mod form;
mod literals;
mod numbers;
mod objects;
mod parameters;
mod pattern;
mod reasoning;

use std::sync::Arc;

pub(crate) use braces::Braces;
pub use calls::{Calls, Tool};
pub use channels::{Channels, MARKS as CHANNEL_MARKS};
pub use form::{ArgumentForm, CallForm, Kind, Nested, ParameterForm, ValueForm};
pub(crate) use literals::read_value;
pub use literals::{Kinds, allowed_kinds};
pub use numbers::read_json;
pub use pattern::Piece;
pub use reasoning::{PromptEnd, Reasoning, ReasoningForm, Split};

/// Part of an output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputPart {
    /// More reasoning.
    Reasoning(String),
    /// More text.
    Text(String),
    /// Start of a call of this tool.
    Call(String),
    /// More of the call's arguments, as JSON.
    Arguments(String),
}

/// Formats of a model's output, derived from its chat template.
#[derive(Debug, Clone, Default)]
pub struct OutputForm {
    /// Marks of reasoning and answer.
    pub reasoning: ReasoningForm,
    /// Tool calls; `None` if no format is known.
    pub calls: Option<Arc<CallForm>>,
    /// Whether the output consists of messages in channels, as gpt-oss writes them.
    pub has_channels: bool,
    /// Whether the template describes tools to the model.
    pub lists_tools: bool,
    /// Variables that the template reads.
    pub variables: Vec<String>,
    /// Error of a template that fails with tools.
    pub tools_problem: Option<String>,
    /// Whether the template takes arguments of past calls as text only.
    pub takes_argument_text: bool,
    /// Whether the template shows calls only of answers whose content is null.
    pub takes_null_content: bool,
}

impl OutputForm {
    /// The same without what follows one of these ends.
    pub(crate) fn until(mut self, ends: &[String]) -> Self {
        let cut = |text: &mut String| {
            if let Some(at) = ends.iter().filter_map(|end| text.find(end)).min() {
                text.truncate(at);
            }
        };
        cut(&mut self.reasoning.answer_closing);
        self.calls = self.calls.map(|form| {
            let mut form = CallForm::clone(&form);
            cut(&mut form.closing);
            if let Some(Piece::Text(last)) = form.tail.last_mut() {
                cut(last);
            }
            form.tail.retain(|piece| *piece != Piece::Text(String::new()));
            Arc::new(form)
        });
        self
    }

    /// Literal text of the output that is not part of reasoning, answer or arguments; without
    /// that of calls unless `with_calls`.
    pub fn literals(&self, with_calls: bool) -> Vec<&str> {
        if self.has_channels {
            return CHANNEL_MARKS.to_vec();
        }
        let ReasoningForm { opening, closing, answer_opening, answer_closing } = &self.reasoning;
        let mut all = vec![opening.as_str(), closing, answer_opening, answer_closing];
        let calls = self.calls.iter().filter(|_| with_calls);
        all.extend(calls.flat_map(|form| form.literals()));
        all.retain(|text| !text.trim().is_empty());
        all
    }
}

/// Parser of an output's parts.
#[derive(Debug, Clone)]
pub struct OutputParser {
    reasoning: Option<Reasoning>,
    calls: Option<Calls>,
    channels: Option<Channels>,
    /// Mark of the output's end, where the others stay in the text.
    end: Option<&'static str>,
}

impl OutputParser {
    /// Creates a parser for the output after a prompt. Without `splits_reasoning` all text is
    /// answer; calls of `tools` are recognised.
    pub fn new(
        form: &OutputForm,
        splits_reasoning: bool,
        prompt: PromptEnd,
        tools: Arc<Vec<Tool>>,
    ) -> Self {
        let names = || tools.iter().map(|tool| tool.name.clone()).collect();
        let channels = (form.has_channels && splits_reasoning).then(|| Channels::new(names()));
        let reasoning = (channels.is_none() && splits_reasoning)
            .then(|| Reasoning::new(form.reasoning.clone(), prompt));
        let calls = form.calls.clone().filter(|_| channels.is_none() && !tools.is_empty());
        let calls = calls.map(|form| Calls::new(form, tools));
        let end = channels::RETURN;
        Self {
            reasoning,
            calls,
            end: (form.has_channels && channels.is_none()).then_some(end),
            channels,
        }
    }

    /// Takes no calls without their outermost tags, which a grammar would not hold.
    pub fn require_outer_tags(&mut self) {
        self.calls.iter_mut().for_each(Calls::require_outer_tags);
    }

    /// Whether the output is inside the reasoning.
    pub fn is_in_reasoning(&self) -> bool {
        self.reasoning.as_ref().is_some_and(Reasoning::is_inside)
            || self.channels.as_ref().is_some_and(Channels::is_inside)
    }

    /// Adds more output. Returns the decided parts.
    pub fn push(&mut self, text: &str) -> Vec<OutputPart> {
        if let Some(channels) = &mut self.channels {
            return channels.push(text);
        }
        let split = match &mut self.reasoning {
            Some(reasoning) => reasoning.push(text),
            None => {
                // The mark is a token of its own.
                let answer = self.end.map_or_else(|| text.to_owned(), |end| text.replace(end, ""));
                Split { answer, ..Split::default() }
            }
        };
        self.split_parts(split)
    }

    /// Ends the output; `is_cut` is whether a limit did. Returns the remaining parts.
    pub fn finish(&mut self, is_cut: bool) -> Vec<OutputPart> {
        if let Some(channels) = &mut self.channels {
            return channels.finish(is_cut);
        }
        let rest = self.reasoning.as_mut().map(|reasoning| reasoning.finish(is_cut));
        let rest = rest.unwrap_or_default();
        let mut parts = self.split_parts(rest);
        parts.extend(self.calls.as_mut().into_iter().flat_map(|calls| calls.finish(is_cut)));
        parts
    }

    fn split_parts(&mut self, Split { reasoning, answer }: Split) -> Vec<OutputPart> {
        let mut parts = Vec::new();
        if !reasoning.is_empty() {
            parts.push(OutputPart::Reasoning(reasoning));
        }
        match &mut self.calls {
            _ if answer.is_empty() => {}
            Some(calls) => parts.extend(calls.push(&answer)),
            None => parts.push(OutputPart::Text(answer)),
        }
        parts
    }
}
