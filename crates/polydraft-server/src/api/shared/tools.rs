//! `tools`, `tool_choice` and `parallel_tool_calls`.
//!
//! The chat template gets the descriptions of the tools; calls are parsed from the output, in the
//! format that is derived from the template. Required and strict calls are enforced by a grammar:
//! the output has the distribution of plain decoding with the same mask.

use std::collections::HashSet;
use std::sync::Arc;

use polydraft_text::{CallForm, OutputForm, Tool};
use serde::Deserialize;
use serde_json::{Value, json};

use super::error::Problem;
use super::fields::remove_unread_fields;
use super::params::check_range;
use super::read::read;
use crate::LoadedModel;
use crate::grammar::{CallGrammar, Form, Marks};
use crate::worker::Failure;

/// Maximum number of tools, and bytes of their descriptions: agents send a hundred kilobytes.
const MAX_TOOLS: usize = 1024;
const MAX_BYTES: usize = 1 << 20;
/// Maximum bytes of a name.
const MAX_NAME_BYTES: usize = 128;

#[derive(Debug, Deserialize)]
struct Listed {
    function: Function,
}

#[derive(Debug, Deserialize)]
struct Function {
    name: String,
    parameters: Option<Value>,
    strict: Option<bool>,
}

/// Choice of tools.
enum Choice {
    Auto,
    Required,
    /// A call of this tool.
    Named(String),
}

/// A choice, and the names of the tools that may be called if not all may be.
type Among = (Choice, Option<Vec<String>>);

/// Tools in the prompt.
pub struct Tools {
    /// Descriptions for the chat template.
    pub listed: Vec<Value>,
    /// Tools whose calls are recognised.
    pub called: Arc<Vec<Tool>>,
    /// Form of the output, if enforced.
    pub grammar: Option<Form>,
}

/// The three parameters.
#[derive(Default)]
pub struct ToolParams {
    /// `tools`
    pub tools: Option<Vec<Value>>,
    /// `tool_choice`
    pub choice: Option<Value>,
    /// `parallel_tool_calls`
    pub parallel: Option<bool>,
    /// Form that errors show.
    pub form: ToolForm,
}

/// Form of tools and choices on a route.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ToolForm {
    /// With the fields of a function in `function`.
    #[default]
    Nested,
    /// With these fields beside the type, as in `/v1/responses`.
    Flat,
}

impl ToolForm {
    /// A tool.
    fn tool(self) -> &'static str {
        match self {
            Self::Nested => {
                r#"{"type": "function", "function": {"name": .., "parameters": .., ..}}"#
            }
            Self::Flat => r#"{"type": "function", "name": .., "parameters": .., ..}"#,
        }
    }

    /// Path of a function's fields in a tool.
    fn function_path(self, tool: &str) -> String {
        match self {
            Self::Nested => format!("{tool}.function"),
            Self::Flat => tool.to_owned(),
        }
    }

    /// The choice of one tool.
    fn choice(self) -> &'static str {
        match self {
            Self::Nested => r#"{"type": "function", "function": {"name": ..}}"#,
            Self::Flat => r#"{"type": "function", "name": ..}"#,
        }
    }
}

/// Converts the three parameters; `None` if no tool may be called. An answer without calls has the
/// form `otherwise`, if given. Names what is left out in `ignored`: tools of other kinds, which
/// clients expect a provider to run, and parts that the model's chat template lacks.
///
/// # Errors
/// Tools that are invalid or too many; a model whose template has no tools at all; a choice of an
/// unknown tool, or one that cannot be enforced; a form other than JSON.
pub fn prepare_tools(
    model: &LoadedModel,
    ToolParams { tools, choice, parallel, form: shown }: ToolParams,
    otherwise: Option<&Form>,
    ignored: &mut Vec<String>,
) -> Result<Option<Tools>, Problem> {
    let mut listed = tools.unwrap_or_default();
    let choice = parse_choice(choice, shown)?;
    check_range("tools", listed.len(), 0, MAX_TOOLS)?;
    check_range("tools", listed.iter().map(|tool| tool.to_string().len()).sum(), 0, MAX_BYTES)?;
    let mut functions = read_tools(&mut listed, shown, model.options.strict, ignored)?;
    if listed.is_empty() {
        return match choice {
            None | Some((Choice::Auto, _)) => Ok(None),
            Some(_) => Err(Problem::invalid("tool_choice needs tools").with_param("tool_choice")),
        };
    }
    let (choice, allowed) =
        choice.map_or((None, None), |(choice, allowed)| (Some(choice), allowed));
    let named = match &choice {
        Some(Choice::Named(name)) => std::slice::from_ref(name),
        _ => allowed.as_deref().unwrap_or_default(),
    };
    let is_known = |name: &&String| functions.iter().any(|function| function.name == **name);
    if let Some(name) = named.iter().find(|name| !is_known(name)) {
        let problem = format!("tool_choice: unknown tool {name:?}");
        return Err(Problem::invalid(problem).with_param("tool_choice"));
    }
    if let Some(allowed) = &allowed {
        functions.retain(|function| allowed.contains(&function.name));
    }
    // No tool may be called, so the prompt has none.
    let Some(choice) = choice else { return Ok(None) };
    let output = model.output_form();
    let Some(form) = &output.calls else {
        return without_form(&output, listed, &functions, &choice, ignored).map(Some);
    };
    if !output.lists_tools {
        ignored.push("tools (the chat template does not describe them to the model)".to_owned());
    }
    let parallel = parallel.unwrap_or(true);
    let settings = CallSettings { choice: &choice, parallel, is_restricted: allowed.is_some() };
    let grammar = required_form(model, &output, form, &functions, &settings, otherwise)?;
    let called = functions.into_iter().map(|function| Tool {
        name: function.name,
        schema: function.parameters.unwrap_or(Value::Bool(true)),
    });
    Ok(Some(Tools { listed, called: Arc::new(called.collect()), grammar }))
}

