//! The form that outputs must have: any, JSON, or JSON of a schema.

use std::sync::{Arc, PoisonError};

use polydraft::Token;
use serde::Deserialize;
use serde_json::{Value, json};

use super::error::Problem;
use super::read::read;
use crate::App;
use crate::grammar::{Form, Grammar, Grammars};
use crate::worker::Failure;

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Format {
    Text {},
    JsonObject {},
    JsonSchema { json_schema: Schema },
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

/// Bytes of a schema.
const MOST: usize = 64 << 10;

/// The form that this parameter asks for; none where any output is allowed.
///
/// # Errors
/// A form that is none; a schema that is too large, or would take too much to enforce.
pub fn form(format: Option<&Value>, param: &'static str) -> Result<Option<Form>, Problem> {
    let Some(format) = format else { return Ok(None) };
    let schema = match read(format.clone()).map_err(|problem| problem.of(param))? {
        Format::Text {} => return Ok(None),
        Format::JsonObject {} => json!({ "type": "object" }),
        Format::JsonSchema { json_schema } => json_schema.schema,
    };
    let wrong = |problem: String| Problem::from(Failure::Form { param, problem });
    let size = schema.to_string().len();
    if size > MOST {
        return Err(wrong(format!("expected a schema of at most {MOST} bytes, got {size}")));
    }
    Form::json(schema, param).map(Some).map_err(wrong)
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
