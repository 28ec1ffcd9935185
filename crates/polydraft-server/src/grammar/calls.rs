//! Tool calls as a grammar, in the format in which the model writes them.

use polydraft_text::{ArgumentForm, CallForm, Nested, Piece, ReasoningForm};
use serde_json::{Value, json};

use super::marks::{Marks, escape_regex};
use super::parameters::Parameters;
use super::schema::json_of;
use super::standard::standardise;

/// The calls that are allowed, and their form.
pub struct CallGrammar<'a> {
    /// Form in which the model writes calls.
    pub form: &'a CallForm,
    /// Marks of the answer; a text between calls has them, too.
    pub answer: &'a ReasoningForm,
    /// Special tokens of the model.
    pub marks: Marks<'a>,
    /// Tools by name, with the schemas of their arguments; `None` allows any arguments.
    pub tools: Vec<(&'a str, Option<Value>)>,
    /// Whether several calls are allowed.
    pub allow_several: bool,
    /// Whether text is allowed in place of calls, and between them. Calls must still be valid.
    pub allow_text: bool,
}

/// Names of the rules of the marks around an answer, which depend on the prompt.
pub(super) const ANSWER_OPEN: &str = "answer_open";
pub(super) const ANSWER_CLOSE: &str = "answer_close";

/// Space before a call.
const LEAD: &str = "LEAD: /\\s{1,8}/\n";

impl CallGrammar<'_> {
    /// Grammar in the library's dialect of Lark, with the rule `start`. JSON has the spaces that
    /// models were trained with: one after a comma or a colon.
    ///
    /// # Errors
    /// A schema with unsupported parts.
    pub(super) fn lark(&self) -> Result<String, String> {
        let Self { form, marks, tools, .. } = self;
        let (first, head) = match form.head.split_first() {
            Some((Piece::Text(first), rest)) => (first.as_str(), rest),
            _ => ("", &form.head[..]),
        };
        let several = self.allow_several && form.allows_several;
        let calls = match several {
            true => format!("call ({} call)*", marks.terms(&format!("{}{first}", form.separator))),
            false => "call".to_owned(),
        };
        let calls = format!("{calls} {}", marks.terms(&form.closing));
        let opening = format!("{}{first}", form.opening);
        let section = format!("{} {calls}", marks.terms(&opening));
        let mut lark = match self.allow_text {
            true => self.with_text(&section, &calls, &opening),
            // The first word of a call without a mark may follow a space.
            false if form.trigger().is_empty() && !opening.is_empty() => {
                format!("start: LEAD? {section}\n{LEAD}")
            }
            false => format!("start: {section}\n"),
        };
        let names: Vec<String> = (0..tools.len()).map(|number| format!("call_{number}")).collect();
        lark += &format!("call: {}\n", names.join(" | "));
        for (number, (name, schema)) in tools.iter().enumerate() {
            let head = self.terms(head, name);
            let arguments = format!("arguments_{number}");
            if schema.is_none()
                && let Some((mark, rest)) = self.mark_after_parameters()
            {
                lark += &format!("call_{number}: {head} {arguments} {}\n", self.terms(rest, name));
                lark += &marks.up_to(&arguments, mark, "");
                continue;
            }
            let tail = self.terms(&form.tail, name);
            let named = |problem| format!("{name}: {problem}");
            let schema = schema.clone().unwrap_or_else(|| json!({ "type": "object" }));
            let schema = standardise(schema).map_err(named)?;
            lark += &format!("call_{number}: {head} {arguments} {tail}\n");
            let rules = match &form.arguments {
                ArgumentForm::Json => {
                    json_of(&schema).map(|schema| format!("{arguments}: %json {schema}\n"))
                }
                ArgumentForm::Parameters(form) => {
                    let prefix = format!("p{number}");
                    Parameters { form, marks: *marks, root: &schema, prefix }.rules(&arguments)
                }
            };
            lark += &rules.map_err(named)?;
        }
        Ok(lark)
    }

    /// Mark after arguments that are not JSON, and what follows it, where it cannot stand inside
    /// them.
    fn mark_after_parameters(&self) -> Option<(&str, &[Piece])> {
        let ArgumentForm::Parameters(parameters) = &self.form.arguments else { return None };
        let has_marks = matches!(parameters.nested, Nested::Json | Nested::Tags);
        match self.form.tail.split_first() {
            Some((Piece::Text(mark), rest)) if has_marks && !mark.trim().is_empty() => {
                Some((mark.trim_start(), rest))
            }
            _ => None,
        }
    }

    /// Start rules where text is allowed.
    fn with_text(&self, section: &str, calls: &str, opening: &str) -> String {
        let Self { form, marks, answer, .. } = self;
        let trigger = form.trigger();
        // A text that begins like reasoning is reasoning.
        let thought = if answer.has_reasoning() { answer.opening.as_str() } else { "" };
        if !answer.answer_opening.is_empty() {
            // A text has marks of its own.
            return match answer.answer_closing.is_empty() {
                true => format!(
                    "start: {section} | {ANSWER_OPEN} TEXT?\nTEXT: {}\n",
                    marks.without(trigger, thought)
                ),
                false => format!(
                    "start: {section} | {ANSWER_OPEN} (closed {section}? | TEXT?)\n\
                     {}TEXT: {closed}\n",
                    marks.up_to("closed", &answer.answer_closing, ""),
                    closed = marks.without(&answer.answer_closing, "")
                ),
            };
        }
        if trigger.is_empty() {
            // A text that begins like a call is one.
            let start = match opening.trim() {
                "" => {
                    let names = self.tools.iter().map(|(name, _)| escape_regex(name));
                    format!("({})\\s", names.collect::<Vec<_>>().join("|"))
                }
                opening => escape_regex(&opening.chars().take(1).collect::<String>()),
            };
            let text = format!("TEXT: /(?s:.+)/ & ~/(?s:\\s*{start}.*)/");
            return format!("start: LEAD? {section} | TEXT?\n{LEAD}{text}\n");
        }
        let rest = marks.terms(&opening.trim_start()[trigger.len()..]);
        let section = format!("before {rest} {calls}");
        let start = match self.allow_several {
            true => format!("({section})* TEXT?"),
            false => format!("{section} | TEXT?"),
        };
        format!(
            "start: {start}\n{}TEXT: {}\n",
            marks.up_to("before", trigger, thought),
            marks.without(trigger, thought)
        )
    }

    /// Terms of a call's pieces.
    fn terms(&self, pieces: &[Piece], name: &str) -> String {
        let mut terms = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Text(text) => terms.push(self.marks.terms(text)),
                Piece::Name => terms.push(self.marks.terms(name)),
                Piece::Id => terms.push("/[a-zA-Z0-9]{9}/".to_owned()),
                Piece::Number(_) => terms.push("/[0-9]{1,3}/".to_owned()),
                Piece::Key => {}
            }
        }
        if terms.is_empty() { "\"\"".to_owned() } else { terms.join(" ") }
    }
}
