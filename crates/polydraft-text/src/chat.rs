//! Chat templates: from messages to the text that a model was trained to answer.
//!
//! Templates are Jinja, as transformers runs it: blocks trimmed, loop controls, methods of Python's
//! strings, lists and dictionaries, `raise_exception`, `strftime_now`, and a `tojson` that writes
//! as Python does.

mod json;
mod limits;
mod measured;
mod reasoning;
mod rendering;
mod scan;
mod tags;
mod tokens;
mod tools;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value, merge_maps};
use minijinja::{Environment, ErrorKind, context};
use polydraft_files::Kind;
use serde::Serialize;
use serde_json::Map;

use crate::contained::contained;
use crate::files::read_optional_text;
use crate::special::SETTINGS;
use crate::{Error, Result, SpecialTokens};

pub use reasoning::ReasoningForm;
pub use rendering::{Ending, Rendering};
pub use tools::CallForm;

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant` or `tool`, or whom else the template knows.
    pub role: Cow<'static, str>,
    /// What is said.
    pub content: String,
    /// The calls of tools in an answer, as templates read them:
    /// `{"id": .., "type": "function", "function": {"name": .., "arguments": {..}}}`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<serde_json::Value>,
    /// Which call it is that a tool answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// The name of a tool that answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What the model thought before an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
}

impl Message {
    /// A message of the user's.
    pub fn user(content: impl Into<String>) -> Self {
        Self::of("user", content)
    }

    /// What the model is told first.
    pub fn system(content: impl Into<String>) -> Self {
        Self::of("system", content)
    }

    /// An answer of the model's.
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::of("assistant", content)
    }

    /// What a tool answered to the call of this id; its name, where that is known.
    pub fn tool(content: impl Into<String>, id: impl Into<String>, name: Option<String>) -> Self {
        Self { tool_call_id: Some(id.into()), name, ..Self::of("tool", content) }
    }

    /// A message of any role. What is made of one that the model was not trained with is the
    /// template's affair: it may refuse it, or leave the message out.
    pub fn of(role: impl Into<Cow<'static, str>>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: content.into(),
            tool_calls: Vec::new(),
            tool_call_id: None,
            name: None,
            reasoning_content: None,
        }
    }

    /// Bytes of what it says.
    fn size(&self) -> usize {
        let calls = self.tool_calls.iter().map(|call| call.to_string().len());
        let rest = self.name.iter().chain(&self.reasoning_content).map(String::len);
        self.role.len() + self.content.len() + calls.sum::<usize>() + rest.sum::<usize>()
    }
}

/// The chat template of a model.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    tokens: SpecialTokens,
    path: PathBuf,
    calls: Option<CallForm>,
    reasoning: Option<ReasoningForm>,
    /// Its variables where a conversation says nothing of them.
    variables: Map<String, serde_json::Value>,
    /// Whether it gets the variables that llama.cpp's server gives it.
    extras: bool,
    /// The one for conversations with tools, where that is another.
    with_tools: Option<Box<Self>>,
}

const NAME: &str = "chat template";
/// What the template for conversations with tools is called, where a model has several.
pub(crate) const WITH_TOOLS: &str = "tool_use";

impl ChatTemplate {
    /// Reads `chat_template.jinja` or, where there is none, the template of
    /// `tokenizer_config.json`; `None` where that has none either. Beside the file,
    /// `additional_chat_templates/tool_use.jinja` is the one for conversations with tools.
    ///
    /// # Errors
    /// Files that cannot be read; a template that is none.
    pub fn read(directory: &Path) -> Result<Option<Self>> {
        Self::read_with(directory, SpecialTokens::read(directory)?)
    }

    /// The same where the special tokens are read already.
    pub(crate) fn read_with(directory: &Path, tokens: SpecialTokens) -> Result<Option<Self>> {
        let path = directory.join("chat_template.jinja");
        if let Some(text) = read_optional_text(&path, Kind::SETTINGS)? {
            let folder = directory.join("additional_chat_templates");
            let other = folder.join(WITH_TOOLS).with_extension("jinja");
            let with_tools = read_optional_text(&other, Kind::SETTINGS)?
                .map(|text| Self::from_source(&text, tokens.clone(), other))
                .transpose()?;
            return Ok(Some(Self::from_source(&text, tokens, path)?.with_tools(with_tools)));
        }
        let setting = tokens.settings.get("chat_template").cloned().unwrap_or_default();
        let of = |text: String| Self::from_source(&text, tokens.clone(), directory.join(SETTINGS));
        let Some(template) = listed(&setting, "default").map(of).transpose()? else {
            return Ok(None);
        };
        let with_tools = listed(&setting, WITH_TOOLS).filter(|_| setting.is_array());
        Ok(Some(template.with_tools(with_tools.map(of).transpose()?)))
    }

    /// The same with another for conversations with tools, if there is one.
    pub(crate) fn with_tools(self, template: Option<Self>) -> Self {
        Self { with_tools: template.map(Box::new), ..self }
    }

    /// The same with values of variables for all conversations that do not say them otherwise, such
    /// as `{"enable_thinking": false}`.
    pub fn with_variables(mut self, variables: &Map<String, serde_json::Value>) -> Self {
        self.with_tools = self.with_tools.map(|other| Box::new(other.with_variables(variables)));
        self.variables.extend(variables.clone());
        self
    }

    /// The same with variables that llama.cpp's server gives templates, and transformers does not,
    /// where a conversation does not say them otherwise: today's date as `date_string` (26 Jul
    /// 2024) and `datetime` (Jul 26 2024), and the tools as JSON, `functions`. Templates that ask
    /// `strftime_now` need no date.
    pub fn with_extras(mut self) -> Self {
        self.with_tools = self.with_tools.map(|other| Box::new(other.with_extras()));
        self.extras = true;
        self
    }

    /// From the template's text and the special tokens that it may name; `path` is the file that it
    /// is from, for messages.
    ///
    /// ```
    /// # fn main() -> polydraft_text::Result<()> {
    /// use polydraft_text::{ChatTemplate, Message, SpecialTokens};
    ///
    /// let tokens = SpecialTokens::from_roles([("bos_token", "<s>")]);
    /// let text = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}\n\
    ///             {% endfor %}[assistant]";
    /// let template = ChatTemplate::from_source(text, tokens, "model.gguf")?;
    /// assert_eq!(template.render(&[Message::user("Hello")])?, "<s>[user] Hello\n[assistant]");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// A text that is no template.
    pub fn from_source(
        text: &str,
        tokens: SpecialTokens,
        path: impl Into<PathBuf>,
    ) -> Result<Self> {
        let path = path.into();
        match contained(|| environment(text)) {
            Ok(Ok(environment)) => {
                let (calls, reasoning) = (CallForm::of(text), ReasoningForm::of(text));
                Ok(Self {
                    environment,
                    source: text.to_owned(),
                    tokens,
                    path,
                    calls,
                    reasoning,
                    variables: Map::new(),
                    extras: false,
                    with_tools: None,
                })
            }
            Ok(Err(e)) => Err(Error::Template { path, problem: describe(&e) }),
            Err(panic) => Err(Error::Template { path, problem: broke(&panic) }),
        }
    }

    /// The file that it comes from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The token that ends a text, as the tokenizer's settings have it: templates end each answer
    /// with it, also where the model's own list of end tokens lacks it.
    pub fn end_token(&self) -> Option<&str> {
        self.tokens.role("eos_token")
    }

    /// The text of a conversation, up to where the model answers. It has its special tokens: see
    /// [`Tokenizer::encode_plain`](crate::Tokenizer::encode_plain).
    ///
    /// # Errors
    /// What the template objects to, for example roles in an order that it does not know.
    pub fn render(&self, messages: &[Message]) -> Result<String> {
        self.render_with(messages, &Rendering::default())
    }

    /// How the model writes its calls of tools; none where the template knows no tools, or writes
    /// calls in a form that is not known here.
    pub fn calls(&self) -> Option<CallForm> {
        self.with_tools.as_ref().map_or(self.calls, |template| template.calls)
    }

    /// How the model marks its reasoning; none where the template has no such marks.
    pub fn reasoning(&self) -> Option<ReasoningForm> {
        self.reasoning
    }

    /// The template's own text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The same, in other ways than the default: see [`Rendering`].
    ///
    /// # Errors
    /// As for [`render`](Self::render); nothing to go on with, where the last message is to be
    /// continued.
    pub fn render_with(&self, messages: &[Message], how: &Rendering) -> Result<String> {
        let &Rendering { tools, variables, ending } = how;
        let about_tools = !tools.is_empty() || messages.iter().any(|m| m.role == "tool");
        if let Some(template) = self.with_tools.as_ref().filter(|_| about_tools) {
            return template.render_with(messages, how);
        }
        let tokens: BTreeMap<&str, &str> = self.tokens.roles().collect();
        let mut all = if self.extras { extras(tools) } else { Map::new() };
        all.extend(self.variables.clone());
        all.extend(
            variables.into_iter().flatten().map(|(name, value)| (name.clone(), value.clone())),
        );
        let context = context! {
            messages => Value::from(Serde(messages)),
            // As transformers has it: there, and none.
            tools => (!tools.is_empty()).then(|| Value::from(Serde(tools))),
            add_generation_prompt => ending == Ending::Answer,
            continue_final_message => ending == Ending::Continue,
            ..merge_maps([Value::from(Serde(tokens)), Value::from(Serde(&all))])
        };
        let of_tools: usize = tools.iter().map(|tool| tool.to_string().len()).sum();
        let of_variables: usize = all.values().map(|value| value.to_string().len()).sum();
        let given = of_variables + of_tools + messages.iter().map(Message::size).sum::<usize>();
        let rendered = contained(|| {
            limits::bounded(given, |out| {
                self.environment.get_template(NAME)?.render_captured_to(context, out).map(drop)
            })
        });
        let problem = match rendered {
            Ok(Ok(text)) if ending != Ending::Continue => return Ok(text),
            Ok(Ok(text)) => match rendering::continued(&text, messages) {
                Ok(length) => return Ok(text[..length].to_owned()),
                Err(problem) => problem.to_owned(),
            },
            Ok(Err(e)) => describe(&e),
            Err(panic) => broke(&panic),
        };
        Err(Error::Template { path: self.path.clone(), problem })
    }
}

