//! Calls that are JSON objects with members in any order.

use serde_json::Value;

use super::braces::Braces;
use super::numbers::read_json;
use super::pattern::{Literal, Piece, literal_end};

/// Start of a text, as far as a call that is an object is concerned.
pub(super) enum Object {
    /// No call.
    None,
    /// More text is needed to tell.
    Unclear,
    /// A call of this name with these arguments, up to this byte.
    Call(String, String, usize),
}

/// Looks for a call, in a form whose calls are objects and begin with this pattern, at the start of
/// a text.
pub(super) fn find_object(text: &str, pattern: &[Piece], names: &[String]) -> Object {
    let mut before = String::new();
    for piece in pattern {
        let Piece::Text(text) = piece else { break };
        before.push_str(text.split('{').next().unwrap_or_default());
        if text.contains('{') {
            break;
        }
    }
    let start = match literal_end(&before, text) {
        Literal::No => return Object::None,
        Literal::Partial => return Object::Unclear,
        Literal::End(length) => length,
    };
    let object = &text[start..];
    match object.trim_start().chars().next() {
        Some('{') => {}
        Some(_) => return Object::None,
        None => return Object::Unclear,
    }
    let Some(end) = Braces::default().end(object) else { return Object::Unclear };
    match read_object(&object[..end], names) {
        Some((name, arguments)) => Object::Call(name, arguments, start + end),
        None => Object::None,
    }
}

/// Whether an incomplete object names a tool that is not known.
pub(super) fn names_other(text: &str, names: &[String]) -> bool {
    let value = |key: &str| {
        let (_, rest) = text.split_once(&format!("\"{key}\""))?;
        let rest = rest.trim_start().strip_prefix(':')?.trim_start().strip_prefix('"')?;
        rest.split_once('"').map(|(name, _)| name)
    };
    let name = NAME_KEYS.iter().find_map(|key| value(key));
    name.is_some_and(|name| names.iter().all(|known| known != name))
}

/// Names of the arguments' member.
const KEYS: [&str; 3] = ["arguments", "parameters", "input"];
/// Names of the name's member.
const NAME_KEYS: [&str; 2] = ["name", "tool_name"];

/// Name and arguments of an object that is a call of a known tool.
fn read_object(text: &str, names: &[String]) -> Option<(String, String)> {
    let Value::Object(mut object) = read_json(text.trim()).ok()? else { return None };
    if let Some(Value::Object(function)) = object.remove("function") {
        object = function;
    }
    let name = NAME_KEYS.iter().find_map(|key| object.get(*key))?.as_str()?.to_owned();
    let arguments = KEYS.iter().find_map(|key| object.remove(*key));
    let text = match arguments {
        // A call without arguments, and not an answer that happens to have a name.
        None if object.keys().all(|key| matches!(key.as_str(), "name" | "tool_name" | "id")) => {
            "{}".to_owned()
        }
        None => return None,
        Some(Value::String(text)) => text,
        Some(arguments @ Value::Object(_)) => arguments.to_string(),
        Some(_) => return None,
    };
    names.contains(&name).then_some((name, text))
}
