//! Chat templates: from messages to the prompt format of a model.
//!
//! Templates are Jinja with the extensions of transformers: trimmed blocks, loop controls, methods
//! of Python's strings, lists and dictionaries, `raise_exception`, `strftime_now`, and a `tojson`
//! that formats like Python.

mod arguments;
mod derive;
mod filters;
mod formats;
mod functions;
mod ids;
mod insertions;
mod json;
mod limits;
mod measured;
mod methods;
mod operators;
mod python;
mod rendering;
mod scan;
mod source;
mod strings;
mod tags;
mod tokens;
mod value_tests;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value, merge_maps};
use minijinja::{Environment, ErrorKind, context};
use polydraft_files::FileKind;
use serde::Serialize;
use serde_json::Map;

use crate::contained::contained;
use crate::files::read_optional_text;
use crate::output::OutputForm;
use crate::special::SETTINGS;
use crate::{Error, Result, SpecialTokens};

pub use rendering::{Ending, Rendering};

/// Message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Message {
    /// Role of the author: `system`, `user`, `assistant`, `tool`, or another one that the template
    /// supports.
    pub role: Cow<'static, str>,
    /// Text of the message.
    pub content: String,
    /// Tool calls of an answer, in the form that templates read:
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<serde_json::Value>,
    /// Id of the call that a tool message answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Name of the tool that answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Reasoning of the model before the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
}

impl Message {
    /// Creates a message of the user.
    pub fn user(content: impl Into<String>) -> Self {
        Self::new("user", content)
    }

    /// Creates a system message.
    pub fn system(content: impl Into<String>) -> Self {
        Self::new("system", content)
    }

    /// Creates an answer of the model.
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::new("assistant", content)
    }

    /// Creates a tool's answer to the call of this id, with the tool's name where it is known.
    pub fn tool(content: impl Into<String>, id: impl Into<String>, name: Option<String>) -> Self {
        Self { tool_call_id: Some(id.into()), name, ..Self::new("tool", content) }
    }

    /// Creates a message of any role. The template decides about roles that the model was not
    /// trained with: it may fail, or ignore the message.
    pub fn new(role: impl Into<Cow<'static, str>>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: content.into(),
            tool_calls: Vec::new(),
            tool_call_id: None,
            name: None,
            reasoning_content: None,
        }
    }

    /// Returns the size of the message in bytes.
    fn size(&self) -> usize {
        let calls = self.tool_calls.iter().map(|call| call.to_string().len());
        let rest = self.name.iter().chain(&self.reasoning_content).map(String::len);
        self.role.len() + self.content.len() + calls.sum::<usize>() + rest.sum::<usize>()
    }
}

/// Chat template of a model.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    tokens: SpecialTokens,
    path: PathBuf,
    /// Formats of the output, derived when they are first needed.
    output: Arc<OnceLock<OutputForm>>,
    /// Default values of variables.
    variables: Map<String, serde_json::Value>,
    /// Whether variables of llama.cpp's server are provided.
    extras: bool,
    /// Separate template for conversations with tools.
    with_tools: Option<Box<Self>>,
}

const NAME: &str = "chat template";
/// Name of the template for conversations with tools, where a model has several.
pub(crate) const WITH_TOOLS: &str = "tool_use";

impl ChatTemplate {
    /// Reads `chat_template.jinja` or, if missing, the template of `tokenizer_config.json`; `None`
    /// if there is neither. Next to the former, `additional_chat_templates/tool_use.jinja` is the
    /// template for conversations with tools.
    ///
    /// # Errors
    /// Fails if a file cannot be read, or is not a valid template.
    pub fn read(directory: &Path) -> Result<Option<Self>> {
        Self::read_with(directory, SpecialTokens::read(directory)?)
    }

    /// Reads a template as [`read`](Self::read), with special tokens that are already read.
    pub(crate) fn read_with(directory: &Path, tokens: SpecialTokens) -> Result<Option<Self>> {
        let path = directory.join("chat_template.jinja");
        if let Some(text) = read_optional_text(&path, FileKind::CONFIG)? {
            let folder = directory.join("additional_chat_templates");
            let other = folder.join(WITH_TOOLS).with_extension("jinja");
            let with_tools = read_optional_text(&other, FileKind::CONFIG)?
                .map(|text| Self::from_source(&text, tokens.clone(), other))
                .transpose()?;
            return Ok(Some(Self::from_source(&text, tokens, path)?.with_tools(with_tools)));
        }
        let setting = tokens.settings.get("chat_template").cloned().unwrap_or_default();
        let parse =
            |text: String| Self::from_source(&text, tokens.clone(), directory.join(SETTINGS));
        let Some(template) = template_named(&setting, "default").map(parse).transpose()? else {
            return Ok(None);
        };
        let with_tools = template_named(&setting, WITH_TOOLS).filter(|_| setting.is_array());
        Ok(Some(template.with_tools(with_tools.map(parse).transpose()?)))
    }

