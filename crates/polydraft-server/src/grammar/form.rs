//! The form that outputs shall have, before there is a grammar for it: cheap to describe, and
//! bounded, for grammars are not cheap.

use llguidance::api::TopLevelGrammar;
use serde_json::{Value, json};

use super::CallGrammar;

/// White space between two words of JSON: a blank, or a new line and what indents it; none will do
/// too.
const SPACE: &str = r" |\n {0,24}";

/// The least common multiple of all `multipleOf` of a request at most: the library has a state for
/// every remainder.
const MULTIPLE: u64 = 1000;
/// Decimals of one at most.
const DECIMALS: usize = 8;

/// The allowed outputs. Making a grammar of it may take a while.
#[derive(Debug, Clone)]
pub struct Form {
    pub(super) grammar: TopLevelGrammar,
    /// The parameter that asks for it.
    pub param: &'static str,
}

impl Form {
    /// JSON of a schema.
    ///
    /// # Errors
    /// A schema that would take too much to enforce.
    pub fn json(mut schema: Value, param: &'static str) -> Result<Self, String> {
        multiple(1, &schema)?;
        if let Some(schema) = schema.as_object_mut() {
            // Not the client's to say; and a model that likes white space would write nothing else.
            schema.insert("x-guidance".to_owned(), json!({ "whitespace_pattern": SPACE }));
        }
        Ok(Self { grammar: TopLevelGrammar::from_json_schema(schema), param })
    }

    /// Calls of tools, or text that contains them.
    ///
    /// # Errors
    /// As for [`json`](Self::json), of the schemas of the tools' arguments.
    pub fn calls(calls: &CallGrammar, param: &'static str) -> Result<Self, String> {
        calls.tools.iter().try_fold(1, |known, (_, schema)| multiple(known, schema))?;
        Ok(Self { grammar: TopLevelGrammar::from_lark(calls.lark()), param })
    }
}

/// The least common multiple of what is known and every `multipleOf` in a schema, decimals times
/// the power of ten that makes them whole. Which of them meet, by `allOf` or a reference, only the
/// library knows: all are counted, wherever they stand.
fn multiple(known: u64, schema: &Value) -> Result<u64, String> {
    let (own, parts): (_, Vec<&Value>) = match schema {
        Value::Object(members) => {
            (members.get("multipleOf").and_then(Value::as_f64), members.values().collect())
        }
        Value::Array(parts) => (None, parts.iter().collect()),
        _ => return Ok(known),
    };
    let known = own.map_or(Some(known), |own| common_multiple(known, own)).ok_or_else(|| {
        format!(
            "multipleOf: expected numbers of at most {DECIMALS} decimals which have, taken as \
             integers, no least common \
             multiple above {MULTIPLE}"
        )
    })?;
    parts.into_iter().try_fold(known, multiple)
}

/// As the library computes it; none where it is too large.
fn common_multiple(known: u64, number: f64) -> Option<u64> {
    let mut scaled = std::iter::successors(Some(number.abs()), |number| Some(number * 10.0));
    let whole = scaled.by_ref().take(1 + DECIMALS).find(|number| number.fract() == 0.0)?;
    // Of nothing but 0 there is one state.
    let whole = (whole <= MULTIPLE as f64).then(|| (whole as u64).max(1))?;
    let (mut divisor, mut rest) = (known, whole);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    Some(known / divisor * whole).filter(|multiple| *multiple <= MULTIPLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multiples_are_bounded_together() {
        let of = |multiple: f64| json!({ "type": "number", "multipleOf": multiple });
        let refused = |schema: Value| {
            Form::json(schema, "response_format")
                .is_err_and(|problem| problem.contains("multipleOf"))
        };
        for right in [0.0, 0.01, 0.25, 1e-8, 1.0, -5.0, 1000.0] {
            assert!(!refused(of(right)), "{right}");
        }
        for wrong in [1001.0, 499_979.0, 10.01, 1e-9, 0.123_456, 1e300, -1e300] {
            assert!(refused(of(wrong)), "{wrong}");
            assert!(
                refused(json!({ "items": { "anyOf": [{ "type": "null" }, of(wrong)] } })),
                "{wrong}"
            );
        }
        assert!(refused(json!({ "allOf": [of(997.0), of(991.0)] })));
        assert!(refused(
            json!({ "$ref": "#/$defs/a", "multipleOf": 0.32, "$defs": { "a": of(997.0) } })
        ));
        assert!(!refused(
            json!({ "properties": { "a": of(100.0), "b": of(0.25), "multipleOf": of(8.0) } })
        ));
        // Of all tools together.
        let of_tools = |other: f64| {
            let tools = vec![("f", of(997.0)), ("g", of(other))];
            let form = polydraft_text::CallForm::Hermes;
            Form::calls(&CallGrammar { form, tools, several: true, free: false }, "tools").is_err()
        };
        assert!(of_tools(991.0) && !of_tools(1.0));
    }
}
