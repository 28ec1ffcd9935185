//! The form that texts must have: any, JSON, or JSON of a schema.

use std::sync::{Arc, PoisonError};

use polydraft::Token;
use serde::Deserialize;
use serde_json::{Value, json};

use super::error::Problem;
use super::params::read;
use crate::App;
use crate::grammar::{Grammar, Grammars};

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Format {
    Text {},
    JsonObject {},
    JsonSchema { json_schema: Schema },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "name and description are for people, and every schema is enforced strictly")]
struct Schema {
    name: Option<String>,
    description: Option<String>,
    strict: Option<bool>,
    schema: Value,
}

/// Bytes of a schema.
const MOST: usize = 64 << 10;

/// The grammar of the form that is asked for; none where any text will do.
///
/// # Errors
/// A form that is none; a schema that is too large, wrong, or cannot be enforced; a model for which none can be.
pub fn grammar(app: &App, format: Option<&Value>, end_tokens: &[Token]) -> Result<Option<Grammar>, Problem> {
    let Some(format) = format else { return Ok(None) };
    let wrong =
        |problem: String| Problem::invalid(format!("response_format: {problem}")).of("response_format");
    let schema = match read(format.clone()).map_err(|problem| problem.of("response_format"))? {
        Format::Text {} => return Ok(None),
        Format::JsonObject {} => json!({ "type": "object" }),
        Format::JsonSchema { json_schema } => json_schema.schema,
    };
    let size = schema.to_string().len();
    if size > MOST {
        return Err(wrong(format!("expected a schema of at most {MOST} bytes, got {size}")));
    }
    grammars(app, end_tokens).map_err(wrong)?.json(schema).map(Some).map_err(wrong)
}

/// What makes grammars for texts that these tokens end, made when the first is asked for.
///
/// # Errors
/// A model for which none can be.
pub fn grammars(app: &App, end_tokens: &[Token]) -> Result<Arc<Grammars>, String> {
    // Whoever panicked in between has put nothing into it.
    let mut all = app.grammars.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(grammars) = all.get(end_tokens) {
        return Ok(grammars.clone());
    }
    let made = Grammars::new(&app.language.text, app.vocabulary, end_tokens);
    let made = Arc::new(made.map_err(|problem| format!("not for this model: {problem}"))?);
    all.insert(end_tokens.to_vec(), made.clone());
    Ok(made)
}
