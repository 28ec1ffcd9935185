//! The form that outputs shall have, before there is a grammar for it: cheap to describe, and
//! bounded, for grammars are not cheap.

use llguidance::api::TopLevelGrammar;
use serde_json::{Value, json};

use super::calls::CallGrammar;
use super::gbnf;
use super::literal::literal;
use super::schema::rewritten;

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
    kind: Kind,
    /// What ends the reasoning before the output, if there is to be some.
    after: Option<&'static str>,
    /// Whether outputs are JSON, and calls of it, and nothing else.
    json: bool,
    /// The parameter that asks for it.
    pub param: &'static str,
}

#[derive(Debug, Clone)]
enum Kind {
    Json(Value),
    /// In the library's form of Lark, beginning with its start rule.
    Lark(String),
    Regex(String),
}

impl Form {
    fn of(kind: Kind, param: &'static str) -> Self {
        let json = matches!(kind, Kind::Json(_));
        Self { kind, after: None, json, param }
    }

    /// JSON of a schema.
    ///
    /// # Errors
    /// A schema that would take too much to enforce, or has a part that cannot be.
    pub fn json(schema: Value, param: &'static str) -> Result<Self, String> {
        multiple(1, &schema)?;
        let mut schema = rewritten(schema)?;
        if let Some(schema) = schema.as_object_mut() {
            // Not the client's to say; and a model that likes white space would write nothing else.
            schema.insert("x-guidance".to_owned(), json!({ "whitespace_pattern": SPACE }));
        }
        Ok(Self::of(Kind::Json(schema), param))
    }

    /// Calls of tools, or text that contains them.
    ///
    /// # Errors
    /// As for [`json`](Self::json), of the schemas of the tools' arguments.
    pub fn calls(calls: &CallGrammar, param: &'static str) -> Result<Self, String> {
        calls.tools.iter().try_fold(1, |known, (_, schema)| multiple(known, schema))?;
        let tools = calls.tools.iter().map(enforceable).collect::<Result<_, _>>()?;
        let CallGrammar { form, several, free, .. } = *calls;
        let lark = CallGrammar { form, tools, several, free }.lark();
        Ok(Self { json: !free, ..Self::of(Kind::Lark(lark), param) })
    }

    /// The same, or calls of tools.
    ///
    /// # Errors
    /// A form other than JSON; as for [`json`](Self::json) of the schemas of the tools' arguments.
    pub fn or_calls(&self, calls: &CallGrammar) -> Result<Self, String> {
        let (Kind::Json(schema), Kind::Lark(lark)) =
            (&self.kind, Self::calls(calls, self.param)?.kind)
        else {
            return Err("beside tools the output may be JSON, and nothing else".to_owned());
        };
        let lark = lark.replacen("start: ", "calls: ", 1);
        let lark = format!("start: calls | json\njson: %json {schema}\n{lark}");
        Ok(Self { json: true, ..Self::of(Kind::Lark(lark), self.param) })
    }

    /// What a regular expression matches, whole.
    pub fn regex(text: &str, param: &'static str) -> Self {
        Self::of(Kind::Regex(text.to_owned()), param)
    }

    /// One of some strings.
    ///
    /// # Errors
    /// None of them, or one that is empty.
    pub fn choice(choices: &[String], param: &'static str) -> Result<Self, String> {
        if choices.is_empty() || choices.iter().any(String::is_empty) {
            return Err("expected one string or several, none of them empty".to_owned());
        }
        let choices: Vec<String> = choices.iter().map(|choice| literal(choice)).collect();
        Ok(Self::of(Kind::Lark(format!("start: {}\n", choices.join(" | "))), param))
    }

    /// What a grammar derives, in Lark's notation from `start`, or in GBNF from `root`.
    ///
    /// # Errors
    /// A grammar in GBNF that is none, or too large.
    pub fn grammar(text: String, param: &'static str) -> Result<Self, String> {
        let text = if gbnf::is_gbnf(&text) { gbnf::lark(&text)? } else { text };
        Ok(Self::of(Kind::Lark(text), param))
    }

    /// The same after any text that ends with this mark: a model's reasoning. A grammar whose
    /// start rule is not found stays as it is.
    pub fn after(self, mark: &'static str) -> Self {
        Self { after: Some(mark), ..self }
    }

    /// Whether outputs are JSON, from their first token on.
    pub(super) fn is_json(&self) -> bool {
        self.json && self.after.is_none()
    }

    /// For the library.
    pub(super) fn library_grammar(self) -> TopLevelGrammar {
        let Self { kind, after, .. } = self;
        let Some(mark) = after else {
            return match kind {
                Kind::Json(schema) => TopLevelGrammar::from_json_schema(schema),
                Kind::Lark(text) => TopLevelGrammar::from_lark(text),
                Kind::Regex(text) => TopLevelGrammar::from_regex(&text),
            };
        };
        let rest = match kind {
            Kind::Json(schema) => format!("answer: %json {schema}\n"),
            Kind::Regex(text) => format!("answer: /{}/\n", llguidance::regex_to_lark(&text, "")),
            Kind::Lark(text) => match renamed(&text) {
                Some(text) => text,
                None => return TopLevelGrammar::from_lark(text),
            },
        };
        let mark = escaped(mark);
        TopLevelGrammar::from_lark(format!(
            "start: reasoning answer\nreasoning[lazy]: /(?s:.*){mark}\\s*/\n{rest}"
        ))
    }
}

/// A tool whose schema is as the library knows it.
fn enforceable<'n>((name, schema): &(&'n str, Value)) -> Result<(&'n str, Value), String> {
    match rewritten(schema.clone()) {
        Ok(schema) => Ok((*name, schema)),
        Err(problem) => Err(format!("{name}: {problem}")),
    }
}

/// A grammar whose rule `start` is called `answer`.
fn renamed(text: &str) -> Option<String> {
    let at = match text.starts_with("start:") {
        true => 0,
        false => text.find("\nstart:")? + 1,
    };
    Some(format!("{}answer{}", &text[..at], &text[at + "start".len()..]))
}

/// A string in a regular expression between slashes.
fn escaped(text: &str) -> String {
    let plain = |sign: char| sign.is_alphanumeric() || sign == '_' || sign == ' ';
    text.chars().flat_map(|sign| (!plain(sign)).then_some('\\').into_iter().chain([sign])).collect()
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
