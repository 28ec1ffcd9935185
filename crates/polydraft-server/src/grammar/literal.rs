//! Strings in the library's form of Lark.

/// A string as Lark has it.
pub(super) fn literal(text: &str) -> String {
    serde_json::json!(text).to_string()
}
