//! String literals in the library's dialect of Lark.

/// Formats a string as a Lark literal.
pub(super) fn literal(text: &str) -> String {
    serde_json::json!(text).to_string()
}
