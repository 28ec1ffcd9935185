//! `tools`, `tool_choice` and `parallel_tool_calls`: what the model may call, and must.
//!
//! The template gets the descriptions of the tools; calls are parsed from the output
//! ([`calls`](super::calls)). Where a call is required, or strict, a grammar makes it so: the
//! output has the distribution of plain decoding with the same mask.

use std::collections::HashSet;

use polydraft_text::CallForm;
use serde::Deserialize;
use serde_json::{Value, json};

use super::calls::Calls;
use super::error::Problem;
use super::params::within;
use super::read::read;
use crate::App;
use crate::grammar::{CallGrammar, Form};
use crate::worker::Failure;

/// Tools at most, and the bytes of their descriptions.
const MOST: usize = 128;
const MOST_BYTES: usize = 64 << 10;

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

/// What is to be done with the tools.
enum Choice {
    Auto,
    Required,
    /// Of this one.
    Named(String),
}

/// Tools that are in the prompt.
pub struct Tools {
    form: CallForm,
    /// As templates read them.
    pub listed: Vec<Value>,
    names: Vec<String>,
    /// The form of the output, if it has one.
    pub grammar: Option<Form>,
}

impl Tools {
    /// Parses the answer.
    pub fn calls(&self) -> Calls {
        Calls::new(self.form, self.names.clone())
    }
}

/// The three parameters; none where no tool may be called. An answer that calls none has the form
/// `otherwise`, if there is one.
///
/// # Errors
/// Tools that are none, are too many, or cannot be had with this model; a choice of what there is
/// not; a form other than JSON.
pub fn tools(
    app: &App,
    tools: Option<Vec<Value>>,
    choice: Option<Value>,
    parallel: Option<bool>,
    otherwise: Option<&Form>,
) -> Result<Option<Tools>, Problem> {
    let listed = tools.unwrap_or_default();
    let choice = chosen(choice)?;
    if listed.is_empty() {
        return match choice {
            None | Some(Choice::Auto) => Ok(None),
            Some(_) => {
                Err(Problem::invalid("tool_choice has no meaning without tools").of("tool_choice"))
            }
        };
    }
    within("tools", listed.len(), 1, MOST)?;
    within("tools", listed.iter().map(|tool| tool.to_string().len()).sum(), 0, MOST_BYTES)?;
    let mut functions = Vec::new();
    let mut names = HashSet::new();
    for (number, tool) in listed.iter().enumerate() {
        let param = |field: &str| format!("tools[{number}]{field}");
        let Tool { kind, function } = read(tool.clone()).map_err(|problem| {
            let inner = problem.error.param.clone().map(|inner| format!(".{inner}"));
            problem.of(&param(&inner.unwrap_or_default()))
        })?;
        if kind != "function" {
            let problem = format!("expected tools of type function, got one of type {kind:?}");
            return Err(Problem::invalid(problem)
                .of(&param(".type"))
                .code("unsupported_parameter"));
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if !(1..=64).contains(&function.name.len()) || !function.name.chars().all(plain) {
            let problem =
                format!("expected 1 to 64 of a-z, A-Z, 0-9, _ and -, got {:?}", function.name);
            return Err(Problem::invalid(problem).of(&param(".function.name")));
        }
        if !names.insert(function.name.clone()) {
            let problem =
                format!("expected tools of different names, got {:?} twice", function.name);
            return Err(Problem::invalid(problem).of(&param(".function.name")));
        }
        if function.parameters.as_ref().is_some_and(|schema| !schema.is_object()) {
            let problem = Problem::invalid("expected a schema that is an object");
            return Err(problem.of(&param(".function.parameters")));
        }
        functions.push(function);
    }
    if let Some(Choice::Named(name)) = &choice
        && !names.contains(name)
    {
        let problem = format!("tool_choice: there is no tool {name:?}");
        return Err(Problem::invalid(problem).of("tool_choice"));
    }
    // No tool may be called: none is in the prompt.
    let Some(choice) = choice else { return Ok(None) };
    let form = form(app).map_err(|problem| problem.of("tools"))?;
    let grammar = grammar(form, &functions, &choice, parallel.unwrap_or(true), otherwise)?;
    let names = functions.into_iter().map(|function| function.name).collect();
    Ok(Some(Tools { form, listed, names, grammar }))
}

/// How the model that is served writes calls.
///
/// # Errors
/// A model whose template has no tools, or calls of another form.
pub fn form(app: &App) -> Result<CallForm, Problem> {
    let form = app.language.chat.as_ref().and_then(polydraft_text::ChatTemplate::calls);
    form.ok_or_else(|| {
        let problem = "tools are not supported with this model: its chat template has none, or \
            writes calls in a form that \
                       is not known here";
        Problem::invalid(problem).code("unsupported_parameter")
    })
}

/// The choice; none where nothing may be called.
fn chosen(choice: Option<Value>) -> Result<Option<Choice>, Problem> {
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
                Err(problem.of("tool_choice").code("unsupported_parameter"))
            }
        },
    }
}

/// The form that is promised of the output; none where none is.
fn grammar(
    form: CallForm,
    functions: &[Function],
    choice: &Choice,
    parallel: bool,
    otherwise: Option<&Form>,
) -> Result<Option<Form>, Problem> {
    let strict = |function: &Function| function.strict == Some(true);
    let free = matches!(choice, Choice::Auto);
    let otherwise = otherwise.filter(|_| free);
    if free && parallel && otherwise.is_none() && !functions.iter().any(strict) {
        return Ok(None);
    }
    // One tool by its name is one call, as everywhere.
    let several = parallel && !matches!(choice, Choice::Named(_));
    let may =
        |function: &&Function| !matches!(choice, Choice::Named(name) if *name != function.name);
    let any = free;
    let tools = functions.iter().filter(may).map(|function| {
        let schema = match &function.parameters {
            // No parameters are an empty list.
            None => json!({ "type": "object", "properties": {}, "additionalProperties": false }),
            Some(_) if any && !strict(function) => json!({ "type": "object" }),
            Some(schema) => schema.clone(),
        };
        (function.name.as_str(), schema)
    });
    let wrong = |problem| Problem::from(Failure::Form { param: "tools", problem });
    // Where it is no call it is no text either, but of the other form.
    let free = free && otherwise.is_none();
    let calls = CallGrammar { form, tools: tools.collect(), several, free };
    match otherwise {
        None => Form::calls(&calls, "tools").map(Some).map_err(wrong),
        Some(otherwise) => otherwise.or_calls(&calls).map(Some).map_err(wrong),
    }
}
