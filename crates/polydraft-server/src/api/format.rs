//! The form that texts must have: any, JSON, or JSON of a schema.

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
    let made = || Grammars::new(&app.language.text, app.vocabulary, end_tokens);
    let grammars = app.grammars.get_or_init(made).as_ref();
    let grammars = grammars.map_err(|problem| wrong(format!("not for this model: {problem}")))?;
    grammars.json(schema).map(Some).map_err(wrong)
}
