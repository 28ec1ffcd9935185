//! The form that outputs must have: any, JSON, JSON of a schema, one of some strings, a regular
//! expression, a grammar.

use std::sync::{Arc, PoisonError};

use polydraft::Token;
use serde::Deserialize;
use serde_json::{Value, json};

use super::error::Problem;
use super::params::Common;
use super::read::read;
use crate::App;
use crate::grammar::{Form, Grammar, Grammars};
use crate::worker::Failure;

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Format {
    Text {},
    JsonObject {
        /// llama.cpp's way to say which.
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

/// Bytes of a schema, or of what else describes a form.
const MOST: usize = 64 << 10;

/// Names of the parameter for the form of structured outputs, its older ones and llama.cpp's.
const STRUCTURED: &str = "structured_outputs";
const OTHERS: [(&str, &str); 6] = [
    ("guided_json", "json"),
    ("guided_regex", "regex"),
    ("guided_choice", "choice"),
    ("guided_grammar", "grammar"),
    ("json_schema", "json"),
    ("grammar", "grammar"),
];

/// The form that a request asks for in any of the ways there are; none where any output is allowed.
///
/// # Errors
/// Two of them; a form that is none; a schema that is too large, or would take too much to enforce.
pub fn form(common: &mut Common) -> Result<Option<Form>, Problem> {
    let mut structured = common.structured_outputs.take().map(|value| (STRUCTURED, value));
    for (name, member) in OTHERS {
        let says = |value: &Value| !value.is_null() && value != "";
        let Some(value) = common.rest.remove(name).filter(says) else {
            continue;
        };
        if structured.is_some() {
            return Err(Problem::invalid("the form of the output is given twice").of(name));
        }
        structured = Some((name, json!({ member: value })));
    }
    let format = in_format(common.response_format.as_ref(), "response_format")?;
    match structured {
        Some((name, _)) if format.is_some() => {
            Err(Problem::invalid("the form of the output is given twice").of(name))
        }
        Some((name, value)) => in_structured(value, name),
        None => Ok(format),
    }
}

/// The form that a parameter like `response_format` asks for.
///
/// # Errors
/// A form that is none; a schema that is too large, or would take too much to enforce.
pub fn in_format(format: Option<&Value>, param: &'static str) -> Result<Option<Form>, Problem> {
    let Some(format) = format else { return Ok(None) };
    let schema = match read(format.clone()).map_err(|problem| problem.of(param))? {
        Format::Text {} => return Ok(None),
        Format::JsonObject { schema } => schema.unwrap_or_else(|| json!({ "type": "object" })),
        Format::JsonSchema { json_schema } => json_schema.schema,
    };
    json_form(schema, param).map(Some)
}

/// JSON of a schema.
///
/// # Errors
/// As for [`in_format`].
pub fn json_form(schema: Value, param: &'static str) -> Result<Form, Problem> {
    sized(&schema.to_string(), param)?;
    Form::json(schema, param).map_err(|problem| Failure::Form { param, problem }.into())
}

/// What `structured_outputs` may be.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case", expecting = "one of json, json_object, regex, choice, grammar")]
enum Structured {
    /// A schema, or one as a string.
    Json(Value),
    JsonObject(bool),
    Regex(String),
    Choice(Vec<String>),
    Grammar(String),
}

fn in_structured(value: Value, param: &'static str) -> Result<Option<Form>, Problem> {
    let mut value = value;
    if let Some(members) = value.as_object_mut() {
        members.retain(|_, member| !member.is_null());
        if members.is_empty() {
            return Ok(None);
        }
    }
    let wrong = |problem: String| Problem::from(Failure::Form { param, problem });
    let form = match read(value).map_err(|problem| problem.of(param))? {
        Structured::Json(Value::String(text)) => {
            let schema = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
            json_form(schema, param)?
        }
        Structured::Json(schema) => json_form(schema, param)?,
        Structured::JsonObject(true) => json_form(json!({ "type": "object" }), param)?,
        Structured::JsonObject(false) => return Ok(None),
        Structured::Regex(text) => {
            sized(&text, param)?;
            Form::regex(&text, param)
        }
        Structured::Choice(choices) => {
            sized(&choices.concat(), param)?;
            Form::choice(&choices, param).map_err(wrong)?
        }
        Structured::Grammar(text) => {
            sized(&text, param)?;
            Form::grammar(text, param).map_err(wrong)?
        }
    };
    Ok(Some(form))
}

fn sized(text: &str, param: &'static str) -> Result<(), Problem> {
    match text.len() {
        0..=MOST => Ok(()),
        got => {
            let problem = format!("expected at most {MOST} bytes, got {got}");
            Err(Failure::Form { param, problem }.into())
        }
    }
}

/// The grammar of a form, for sequences that these tokens end. It takes time.
///
/// # Errors
/// A schema that is wrong, or cannot be enforced; a model for which none can be.
pub fn grammar(app: &App, form: Form, end_tokens: &[Token]) -> Result<Grammar, Problem> {
    let param = form.param;
    let made = grammars(app, end_tokens).and_then(|grammars| grammars.make(form));
    made.map_err(|problem| Failure::Form { param, problem }.into())
}

/// The builder of grammars for sequences that these tokens end, made with the first grammar.
///
/// # Errors
/// A model for which none can be.
fn grammars(app: &App, end_tokens: &[Token]) -> Result<Arc<Grammars>, String> {
    // A panic in between has put nothing into it.
    let mut all = app.grammars.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(grammars) = all.get(end_tokens) {
        return Ok(grammars.clone());
    }
    let made = Grammars::new(&app.language.tokenizer, app.vocabulary, end_tokens);
    let made = Arc::new(made.map_err(|problem| format!("not for this model: {problem}"))?);
    all.insert(end_tokens.to_vec(), made.clone());
    Ok(made)
}