    /// Sets the template for conversations with tools.
    pub(crate) fn with_tools(self, template: Option<Self>) -> Self {
        Self { with_tools: template.map(Box::new), ..self }
    }

    /// Sets default values of variables, such as `{"enable_thinking": false}`; a conversation may
    /// override them.
    pub fn with_variables(mut self, variables: &Map<String, serde_json::Value>) -> Self {
        self.with_tools = self.with_tools.map(|other| Box::new(other.with_variables(variables)));
        self.variables.extend(variables.clone());
        self.output = Arc::default();
        self
    }

    /// Provides variables of llama.cpp's server that transformers lacks, unless a conversation sets
    /// them: today's date as `date_string` (26 Jul 2024) and `datetime` (Jul 26 2024), and the
    /// tools as JSON, `functions`. Templates that call `strftime_now` need none of them.
    pub fn with_extras(mut self) -> Self {
        self.with_tools = self.with_tools.map(|other| Box::new(other.with_extras()));
        self.extras = true;
        self
    }

    /// Parses a template with the special tokens that it may name; error messages name `path` as
    /// its file.
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
    /// Fails if the text is not a valid template.
    pub fn from_source(
        text: &str,
        tokens: SpecialTokens,
        path: impl Into<PathBuf>,
    ) -> Result<Self> {
        let path = path.into();
        match contained(|| environment(text)) {
            Ok(Ok(environment)) => Ok(Self {
                environment,
                source: text.to_owned(),
                tokens,
                path,
                output: Arc::default(),
                variables: Map::new(),
                extras: false,
                with_tools: None,
            }),
            Ok(Err(e)) => Err(Error::Template { path, problem: describe(&e) }),
            Err(panic) => Err(Error::Template { path, problem: describe_panic(&panic) }),
        }
    }

    /// Returns the file of the template.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the end token of the tokenizer's settings: templates end each answer with it, even
    /// if it is missing in the model's own list of end tokens.
    pub fn end_token(&self) -> Option<&str> {
        self.tokens.role("eos_token")
    }

    /// Renders a conversation, up to the start of the model's answer. The text includes special
    /// tokens: see [`Tokenizer::encode_plain`](crate::Tokenizer::encode_plain).
    ///
    /// # Errors
    /// Fails if the template does, for example on an unsupported order of roles.
    pub fn render(&self, messages: &[Message]) -> Result<String> {
        self.render_with(messages, &Rendering::default())
    }

    /// Returns the formats of the model's output: of its reasoning, and of its tool calls. They
    /// are derived from the template with the first call, by rendering answers.
    pub fn output_form(&self) -> &OutputForm {
        let template = self.with_tools.as_deref().unwrap_or(self);
        template.output.get_or_init(|| derive::output_form(template))
    }

    /// Returns the source of the template.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Returns a message as the template sees it: it may know the reasoning under another name, and
    /// calls in another form.
    fn seen(&self, message: &Message) -> serde_json::Value {
        let mut seen = self.with_known_name(serde_json::to_value(message).unwrap_or_default());
        if self.source.contains("length != 9") {
            ids::shorten(&mut seen);
        }
        if message.tool_calls.is_empty() {
            return seen;
        }
        let form = self.output_form();
        if form.takes_null_content && message.content.is_empty() {
            seen["content"] = serde_json::Value::Null;
        }
        let calls = seen["tool_calls"].as_array_mut().filter(|_| form.takes_argument_text);
        for call in calls.into_iter().flatten() {
            let arguments = &mut call["function"]["arguments"];
            if !arguments.is_string() {
                *arguments = json::python(arguments).into();
            }
        }
        seen
    }

    /// Adds the reasoning of a message under the names that templates know: transformers adds
    /// `thinking`; some templates read `reasoning` only.
    fn with_known_name(&self, mut message: serde_json::Value) -> serde_json::Value {
        let names = ["reasoning_content", "thinking", "reasoning"];
        let Some(thought) = message.get(names[0]).cloned() else { return message };
        message[names[1]] = thought.clone();
        if !self.source.contains(names[0]) {
            message[names[2]] = thought;
        }
        message
    }

