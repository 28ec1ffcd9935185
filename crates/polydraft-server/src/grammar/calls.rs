//! Tool calls as a grammar, in the format in which the model writes them.

use polydraft_text::{ArgumentForm, CallForm, Piece, ReasoningForm};
use serde_json::Value;

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
    /// Tools by name, with the schemas of their arguments.
    pub tools: Vec<(&'a str, Value)>,
    /// Whether several calls are allowed.
    pub allow_several: bool,
    /// Whether text is allowed in place of calls, and between them. Calls must still be valid.
    pub allow_text: bool,
}

/// Names of the rules of the marks around an answer, which depend on the prompt.
pub(super) const ANSWER_OPEN: &str = "answer_open";
pub(super) const ANSWER_CLOSE: &str = "answer_close";

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
            false => format!("start: {section}\n"),
        };
        let names: Vec<String> = (0..tools.len()).map(|number| format!("call_{number}")).collect();
        lark += &format!("call: {}\n", names.join(" | "));
        for (number, (name, schema)) in tools.iter().enumerate() {
            let (head, tail) = (self.terms(head, name), self.terms(&form.tail, name));
            let arguments = format!("arguments_{number}");
            let named = |problem| format!("{name}: {problem}");
            let schema = standardise((*schema).clone()).map_err(named)?;
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
            return format!("start: {section} | TEXT?\nTEXT: /(?s:.+)/ & ~/(?s:\\s*{start}.*)/\n");
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