/// Reads the descriptions, and removes those of other kinds than functions.
///
/// # Errors
/// Invalid descriptions; with `strict` also those of other kinds.
fn read_tools(
    listed: &mut Vec<Value>,
    shown: ToolForm,
    strict: bool,
    ignored: &mut Vec<String>,
) -> Result<Vec<Function>, Problem> {
    let (mut functions, mut kept) = (Vec::new(), Vec::new());
    let mut names = HashSet::new();
    for (number, mut tool) in listed.drain(..).enumerate() {
        let param = |field: &str| format!("tools[{number}]{field}");
        let kind = tool.get("type").and_then(Value::as_str).unwrap_or("function").to_owned();
        if kind != "function" {
            if strict {
                let problem = format!("expected tools of type function, got one of type {kind:?}");
                return Err(Problem::invalid(problem)
                    .with_param(&param(".type"))
                    .with_code("unsupported_parameter"));
            }
            ignored.push(format!("{} ({kind})", param("")));
            continue;
        }
        let has_name = tool.pointer("/function/name").is_some_and(Value::is_string);
        if !has_name {
            let problem = format!("expected {} with a string as the name", shown.tool());
            return Err(Problem::invalid(problem).with_param(&param("")));
        }
        let Listed { function } = read(tool.clone()).map_err(|problem| {
            let inner = problem.error.param.clone().map(|inner| format!(".{inner}"));
            problem.in_object(&param("")).with_param(&param(&inner.unwrap_or_default()))
        })?;
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "_-.:/".contains(c);
        let is_short = (1..=MAX_NAME_BYTES).contains(&function.name.len());
        if !is_short || !function.name.chars().all(is_allowed) {
            let problem = format!(
                "expected 1 to {MAX_NAME_BYTES} of a-z, A-Z, 0-9, _, -, ., : and /, got {:?}",
                function.name
            );
            return Err(Problem::invalid(problem).with_param(&param(".function.name")));
        }
        if !names.insert(function.name.clone()) {
            let problem =
                format!("expected tools of different names, got {:?} twice", function.name);
            return Err(Problem::invalid(problem).with_param(&param(".function.name")));
        }
        if function.parameters.as_ref().is_some_and(|schema| !schema.is_object()) {
            let problem = Problem::invalid("expected a schema that is an object");
            return Err(problem.with_param(&param(".function.parameters")));
        }
        let (path, inner) = (param(""), shown.function_path(&param("")));
        remove_unread_fields(&mut tool, (&path, &inner), strict, ignored)?;
        functions.push(function);
        kept.push(tool);
    }
    *listed = kept;
    Ok(functions)
}

/// Tools of a model whose calls have no known format: the template describes them, and calls stay
/// text.
///
/// # Errors
/// A template without tools; calls that must be enforced.
fn without_form(
    output: &OutputForm,
    listed: Vec<Value>,
    functions: &[Function],
    choice: &Choice,
    ignored: &mut Vec<String>,
) -> Result<Tools, Problem> {
    if !output.lists_tools {
        let problem = match &output.tools_problem {
            Some(problem) => {
                format!("the model's chat template fails with any tools: {problem}")
            }
            None => {
                let problem = "tools are not supported with this model: its chat template has \
                               none; start the server with --chat-template FILE, a template with \
                               tools";
                problem.to_owned()
            }
        };
        return Err(Problem::invalid(problem)
            .with_param("tools")
            .with_code("unsupported_parameter"));
    }
    let is_strict = functions.iter().any(|function| function.strict == Some(true));
    if !matches!(choice, Choice::Auto) || is_strict {
        let problem = "calls cannot be required with this model: it writes them in a format that \
                       its chat template does not show";
        let param = if is_strict { "tools" } else { "tool_choice" };
        return Err(Problem::invalid(problem).with_param(param).with_code("unsupported_parameter"));
    }
    ignored.push("tool calls (of unknown format: they stay text)".to_owned());
    Ok(Tools { listed, called: Arc::default(), grammar: None })
}

