//! Formats of a model's output, derived from its chat template.
//!
//! Problem: templates differ in how models write reasoning and tool calls, and none says so.
//! Method: render answers with known contents (a thought, a text, one and two calls of known names
//! and arguments) after a prompt, and compare the texts: what surrounds the contents is the format.
//! A derived format must read back what the template wrote ([`calls`]). Formats that a template
//! describes in words only, or that have another structure, are in a [`table`].
//! Complexity: some twenty renderings, once per template.

mod calls;
mod outputs;
mod parameters;
mod reasoning;
mod segments;
mod table;

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{ChatTemplate, Ending, NAME, Rendering};
use crate::output::{OutputForm, Piece};
use segments::{Segment, common_prefix, segments};

/// Contents that are found again in the rendered text.
const QUESTION: &str = "Zqquestion";
const ANSWER: &str = "Zqanswer";
const THOUGHT: &str = "Zqthought";
const NAMES: [&str; 2] = ["zqfirst", "zqsecond"];
/// Nine letters and digits, which Mistral's templates require.
const IDS: [&str; 2] = ["zqid0000a", "zqid0000b"];
const KEYS: [&str; 2] = ["zqkeya", "zqkeyb"];

/// Derives the formats of a template's outputs, and the variables that it reads.
pub(super) fn output_form(template: &ChatTemplate) -> OutputForm {
    let source = template.environment.get_template(NAME).ok();
    let variables = source.map(|source| source.undeclared_variables(false)).unwrap_or_default();
    let mut variables: Vec<String> = variables.into_iter().collect();
    variables.sort_unstable();
    OutputForm { variables, ..derived_form(template) }
}

fn derived_form(template: &ChatTemplate) -> OutputForm {
    let probe = Probe::new(template, Vec::new());
    let with_tools = Probe::new(template, tools());
    let lists_tools = with_tools.prompt.as_ref().is_ok_and(|prompt| prompt.contains(NAMES[0]));
    let tools_problem = match (&probe.prompt, &with_tools.prompt) {
        (Ok(_), Err(problem)) => Some(problem.clone()),
        _ => None,
    };
    if let Some(form) = table::channels(template.source(), lists_tools) {
        return form;
    }
    let reasoning = reasoning::derive(&probe, &with_tools, template.source());
    let mut form = OutputForm { reasoning, lists_tools, tools_problem, ..OutputForm::default() };
    form.calls = table::calls(template.source()).map(Arc::new);
    if form.calls.is_some() {
        return form;
    }
    for (as_text, null_content) in [(false, false), (true, false), (false, true), (true, true)] {
        let shape = CallShape { as_text, null_content };
        if let Some(derived) = calls::derive(&with_tools, &form.reasoning, shape) {
            form.calls = Some(Arc::new(derived));
            form.takes_argument_text = as_text;
            form.takes_null_content = null_content;
            return form;
        }
    }
    form.calls = table::described_calls(template.source()).map(Arc::new);
    form
}

/// Tools of the rendered conversations.
fn tools() -> Vec<Value> {
    let property = |kind: &str| json!({ "type": kind, "description": "A value." });
    let tool = |name: &str| {
        json!({ "type": "function", "function": { "name": name, "description": "A function.",
            "parameters": { "type": "object", "required": [KEYS[0]], "properties": {
                KEYS[0]: property("string"), KEYS[1]: property("string") } } } })
    };
    NAMES.map(tool).into()
}

/// Renders answers after a question.
struct Probe<'a> {
    template: &'a ChatTemplate,
    tools: Vec<Value>,
    variables: Option<Map<String, Value>>,
    /// Prompt up to the answer, or the template's error.
    prompt: Result<String, String>,
}

impl<'a> Probe<'a> {
    fn new(template: &'a ChatTemplate, tools: Vec<Value>) -> Self {
        Self::with(template, tools, None)
    }

    fn with(
        template: &'a ChatTemplate,
        tools: Vec<Value>,
        variables: Option<Map<String, Value>>,
    ) -> Self {
        let probe = Self { template, tools, variables, prompt: Err(String::new()) };
        let prompt = probe.render(&[question()], Ending::Answer).map_err(|error| match error {
            crate::Error::Template { problem, .. } => problem,
            other => other.to_string(),
        });
        Self { prompt, ..probe }
    }

    /// The same with variables for the template.
    fn with_variables(&self, variables: Map<String, Value>) -> Self {
        Self::with(self.template, self.tools.clone(), Some(variables))
    }

    fn render(&self, messages: &[Value], ending: Ending) -> crate::Result<String> {
        let variables = self.variables.as_ref();
        let rendering = Rendering { tools: &self.tools, variables, ending };
        let bytes = messages.iter().map(|message| message.to_string().len()).sum();
        self.template.render_values(messages, bytes, &rendering)
    }

    /// What the model would have written for this answer: the text after what it shares with the
    /// prompt.
    fn output(&self, answer: Value) -> Option<String> {
        let prompt = self.prompt.as_ref().ok()?;
        let answer = self.template.with_known_name(answer);
        let full = self.render(&[question(), answer], Ending::Message).ok()?;
        let after = |text: &str| {
            let at = text.rfind(QUESTION)? + QUESTION.len();
            Some(segments(&text[at..], &[]))
        };
        let (prompt, full) = (after(prompt)?, after(&full)?);
        let shared = common_prefix(&prompt, &full, false).len();
        segments::text(&full[shared..])
    }
}

fn question() -> Value {
    json!({ "role": "user", "content": QUESTION })
}

fn answer() -> Value {
    json!({ "role": "assistant", "content": ANSWER })
}

/// How a template takes past calls.
#[derive(Debug, Clone, Copy, Default)]
struct CallShape {
    /// Arguments as text.
    as_text: bool,
    /// Null as the content.
    null_content: bool,
}

/// An answer that calls tools with these arguments.
fn calling(arguments: &[Value], shape: CallShape) -> Value {
    let calls = arguments.iter().zip(NAMES.iter().zip(IDS)).map(|(arguments, (name, id))| {
        let arguments = match shape.as_text {
            true => Value::String(super::json::python(arguments)),
            false => arguments.clone(),
        };
        json!({ "id": id, "type": "function",
            "function": { "name": name, "arguments": arguments } })
    });
    let content = if shape.null_content { Value::Null } else { json!("") };
    json!({ "role": "assistant", "content": content, "tool_calls": calls.collect::<Vec<_>>() })
}

/// Names, ids and keys as slots.
fn slots() -> Vec<(&'static str, Piece)> {
    let names = NAMES.map(|name| (name, Piece::Name));
    let ids = IDS.map(|id| (id, Piece::Id));
    names.into_iter().chain(ids).collect()
}

/// Removes the common end of two texts from the first.
fn without_end<'s>(text: &'s [Segment], end: &[Segment]) -> &'s [Segment] {
    let shared = segments::common_suffix(text, end, false).len();
    &text[..text.len() - shared]
}