/// Today's date and the tools, as some templates call them.
fn extras(tools: &[serde_json::Value]) -> Map<String, serde_json::Value> {
    let now = jiff::ZonedDateTime::now();
    let functions = match tools {
        [] => String::new(),
        tools => serde_json::Value::from(tools).to_string(),
    };
    let all = [
        ("date_string", now.strftime("%d %b %Y").to_string()),
        ("datetime", now.strftime("%b %d %Y").to_string()),
        ("functions", functions),
    ];
    all.map(|(name, value)| (name.to_owned(), value.into())).into_iter().collect()
}

/// One template, or of several the one of this name.
fn listed(value: &serde_json::Value, name: &str) -> Option<String> {
    if let Some(text) = value.as_str() {
        return Some(text.to_owned());
    }
    let named = value.as_array()?.iter().find(|t| t.get("name").is_some_and(|n| n == name));
    Some(named?.get("template")?.as_str()?.to_owned())
}

fn environment(text: &str) -> std::result::Result<Environment<'static>, minijinja::Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_fuel(Some(scan::check(text)?));
    limits::install(&mut environment);
    environment.add_function(
        "raise_exception",
        |message: String| -> std::result::Result<Value, _> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
        },
    );
    environment.add_function("strftime_now", |format: String| {
        let now = jiff::ZonedDateTime::now();
        jiff::fmt::strtime::format(&format, &now).map_err(|e| {
            minijinja::Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {e}"))
        })
    });
    environment.add_filter("tojson", |value: Value, options: Kwargs| {
        let style = json::Style::of(&options)?;
        options.assert_all_used()?;
        style
            .text(&value)
            .map(Value::from_safe_string)
            .map_err(|e| minijinja::Error::new(ErrorKind::BadSerialization, e.to_string()))
    });
    environment.add_template_owned(NAME, measured::measured(&without_generation_blocks(text)))?;
    Ok(environment)
}

