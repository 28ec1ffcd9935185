//! Schemas within a schema.

use serde_json::{Map, Value};

/// Keywords that hold schemas by name, a single schema, and a list of schemas.
const BY_NAME: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];
const SINGLE: [&str; 6] =
    ["items", "additionalProperties", "additionalItems", "if", "then", "else"];
const LISTED: [&str; 5] = ["anyOf", "oneOf", "allOf", "prefixItems", "items"];

/// Calls `visit` with each schema directly within one, and with its path.
///
/// # Errors
/// The first error of `visit`.
pub(super) fn visit_parts(
    schema: &mut Map<String, Value>,
    path: &mut String,
    visit: &mut dyn FnMut(&mut Value, &mut String) -> Result<(), String>,
) -> Result<(), String> {
    for keyword in BY_NAME {
        if let Some(Value::Object(members)) = schema.get_mut(keyword) {
            for (name, member) in members.iter_mut() {
                let part = format!("{keyword}/{name}");
                with_path_segment(path, &part, |path| visit(member, path))?;
            }
        }
    }
    for keyword in SINGLE {
        if let Some(member) = schema.get_mut(keyword) {
            with_path_segment(path, keyword, |path| visit(member, path))?;
        }
    }
    for keyword in LISTED {
        if let Some(Value::Array(members)) = schema.get_mut(keyword) {
            for (number, member) in members.iter_mut().enumerate() {
                let part = format!("{keyword}/{number}");
                with_path_segment(path, &part, |path| visit(member, path))?;
            }
        }
    }
    Ok(())
}

/// Calls `work` with a segment appended to the path.
pub(super) fn with_path_segment<T>(
    path: &mut String,
    part: &str,
    work: impl FnOnce(&mut String) -> Result<T, String>,
) -> Result<T, String> {
    let length = path.len();
    path.push('/');
    path.push_str(part);
    let done = work(path);
    path.truncate(length);
    done
}
