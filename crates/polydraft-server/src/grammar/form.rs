//! Form of the output, before its grammar is built: cheap to describe, and bounded, because
//! building grammars is expensive.

use llguidance::api::TopLevelGrammar;
use polydraft_text::{PromptEnd, ReasoningForm};
use serde_json::{Value, json};

use super::calls::{ANSWER_CLOSE, ANSWER_OPEN, CallGrammar};
use super::gbnf;
use super::literal::literal;
use super::marks::Marks;
use super::schema::rewrite;
use super::standard::standardise;

/// White space in JSON: a space, or a line break with indentation, or none.
const WHITESPACE: &str = r" |\n {0,24}";

/// Maximum of the least common multiple of all `multipleOf` of a request: the library has a state
/// for every remainder.
const MAX_MULTIPLE: u64 = 1000;
/// Maximum decimals of a `multipleOf`.
const MAX_DECIMALS: usize = 8;

/// Form of the allowed outputs. Building its grammar may take a while.
#[derive(Debug, Clone)]
pub struct Form {
    kind: Kind,
    /// Rules of what the model writes around it, if anything.
    around: Option<Around>,
    /// Whether outputs are JSON only, or calls with JSON only.
    json: bool,
    /// Parameter that requests the form.
    pub param: &'static str,
}

/// Text of the model around the form.
#[derive(Debug, Clone)]
struct Around {
    /// Start of the grammar, with the rules of the reasoning before the form.
    start: String,
    /// Terms of the marks around an answer.
    marks: [String; 2],
}

#[derive(Debug, Clone)]
enum Kind {
    Json(Value),
    /// In the library's dialect of Lark, starting with the start rule.
    Lark(String),
    /// Calls in that dialect, with the rules of the marks around an answer left open.
    Calls(String),
    Regex(String),
}

impl Form {
    fn new(kind: Kind, param: &'static str) -> Self {
        let json = matches!(kind, Kind::Json(_));
        Self { kind, around: None, json, param }
    }

    /// JSON of a schema.
    ///
    /// # Errors
    /// A schema that is too expensive to enforce, or has unsupported parts.
    pub fn json(schema: Value, param: &'static str) -> Result<Self, String> {
        check_multiples(1, &schema)?;
        let mut schema = rewrite(standardise(schema)?)?;
        if let Some(schema) = schema.as_object_mut() {
            // Overrides what the client set. A model that prefers white space could repeat it
            // without end.
            schema.insert("x-guidance".to_owned(), json!({ "whitespace_pattern": WHITESPACE }));
        }
        Ok(Self::new(Kind::Json(schema), param))
    }

    /// Tool calls, or text that contains them.
    ///
    /// # Errors
    /// As for [`json`](Self::json), of the schemas of the tools' arguments.
    pub fn calls(calls: &CallGrammar, param: &'static str) -> Result<Self, String> {
        let mut schemas = calls.tools.iter().filter_map(|(_, schema)| schema.as_ref());
        schemas.try_fold(1, check_multiples)?;
        let lark = calls.lark()?;
        Ok(Self { json: !calls.allow_text, ..Self::new(Kind::Calls(lark), param) })
    }

    /// This form, or tool calls.
    ///
    /// # Errors
    /// A form other than JSON; as for [`json`](Self::json), of the schemas of the tools' arguments.
    pub fn or_calls(&self, calls: &CallGrammar) -> Result<Self, String> {
        let (Kind::Json(schema), Kind::Calls(lark)) =
            (&self.kind, Self::calls(calls, self.param)?.kind)
        else {
            return Err("with tools the only other form of the output is JSON".to_owned());
        };
        let lark = lark.replacen("start: ", "calls: ", 1);
        let json = format!("{ANSWER_OPEN} json {ANSWER_CLOSE}");
        let lark = format!("start: calls | {json}\njson: %json {schema}\n{lark}");
        Ok(Self { json: true, ..Self::new(Kind::Calls(lark), self.param) })
    }

    /// Full match of a regular expression.
    pub fn regex(text: &str, param: &'static str) -> Self {
        Self::new(Kind::Regex(text.to_owned()), param)
    }

