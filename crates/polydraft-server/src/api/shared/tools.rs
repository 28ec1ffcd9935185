//! `tools`, `tool_choice` and `parallel_tool_calls`.
//!
//! The chat template gets the descriptions of the tools; calls are parsed from the output
//! ([`calls`](super::calls)). Required and strict calls are enforced by a grammar: the output has
//! the distribution of plain decoding with the same mask.

use std::collections::HashSet;

use polydraft_text::CallForm;
use serde::Deserialize;
use serde_json::{Value, json};

use super::calls::Calls;
use super::error::Problem;
use super::params::check_range;
use super::read::read;
use crate::LoadedModel;
use crate::grammar::{CallGrammar, Form};
use crate::worker::Failure;

/// Maximum number of tools, and bytes of their descriptions.
const MAX_TOOLS: usize = 128;
const MAX_BYTES: usize = 64 << 10;

#[derive(Debug, Deserialize)]
struct Tool {
    #[serde(rename = "type")]
    kind: String,
    function: Function,
}

#[derive(Debug, Deserialize)]
struct Function {
    name: String,
    parameters: Option<Value>,
    strict: Option<bool>,
}

/// Choice of tools.
enum Choice {
    Auto,
    Required,
    /// A call of this tool.
    Named(String),
}

/// Tools in the prompt.
pub struct Tools {
    form: CallForm,
    /// Descriptions for the chat template.
    pub listed: Vec<Value>,
    names: Vec<String>,
    /// Form of the output, if enforced.
    pub grammar: Option<Form>,
}

impl Tools {
    /// Creates a parser of calls.
    pub fn calls(&self) -> Calls {
        Calls::new(self.form, self.names.clone())
    }
}

/// Converts the three parameters; `None` if no tool may be called. An answer without calls has the
/// form `otherwise`, if given.
///
/// # Errors
/// Tools that are invalid, too many, or not supported by the model; a choice of an unknown tool; a
/// form other than JSON.
pub fn prepare_tools(
    model: &LoadedModel,
    tools: Option<Vec<Value>>,
    choice: Option<Value>,
    parallel: Option<bool>,
    otherwise: Option<&Form>,
) -> Result<Option<Tools>, Problem> {
    let listed = tools.unwrap_or_default();
    let choice = parse_choice(choice)?;
    if listed.is_empty() {
        return match choice {
            None | Some(Choice::Auto) => Ok(None),
            Some(_) => Err(Problem::invalid("tool_choice needs tools").with_param("tool_choice")),
        };
    }
    check_range("tools", listed.len(), 1, MAX_TOOLS)?;
    check_range("tools", listed.iter().map(|tool| tool.to_string().len()).sum(), 0, MAX_BYTES)?;
    let mut functions = Vec::new();
    let mut names = HashSet::new();
    for (number, tool) in listed.iter().enumerate() {
        let param = |field: &str| format!("tools[{number}]{field}");
        let Tool { kind, function } = read(tool.clone()).map_err(|problem| {
            let inner = problem.error.param.clone().map(|inner| format!(".{inner}"));
            problem.with_param(&param(&inner.unwrap_or_default()))
        })?;
        if kind != "function" {
            let problem = format!("expected tools of type function, got one of type {kind:?}");
            return Err(Problem::invalid(problem)
                .with_param(&param(".type"))
                .with_code("unsupported_parameter"));
        }
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if !(1..=64).contains(&function.name.len()) || !function.name.chars().all(is_allowed) {
            let problem =
                format!("expected 1 to 64 of a-z, A-Z, 0-9, _ and -, got {:?}", function.name);
            return Err(Problem::invalid(problem).with_param(&param(".function.name")));
        }
        if !names.insert(function.name.clone()) {
            let problem =
                format!("expected tools of different names, got {:?} twice", function.name);
            return Err(Problem::invalid(problem).with_param(&param(".function.name")));
        }
        if function.parameters.as_ref().is_some_and(|schema| !schema.is_object()) {
            let problem = Problem::invalid("expected a schema that is an object");
            return Err(problem.with_param(&param(".function.parameters")));
        }
        functions.push(function);
    }
    if let Some(Choice::Named(name)) = &choice
        && !names.contains(name)
    {
        let problem = format!("tool_choice: unknown tool {name:?}");
        return Err(Problem::invalid(problem).with_param("tool_choice"));
    }
    // No tool may be called, so the prompt has none.
    let Some(choice) = choice else { return Ok(None) };
    let form = call_form(model).map_err(|problem| problem.with_param("tools"))?;
    let grammar = required_form(form, &functions, &choice, parallel.unwrap_or(true), otherwise)?;
    let names = functions.into_iter().map(|function| function.name).collect();
    Ok(Some(Tools { form, listed, names, grammar }))
}

