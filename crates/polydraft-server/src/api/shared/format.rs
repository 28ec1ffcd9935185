//! Requested form of the output: text, JSON, JSON of a schema, one of several strings, a regular
//! expression, or a grammar.

use std::sync::{Arc, PoisonError};

use polydraft::Token;
use serde::Deserialize;
use serde_json::{Value, json};

use super::error::Problem;
use super::params::Common;
use super::read::read;
use crate::LoadedModel;
use crate::grammar::{Form, Grammar, Grammars};
use crate::worker::Failure;

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Format {
    Text {},
    JsonObject {
        /// llama.cpp's field for a schema.
        schema: Option<Value>,
    },
    JsonSchema {
        json_schema: Schema,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(
    dead_code,
    reason = "name and description are for people, and every schema is enforced strictly"
)]
struct Schema {
    name: Option<String>,
    description: Option<String>,
    strict: Option<bool>,
    schema: Value,
}

/// Maximum bytes of a schema or other description of a form.
const MAX_BYTES: usize = 64 << 10;

/// Name of the parameter for structured outputs, its older names, and llama.cpp's.
const STRUCTURED_OUTPUTS: &str = "structured_outputs";
const ALIASES: [(&str, &str); 6] = [
    ("guided_json", "json"),
    ("guided_regex", "regex"),
    ("guided_choice", "choice"),
    ("guided_grammar", "grammar"),
    ("json_schema", "json"),
    ("grammar", "grammar"),
];

/// Form that a request asks for through any of its parameters; `None` if any output is allowed.
///
/// # Errors
/// Two forms; an invalid form; a schema that is too large or too expensive to enforce.
pub fn requested_form(common: &mut Common) -> Result<Option<Form>, Problem> {
    let mut structured = common.structured_outputs.take().map(|value| (STRUCTURED_OUTPUTS, value));
    for (name, member) in ALIASES {
        let is_set = |value: &Value| !value.is_null() && value != "";
        let Some(value) = common.rest.remove(name).filter(is_set) else {
            continue;
        };
        if structured.is_some() {
            return Err(Problem::invalid("the form of the output is given twice").with_param(name));
        }
        structured = Some((name, json!({ member: value })));
    }
    let format = form_from_format(common.response_format.as_ref(), "response_format")?;
    match structured {
        Some((name, _)) if format.is_some() => {
            Err(Problem::invalid("the form of the output is given twice").with_param(name))
        }
        Some((name, value)) => form_from_structured_outputs(value, name),
        None => Ok(format),
    }
}

/// Form that a parameter like `response_format` asks for.
///
/// # Errors
/// An invalid form; a schema that is too large or too expensive to enforce.
pub fn form_from_format(
    format: Option<&Value>,
    param: &'static str,
) -> Result<Option<Form>, Problem> {
    let Some(format) = format else { return Ok(None) };
    let schema = match read(format.clone()).map_err(|problem| problem.in_object(param))? {
        Format::Text {} => return Ok(None),
        Format::JsonObject { schema } => schema.unwrap_or_else(|| json!({ "type": "object" })),
        Format::JsonSchema { json_schema } => json_schema.schema,
    };
    json_form(schema, param).map(Some)
}

/// JSON of a schema.
///
/// # Errors
/// As for [`form_from_format`].
pub fn json_form(schema: Value, param: &'static str) -> Result<Form, Problem> {
    check_size(&schema.to_string(), param)?;
    Form::json(schema, param).map_err(|problem| Failure::Form { param, problem }.into())
}

/// Values of `structured_outputs`.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case", expecting = "one of json, json_object, regex, choice, grammar")]
enum Structured {
    /// A schema, or a string with one.
    Json(Value),
    JsonObject(bool),
    Regex(String),
    Choice(Vec<String>),
    Grammar(String),
}

fn form_from_structured_outputs(
    value: Value,
    param: &'static str,
) -> Result<Option<Form>, Problem> {
    let mut value = value;
    if let Some(members) = value.as_object_mut() {
        members.retain(|_, member| !member.is_null());
        if members.is_empty() {
            return Ok(None);
        }
    }
    let invalid = |problem: String| Problem::from(Failure::Form { param, problem });
    let form = match read(value).map_err(|problem| problem.in_object(param))? {
        Structured::Json(Value::String(text)) => {
            let schema = serde_json::from_str(&text).map_err(|error| invalid(error.to_string()))?;
            json_form(schema, param)?
        }
        Structured::Json(schema) => json_form(schema, param)?,
        Structured::JsonObject(true) => json_form(json!({ "type": "object" }), param)?,
        Structured::JsonObject(false) => return Ok(None),
        Structured::Regex(text) => {
            check_size(&text, param)?;
            Form::regex(&text, param)
        }
        Structured::Choice(choices) => {
            check_size(&choices.concat(), param)?;
            Form::choice(&choices, param).map_err(invalid)?
        }
        Structured::Grammar(text) => {
            check_size(&text, param)?;
            Form::grammar(text, param).map_err(invalid)?
        }
    };
    Ok(Some(form))
}

fn check_size(text: &str, param: &'static str) -> Result<(), Problem> {
    match text.len() {
        0..=MAX_BYTES => Ok(()),
        got => {
            let problem = format!("expected at most {MAX_BYTES} bytes, got {got}");
            Err(Failure::Form { param, problem }.into())
        }
    }
}

/// Builds the grammar of a form, for sequences with these end tokens. May take long.
///
/// # Errors
/// A schema that is invalid or unsupported; a model without support for grammars.
pub fn build_grammar(
    model: &LoadedModel,
    form: Form,
    end_tokens: &[Token],
) -> Result<Grammar, Problem> {
    let param = form.param;
    let built = grammar_builder(model, end_tokens).and_then(|grammars| grammars.build(form));
    built.map_err(|problem| Failure::Form { param, problem }.into())
}

/// Returns the grammar builder for these end tokens, created with the first grammar.
///
/// # Errors
/// A model without support for grammars.
fn grammar_builder(model: &LoadedModel, end_tokens: &[Token]) -> Result<Arc<Grammars>, String> {
    // A panic while locked leaves the map unchanged.
    let mut cached = model.grammars.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(grammars) = cached.get(end_tokens) {
        return Ok(grammars.clone());
    }
    let built = Grammars::new(&model.language.tokenizer, model.vocabulary, end_tokens);
    let built = Arc::new(
        built
            .map_err(|problem| format!("grammars are not supported with this model: {problem}"))?,
    );
    cached.insert(end_tokens.to_vec(), built.clone());
    Ok(built)
}