    /// One of several strings.
    ///
    /// # Errors
    /// An empty list, or an empty string in it.
    pub fn choice(choices: &[String], param: &'static str) -> Result<Self, String> {
        if choices.is_empty() || choices.iter().any(String::is_empty) {
            return Err("expected at least one string, and none empty".to_owned());
        }
        let choices: Vec<String> = choices.iter().map(|choice| literal(choice)).collect();
        Ok(Self::new(Kind::Lark(format!("start: {}\n", choices.join(" | "))), param))
    }

    /// A grammar in Lark's notation with rule `start`, or in GBNF with rule `root`.
    ///
    /// # Errors
    /// A GBNF grammar that is invalid or too large.
    pub fn grammar(text: String, param: &'static str) -> Result<Self, String> {
        let text = if gbnf::is_gbnf(&text) { gbnf::lark(&text)? } else { text };
        Ok(Self::new(Kind::Lark(text), param))
    }

    /// Applies this form to the answer: after any reasoning, and between the answer's marks. A
    /// grammar without a start rule is not changed.
    pub fn in_output(self, form: &ReasoningForm, end: PromptEnd, marks: Marks) -> Self {
        let terms = |text: &str| match text.trim().is_empty() {
            true => String::new(),
            false => marks.terms(text),
        };
        let mut start = String::new();
        let inside = marks.up_to("thoughts", &form.closing, "");
        let reasoning = match end {
            PromptEnd::Inside => "reasoning ",
            PromptEnd::Before if form.has_reasoning() && !form.opening.is_empty() => "reasoning? ",
            // Nothing marks its beginning.
            PromptEnd::Before if form.has_reasoning() => "reasoning ",
            _ => "",
        };
        if !reasoning.is_empty() {
            let opening = match end {
                PromptEnd::Inside => String::new(),
                // Its first word may follow a space, as in a line of text.
                _ => format!("SPACE? {}", terms(&form.opening)),
            };
            start = format!("reasoning: {opening} thoughts SPACE?\n{inside}SPACE: /\\s{{1,8}}/\n");
        }
        let opening = match end {
            PromptEnd::Answer => String::new(),
            _ => terms(&form.answer_opening),
        };
        let around = Around {
            start: format!("start: {reasoning}form\n{start}"),
            marks: [opening, terms(&form.answer_closing)],
        };
        Self { around: Some(around), ..self }
    }

    /// Whether outputs are JSON from their first token on.
    pub(super) fn is_json(&self) -> bool {
        self.json && self.around.as_ref().is_none_or(|around| around.start == PLAIN_START)
    }

    /// Converts to the library's type.
    pub(super) fn into_library_grammar(self) -> TopLevelGrammar {
        let Self { kind, around, .. } = self;
        let around = around.unwrap_or_else(|| Around {
            start: PLAIN_START.to_owned(),
            marks: [const { String::new() }; 2],
        });
        let [open, close] = around.marks;
        let is_plain = around.start == PLAIN_START && open.is_empty() && close.is_empty();
        let form = format!("form: {open} answer {close}\n");
        let rest = match kind {
            Kind::Json(schema) if is_plain => return TopLevelGrammar::from_json_schema(schema),
            Kind::Lark(text) if is_plain => return TopLevelGrammar::from_lark(text),
            Kind::Regex(text) if is_plain => return TopLevelGrammar::from_regex(&text),
            Kind::Json(schema) => format!("{form}answer: %json {schema}\n"),
            Kind::Regex(text) => {
                format!("{form}answer: /{}/\n", llguidance::regex_to_lark(&text, ""))
            }
            Kind::Lark(text) => match rename_start_rule(&text) {
                Some(text) => format!("{form}{text}"),
                None => return TopLevelGrammar::from_lark(text),
            },
            Kind::Calls(text) => {
                let text = rename_start_rule(&text).unwrap_or(text);
                let term = |terms: String| if terms.is_empty() { "\"\"".to_owned() } else { terms };
                let (open, close) = (term(open), term(close));
                format!("form: answer\n{ANSWER_OPEN}: {open}\n{ANSWER_CLOSE}: {close}\n{text}")
            }
        };
        TopLevelGrammar::from_lark(format!("{}{rest}", around.start))
    }
}