/// Parses the choice; `None` if no tool may be called.
fn parse_choice(choice: Option<Value>, shown: ToolForm) -> Result<Option<Among>, Problem> {
    if let Some(choice) = choice.as_ref().filter(|choice| choice["type"] == "allowed_tools") {
        return parse_allowed(choice).map(Some);
    }
    let name = choice.as_ref().and_then(|choice| {
        let named = choice.get("type")? == "function";
        let name = choice.get("function")?.get("name")?.as_str()?.to_owned();
        named.then_some(name)
    });
    match choice.as_ref().map(|choice| choice.as_str()) {
        None | Some(Some("auto")) => Ok(Some((Choice::Auto, None))),
        Some(Some("none")) => Ok(None),
        Some(Some("required")) => Ok(Some((Choice::Required, None))),
        _ => match name {
            Some(name) => Ok(Some((Choice::Named(name), None))),
            None => {
                let problem = Problem::invalid(format!(
                    r#"tool_choice: expected "none", "auto", "required", {} or {}"#,
                    shown.choice(),
                    r#"{"type": "allowed_tools", ..}"#
                ));
                Err(problem.with_param("tool_choice").with_code("unsupported_parameter"))
            }
        },
    }
}

/// Parses a choice among some tools: in conversations its fields are in `allowed_tools`, and a
/// tool's name in `function`.
fn parse_allowed(choice: &Value) -> Result<Among, Problem> {
    let invalid = |expected: &str| {
        let problem = format!("tool_choice: expected {expected} in allowed_tools");
        Problem::invalid(problem).with_param("tool_choice")
    };
    let fields = choice.get("allowed_tools").unwrap_or(choice);
    let mode = match fields["mode"].as_str() {
        Some("auto") => Choice::Auto,
        Some("required") => Choice::Required,
        _ => return Err(invalid(r#"a mode "auto" or "required""#)),
    };
    let tools = fields["tools"].as_array().filter(|tools| !tools.is_empty());
    let tools = tools.ok_or_else(|| invalid("a list of tools"))?;
    let name = |tool: &Value| {
        let function = tool.get("function").unwrap_or(tool);
        function["name"].as_str().map(str::to_owned)
    };
    let names: Option<Vec<String>> = tools.iter().map(name).collect();
    Ok((mode, Some(names.ok_or_else(|| invalid("tools with names"))?)))
}

/// How calls are enforced.
struct CallSettings<'a> {
    choice: &'a Choice,
    parallel: bool,
    /// Whether some of the described tools may not be called.
    is_restricted: bool,
}

/// A schema of arguments, which are an object whatever else it allows.
fn object_schema(schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let Some(members) = schema.as_object_mut()
        && members.get("type").is_none_or(Value::is_array)
    {
        members.insert("type".to_owned(), "object".into());
    }
    schema
}

/// Form of the output to enforce, if any.
fn required_form(
    model: &LoadedModel,
    output: &OutputForm,
    form: &CallForm,
    functions: &[Function],
    &CallSettings { choice, parallel, is_restricted }: &CallSettings<'_>,
    otherwise: Option<&Form>,
) -> Result<Option<Form>, Problem> {
    let strict = |function: &Function| function.strict == Some(true);
    let allow_text = matches!(choice, Choice::Auto);
    let otherwise = otherwise.filter(|_| allow_text);
    let is_free = parallel && !is_restricted && !functions.iter().any(strict);
    if allow_text && is_free && otherwise.is_none() {
        return Ok(None);
    }
    // A named tool is called once, as in other servers.
    let allow_several = parallel && !matches!(choice, Choice::Named(_));
    let is_callable =
        |function: &&Function| !matches!(choice, Choice::Named(name) if *name != function.name);
    let is_auto = allow_text;
    let tools = functions.iter().filter(is_callable).map(|function| {
        let schema = match &function.parameters {
            // Without parameters the arguments are empty.
            None => {
                Some(json!({ "type": "object", "properties": {}, "additionalProperties": false }))
            }
            Some(_) if is_auto && !strict(function) => None,
            Some(schema) => Some(object_schema(schema)),
        };
        (function.name.as_str(), schema)
    });
    let invalid = |problem| Problem::from(Failure::Form { param: "tools", problem });
    // An answer without calls must have the form `otherwise`, so it is not free text.
    let allow_text = allow_text && otherwise.is_none();
    let marks = Marks(Some(&model.language.tokenizer));
    let (answer, tools) = (&output.reasoning, tools.collect());
    let calls = CallGrammar { form, answer, marks, tools, allow_several, allow_text };
    match otherwise {
        None => Form::calls(&calls, "tools").map(Some).map_err(invalid),
        Some(otherwise) => otherwise.or_calls(&calls).map(Some).map_err(invalid),
    }
}