    /// Renders a conversation with options: see [`Rendering`].
    ///
    /// # Errors
    /// Fails as [`render`](Self::render), and if the last message cannot be continued as requested.
    pub fn render_with(&self, messages: &[Message], rendering: &Rendering) -> Result<String> {
        let has_tools = !rendering.tools.is_empty() || messages.iter().any(|m| m.role == "tool");
        if let Some(template) = self.with_tools.as_ref().filter(|_| has_tools) {
            return template.render_with(messages, rendering);
        }
        let seen: Vec<serde_json::Value> =
            messages.iter().map(|message| self.seen(message)).collect();
        let bytes = messages.iter().map(Message::size).sum();
        let text = self.render_values(&seen, bytes, rendering)?;
        if rendering.ending != Ending::Continue {
            return Ok(text);
        }
        match rendering::continued(&text, messages) {
            Ok(length) => Ok(text[..length].to_owned()),
            Err(problem) => {
                Err(Error::Template { path: self.path.clone(), problem: problem.to_owned() })
            }
        }
    }

    /// Renders a conversation as [`render_with`](Self::render_with). If the template rejects it,
    /// it is rendered in the first of these forms that the template takes: with an empty
    /// description and no parameters for tools that lack them; with messages in a row of one role
    /// joined to one, for templates as those of Mistral and Gemma, in which roles alternate; with
    /// arguments that are no object in one; with a user's text after the result of a tool joined
    /// to the result.
    ///
    /// # Errors
    /// Fails as [`render_with`](Self::render_with), for the conversation as it is.
    pub fn render_joined(&self, messages: &[Message], rendering: &Rendering) -> Result<String> {
        let problem = match self.render_with(messages, rendering) {
            Ok(text) => return Ok(text),
            Err(problem) => problem,
        };
        let tools = rendering::described(rendering.tools);
        let described = Rendering { tools: &tools, ..*rendering };
        if let Ok(text) = self.render_with(messages, &described) {
            return Ok(text);
        }
        let mut messages = messages.to_vec();
        for repair in rendering::REPAIRS {
            repair(&mut messages);
            if let Ok(text) = self.render_with(&messages, &described) {
                return Ok(text);
            }
        }
        Err(problem)
    }

    /// Renders messages of this many bytes as they are, complete.
    fn render_values(
        &self,
        messages: &[serde_json::Value],
        bytes: usize,
        rendering: &Rendering,
    ) -> Result<String> {
        let &Rendering { tools, variables, ending } = rendering;
        // A tokenizer without them has empty ones: templates add them to text.
        let mut tokens = BTreeMap::from([("bos_token", ""), ("eos_token", "")]);
        tokens.extend(self.tokens.roles());
        let mut all = if self.extras { extras(tools) } else { Map::new() };
        all.extend(self.variables.clone());
        all.extend(
            variables.into_iter().flatten().map(|(name, value)| (name.clone(), value.clone())),
        );
        let context = context! {
            messages => Value::from(Serde(messages)),
            // Without tools the variable is defined as `none`, as in transformers.
            tools => (!tools.is_empty()).then(|| Value::from(Serde(tools))),
            add_generation_prompt => ending == Ending::Answer,
            continue_final_message => ending == Ending::Continue,
            ..merge_maps([Value::from(Serde(tokens)), Value::from(Serde(&all))])
        };
        let tool_bytes: usize = tools.iter().map(|tool| tool.to_string().len()).sum();
        let variable_bytes: usize = all.values().map(|value| value.to_string().len()).sum();
        let rendered = contained(|| {
            limits::bounded(variable_bytes + tool_bytes + bytes, |out| {
                self.environment.get_template(NAME)?.render_captured_to(context, out).map(drop)
            })
        });
        let problem = match rendered {
            Ok(Ok(text)) => return Ok(text),
            Ok(Err(e)) => describe(&e),
            Err(panic) => describe_panic(&panic),
        };
        Err(Error::Template { path: self.path.clone(), problem })
    }
}

/// Returns today's date and the tools under llama.cpp's names.
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

/// Returns the template: the value itself if it is a string, else the list's entry of this name.
fn template_named(value: &serde_json::Value, name: &str) -> Option<String> {
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
    functions::install(&mut environment);
    filters::install(&mut environment);
    value_tests::install(&mut environment);
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
    environment.add_template_owned(NAME, measured::measured(&source::adapted(text)))?;
    Ok(environment)
}

/// Describes a panic of the template engine.
fn describe_panic(panic: &str) -> String {
    format!("expected a valid template, got one that made the template engine panic: {panic}")
}

/// Describes an error with its line in the template.
fn describe(error: &minijinja::Error) -> String {
    let message = match error.kind() {
        ErrorKind::OutOfFuel => "the template ran out of operations".to_owned(),
        kind => error.detail().map_or_else(|| kind.to_string(), str::to_owned),
    };
    match error.line() {
        Some(line) => format!("{message} (line {line})"),
        None => message,
    }
}