/// Start of a grammar without anything around the form.
const PLAIN_START: &str = "start: form\n";

/// Renames the rule `start` to `answer`.
fn rename_start_rule(text: &str) -> Option<String> {
    let at = match text.starts_with("start:") {
        true => 0,
        false => text.find("\nstart:")? + 1,
    };
    Some(format!("{}answer{}", &text[..at], &text[at + "start".len()..]))
}

/// Returns the least common multiple of `known` and every `multipleOf` in a schema; decimals are
/// multiplied by the power of ten that makes them integers. All are counted, wherever they are,
/// because only the library resolves which of them apply to one value through `allOf` and
/// references.
fn check_multiples(known: u64, schema: &Value) -> Result<u64, String> {
    let (declared, parts): (_, Vec<&Value>) = match schema {
        Value::Object(members) => {
            (members.get("multipleOf").and_then(Value::as_f64), members.values().collect())
        }
        Value::Array(parts) => (None, parts.iter().collect()),
        _ => return Ok(known),
    };
    let combined = declared.map_or(Some(known), |declared| common_multiple(known, declared));
    let known = combined.ok_or_else(|| {
        format!(
            "multipleOf: expected numbers of at most {MAX_DECIMALS} decimals whose least common \
             multiple, taken as integers, is at most {MAX_MULTIPLE}"
        )
    })?;
    parts.into_iter().try_fold(known, check_multiples)
}

/// Least common multiple as the library computes it; `None` if it is too large.
fn common_multiple(known: u64, number: f64) -> Option<u64> {
    let mut scaled = std::iter::successors(Some(number.abs()), |number| Some(number * 10.0));
    let integer = scaled.by_ref().take(1 + MAX_DECIMALS).find(|number| number.fract() == 0.0)?;
    // 0 has a single state.
    let integer = (integer <= MAX_MULTIPLE as f64).then(|| (integer as u64).max(1))?;
    let (mut divisor, mut rest) = (known, integer);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    Some(known / divisor * integer).filter(|multiple| *multiple <= MAX_MULTIPLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_schemas_whose_common_multiple_is_too_large() {
        let number = |multiple: f64| json!({ "type": "number", "multipleOf": multiple });
        let rejected = |schema: Value| {
            Form::json(schema, "response_format")
                .is_err_and(|problem| problem.contains("multipleOf"))
        };
        for valid in [0.0, 0.01, 0.25, 1e-8, 1.0, -5.0, 1000.0] {
            assert!(!rejected(number(valid)), "{valid}");
        }
        for invalid in [1001.0, 499_979.0, 10.01, 1e-9, 0.123_456, 1e300, -1e300] {
            assert!(rejected(number(invalid)), "{invalid}");
            assert!(
                rejected(json!({ "items": { "anyOf": [{ "type": "null" }, number(invalid)] } })),
                "{invalid}"
            );
        }
        assert!(rejected(json!({ "allOf": [number(997.0), number(991.0)] })));
        assert!(rejected(
            json!({ "$ref": "#/$defs/a", "multipleOf": 0.32, "$defs": { "a": number(997.0) } })
        ));
        assert!(!rejected(json!({ "properties": { "a": number(100.0), "b": number(0.25),
                "multipleOf": number(8.0) } })));
        // The multiples of all tools are counted.
        let form = crate::grammar::tests::hermes();
        let tools_rejected = |other: f64| {
            let tools = vec![("f", Some(number(997.0))), ("g", Some(number(other)))];
            let calls = CallGrammar {
                form: &form,
                answer: &ReasoningForm::default(),
                marks: Marks(None),
                tools,
                allow_several: true,
                allow_text: false,
            };
            Form::calls(&calls, "tools").is_err()
        };
        assert!(tools_rejected(991.0) && !tools_rejected(1.0));
    }
}