/// Form in which the model writes calls.
///
/// # Errors
/// A model whose chat template has no tools, or an unknown form of calls.
pub fn call_form(model: &LoadedModel) -> Result<CallForm, Problem> {
    let form = model.language.chat.as_ref().and_then(polydraft_text::ChatTemplate::calls);
    form.ok_or_else(|| {
        let problem = "tools are not supported with this model: its chat template has none, or \
                       writes calls in an unknown form";
        Problem::invalid(problem).with_code("unsupported_parameter")
    })
}

/// Parses the choice; `None` if no tool may be called.
fn parse_choice(choice: Option<Value>) -> Result<Option<Choice>, Problem> {
    let name = choice.as_ref().and_then(|choice| {
        let named = choice.get("type")? == "function";
        let name = choice.get("function")?.get("name")?.as_str()?.to_owned();
        named.then_some(name)
    });
    match choice.as_ref().map(|choice| choice.as_str()) {
        None | Some(Some("auto")) => Ok(Some(Choice::Auto)),
        Some(Some("none")) => Ok(None),
        Some(Some("required")) => Ok(Some(Choice::Required)),
        _ => match name {
            Some(name) => Ok(Some(Choice::Named(name))),
            None => {
                let expected = concat!(
                    r#""none", "auto", "required" or "#,
                    r#"{"type": "function", "function": {"name": ..}}"#
                );
                let problem = Problem::invalid(format!("tool_choice: expected {expected}"));
                Err(problem.with_param("tool_choice").with_code("unsupported_parameter"))
            }
        },
    }
}

/// Form of the output to enforce, if any.
fn required_form(
    form: CallForm,
    functions: &[Function],
    choice: &Choice,
    parallel: bool,
    otherwise: Option<&Form>,
) -> Result<Option<Form>, Problem> {
    let strict = |function: &Function| function.strict == Some(true);
    let allow_text = matches!(choice, Choice::Auto);
    let otherwise = otherwise.filter(|_| allow_text);
    if allow_text && parallel && otherwise.is_none() && !functions.iter().any(strict) {
        return Ok(None);
    }
    // A named tool is called once, as in other servers.
    let allow_several = parallel && !matches!(choice, Choice::Named(_));
    let is_callable =
        |function: &&Function| !matches!(choice, Choice::Named(name) if *name != function.name);
    let is_auto = allow_text;
    let tools = functions.iter().filter(is_callable).map(|function| {
        let schema = match &function.parameters {
            // Without parameters the arguments are empty.
            None => json!({ "type": "object", "properties": {}, "additionalProperties": false }),
            Some(_) if is_auto && !strict(function) => json!({ "type": "object" }),
            Some(schema) => schema.clone(),
        };
        (function.name.as_str(), schema)
    });
    let invalid = |problem| Problem::from(Failure::Form { param: "tools", problem });
    // An answer without calls must have the form `otherwise`, so it is not free text.
    let allow_text = allow_text && otherwise.is_none();
    let calls = CallGrammar { form, tools: tools.collect(), allow_several, allow_text };
    match otherwise {
        None => Form::calls(&calls, "tools").map(Some).map_err(invalid),
        Some(otherwise) => otherwise.or_calls(&calls).map(Some).map_err(invalid),
    }
}
