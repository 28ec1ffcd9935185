//! Chat templates: from messages to the text that a model was trained to answer.
//!
//! Templates are Jinja, as transformers runs it: blocks trimmed, loop controls, methods of Python's strings, lists and
//! dictionaries, `raise_exception`, `strftime_now`, and a `tojson` that writes as Python does.

mod json;

use std::path::{Path, PathBuf};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value};
use minijinja::{Environment, ErrorKind, context};
use serde::Serialize;

use crate::special::SpecialTokens;
use crate::{Error, Result};

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Message {
    /// Who speaks: `system`, `user` or `assistant`.
    pub role: &'static str,
    /// What is said.
    pub content: String,
}

impl Message {
    /// A message of the user's.
    pub fn user(content: impl Into<String>) -> Self {
        Self { role: "user", content: content.into() }
    }

    /// What the model is told first.
    pub fn system(content: impl Into<String>) -> Self {
        Self { role: "system", content: content.into() }
    }

    /// An answer of the model's.
    pub fn assistant(content: impl Into<String>) -> Self {
        Self { role: "assistant", content: content.into() }
    }
}

/// The chat template of a model.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// The special tokens by role.
    tokens: Vec<(String, String)>,
    directory: PathBuf,
    source: &'static str,
}

const NAME: &str = "chat template";
/// Operations that a template may take: a hostile one shall not hang the program.
const FUEL: u64 = 10_000_000;

impl ChatTemplate {
    /// Reads `chat_template.jinja` or, where there is none, the template of `tokenizer_config.json`; `None` where that
    /// has none either.
    ///
    /// # Errors
    /// Files that cannot be read; a template that is none.
    pub fn read(directory: &Path) -> Result<Option<Self>> {
        let special = SpecialTokens::read(directory)?;
        let path = directory.join("chat_template.jinja");
        let (text, source) = match std::fs::read_to_string(&path) {
            Ok(text) => (text, "chat_template.jinja"),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                let Some(text) = special.settings.get("chat_template").and_then(listed) else {
                    return Ok(None);
                };
                (text, "tokenizer_config.json")
            }
            Err(source) => return Err(Error::Read { path, source }),
        };
        let failed = |e| Error::Template { directory: directory.to_owned(), problem: describe(&e) };
        let environment = environment(&text).map_err(failed)?;
        let tokens = special.roles().map(|(role, token)| (role.to_owned(), token.to_owned())).collect();
        Ok(Some(Self { environment, tokens, directory: directory.to_owned(), source }))
    }

    /// The file that it comes from.
    pub fn source(&self) -> &'static str {
        self.source
    }

    /// The token that ends a text, as the tokenizer's settings have it: templates end each answer with it, also where
    /// the model's own list of end tokens lacks it.
    pub fn end_token(&self) -> Option<&str> {
        self.tokens.iter().find(|(role, _)| role == "eos_token").map(|(_, token)| token.as_str())
    }

    /// The text of a conversation, up to where the model answers. It has its special tokens: see
    /// [`Text::encode_plain`](crate::Text::encode_plain).
    ///
    /// # Errors
    /// What the template objects to, for example roles in an order that it does not know.
    pub fn render(&self, messages: &[Message]) -> Result<String> {
        let tokens: std::collections::BTreeMap<_, _> =
            self.tokens.iter().map(|(role, token)| (role.as_str(), token.as_str())).collect();
        let context = context! {
            messages => Value::from(Serde(messages)),
            add_generation_prompt => true,
            ..Value::from(Serde(tokens))
        };
        let rendered = self.environment.get_template(NAME).and_then(|t| t.render(context));
        rendered.map_err(|e| Error::Template { directory: self.directory.clone(), problem: describe(&e) })
    }
}

/// One template, or several of which one is called "default".
fn listed(value: &serde_json::Value) -> Option<String> {
    if let Some(text) = value.as_str() {
        return Some(text.to_owned());
    }
    let named = |name: &str| value.as_array()?.iter().find(|t| t.get("name").is_some_and(|n| n == name));
    Some(named("default")?.get("template")?.as_str()?.to_owned())
}

fn environment(text: &str) -> std::result::Result<Environment<'static>, minijinja::Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_fuel(Some(FUEL));
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", |message: String| -> std::result::Result<Value, _> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_function("strftime_now", |format: String| {
        let now = jiff::Zoned::now();
        jiff::fmt::strtime::format(&format, &now)
            .map_err(|e| minijinja::Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {e}")))
    });
    environment.add_filter("tojson", |value: Value, options: Kwargs| {
        let indent: Option<usize> = options.get("indent")?;
        // Accepted and without meaning: nothing is escaped anyway.
        let _: Option<bool> = options.get("ensure_ascii")?;
        options.assert_all_used()?;
        json::text(&value, indent)
            .map(Value::from_safe_string)
            .map_err(|e| minijinja::Error::new(ErrorKind::BadSerialization, e.to_string()))
    });
    environment.add_template_owned(NAME, without_generation_blocks(text))?;
    Ok(environment)
}

/// Drops `{% generation %}` and `{% endgeneration %}`, with which training tools mark the model's words.
fn without_generation_blocks(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        let end = tag.find("%}").map_or(tag.len(), |end| end + 2);
        let (tag, after) = tag.split_at(end);
        out.push_str(before);
        let word = tag.trim_start_matches("{%").trim_end_matches("%}").trim_matches(['-', '+', ' ', '\n']);
        match word {
            // An empty comment keeps what the tag does to the white space around it.
            "generation" | "endgeneration" => {
                let trims = |end: &str| if end.contains('-') { "-" } else { "" };
                out.push_str(&format!("{{%{} if true %}}", trims(&tag[..3])));
                out.push_str(&format!("{{% endif {}%}}", trims(&tag[tag.len() - 3..])));
            }
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out + rest
}

/// The message, and where in the template.
fn describe(error: &minijinja::Error) -> String {
    let what = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    match error.line() {
        Some(line) => format!("{what} (line {line})"),
        None => what,
    }
}