/// Puts empty blocks in the place of `{% generation %}` and `{% endgeneration %}`, with which
/// training tools mark the model's words.
fn without_generation_blocks(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        let end = tag.find("%}").map_or(tag.len(), |end| end + 2);
        let (tag, after) = tag.split_at(end);
        out.push_str(before);
        let word =
            tag.trim_start_matches("{%").trim_end_matches("%}").trim_matches(['-', '+', ' ', '\n']);
        match word {
            // An empty block in its place does to the white space around it what the tag does.
            "generation" | "endgeneration" => {
                let trims = |end: &str| {
                    ["-", "+"].into_iter().find(|sign| end.contains(sign)).unwrap_or("")
                };
                out.push_str(&format!("{{%{} if true %}}", trims(&tag[..3])));
                out.push_str(&format!("{{% endif {}%}}", trims(&tag[tag.len() - 3..])));
            }
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out + rest
}

/// What is said of a template that made the library panic.
fn broke(panic: &str) -> String {
    format!("expected a sound template, got one that the library broke down on: {panic}")
}

/// The message, and where in the template.
fn describe(error: &minijinja::Error) -> String {
    let what = match error.kind() {
        ErrorKind::OutOfFuel => {
            "expected a template that does less: it ran out of operations".to_owned()
        }
        kind => error.detail().map_or_else(|| kind.to_string(), str::to_owned),
    };
    match error.line() {
        Some(line) => format!("{what} (line {line})"),
        None => what,
    }
}
