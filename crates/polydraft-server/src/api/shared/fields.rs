//! Fields of messages, parts and tools that are not read.

use serde_json::{Map, Value};

use super::error::Problem;

/// Fields of an answer that clients send back, and hints about caches: nothing is lost without
/// them.
const HARMLESS_FIELDS: [&str; 9] = [
    "annotations",
    "audio",
    "cache_control",
    "id",
    "index",
    "logprobs",
    "provider_metadata",
    "refusal",
    "status",
];

/// Fields of tools for a provider's own work, which have no effect here.
const UNUSED_TOOL_FIELDS: [&str; 4] =
    ["allowed_callers", "defer_loading", "eager_input_streaming", "input_examples"];

/// Fields of a function: what chat templates read, and `strict`. Some templates describe what it
/// returns.
const FUNCTION_FIELDS: [&str; 7] =
    ["name", "description", "parameters", "strict", "return", "returns", "response"];

/// Names fields of a message or a part that are not read.
///
/// # Errors
/// With `strict`, the first of them.
pub fn check_unread_fields(
    rest: &Map<String, Value>,
    path: &str,
    strict: bool,
    ignored: &mut Vec<String>,
) -> Result<(), Problem> {
    let is_unread = |(name, value): &(&String, &Value)| {
        !value.is_null() && !HARMLESS_FIELDS.contains(&name.as_str())
    };
    for (name, _) in rest.iter().filter(is_unread) {
        let param = format!("{path}.{name}");
        if strict {
            let problem = Problem::invalid(format_args!("unknown field {name:?}"));
            return Err(problem.with_param(&param).with_code("unknown_parameter"));
        }
        ignored.push(param);
    }
    Ok(())
}

/// Names fields of a tool that are not read.
///
/// # Errors
/// With `strict`, the first of them.
pub fn check_tool_fields(
    rest: &Map<String, Value>,
    path: &str,
    strict: bool,
    ignored: &mut Vec<String>,
) -> Result<(), Problem> {
    let mut unknown = Map::new();
    for (name, value) in rest {
        let is_off = match value {
            Value::Bool(on) => !on,
            Value::Array(list) => list.is_empty(),
            _ => false,
        };
        if !UNUSED_TOOL_FIELDS.contains(&name.as_str()) {
            unknown.insert(name.clone(), value.clone());
        } else if !is_off && !value.is_null() {
            let param = format!("{path}.{name}");
            if strict {
                let problem = Problem::invalid(format_args!("the field {name:?} is not supported"));
                return Err(problem.with_param(&param).with_code("unsupported_parameter"));
            }
            ignored.push(param);
        }
    }
    check_unread_fields(&unknown, path, strict, ignored)
}

/// Removes the fields of a function's description that are not read, so that no chat template
/// shows them to the model, and names them. `path` is the tool, `inner` the function in it.
///
/// # Errors
/// With `strict`, the first of them.
pub fn remove_unread_fields(
    tool: &mut Value,
    (path, inner): (&str, &str),
    strict: bool,
    ignored: &mut Vec<String>,
) -> Result<(), Problem> {
    let mut take = |object: &mut Value, path: &str, known: &[&str]| {
        let Some(members) = object.as_object_mut() else { return Ok(()) };
        let mut rest = Map::new();
        members.retain(|name, value| {
            let is_known = known.contains(&name.as_str());
            if !is_known {
                rest.insert(name.clone(), value.take());
            }
            is_known
        });
        check_tool_fields(&rest, path, strict, ignored)
    };
    take(tool, path, &["type", "function"])?;
    match tool.get_mut("function") {
        Some(function) => take(function, inner, &FUNCTION_FIELDS),
        None => Ok(()),
    }
}
