//! Text of values as Python's `str` and `repr` write them.

use minijinja::value::{Value, ValueKind};

/// Returns the text of a value as `str(value)`.
pub(super) fn text(value: &Value) -> String {
    match value.as_str() {
        Some(text) => text.to_owned(),
        None if value.is_undefined() => String::new(),
        None => repr(value),
    }
}

/// Returns the text of a value as `repr(value)`. The caller limits the depth.
pub(super) fn repr(value: &Value) -> String {
    let mut out = String::new();
    write_repr(value, &mut out);
    out
}

/// Returns whether a value is a floating-point number.
pub(super) fn is_float(value: &Value) -> bool {
    value.kind() == ValueKind::Number && !value.is_integer()
}

/// Returns whether a value is a dictionary. The engine treats namespaces, macros and loops as maps
/// too.
pub(super) fn is_dict(value: &Value) -> bool {
    value.kind() == ValueKind::Map && !is_engine_object(value)
}

/// Returns whether a value is one of the engine's own objects: they have no public types.
pub(super) fn is_engine_object(value: &Value) -> bool {
    let name = value.as_object().map_or("", |object| object.type_name());
    name.ends_with("::Namespace") || name.ends_with("::Macro") || name.ends_with("::Loop")
}

/// Returns the shortest digits of a number that read back as the same number, with an exponent
/// below 1e-4 and from 1e16 on.
pub(super) fn float(number: f64) -> String {
    if !number.is_finite() {
        return number.to_string().to_lowercase();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse().unwrap_or(0) {
        -4..16 => format!("{number:?}"),
        exponent => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", i32::abs(exponent))
        }
    }
}

fn write_repr(value: &Value, out: &mut String) {
    if let Some(text) = value.as_str() {
        out.push_str(if value.is_safe() { "Markup(" } else { "" });
        write_quoted(text, out);
        return out.push_str(if value.is_safe() { ")" } else { "" });
    }
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::Number if !value.is_integer() => {
            out.push_str(&float(f64::try_from(value.clone()).unwrap_or(f64::NAN)));
        }
        ValueKind::Map => {
            let is_namespace = is_engine_object(value);
            // Macros and loops have a text of their own.
            if is_namespace && value.to_string().starts_with('<') {
                return out.push_str(&value.to_string());
            }
            out.push_str(if is_namespace { "<Namespace {" } else { "{" });
            for (index, key) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write_repr(&key, out);
                out.push_str(": ");
                write_repr(&value.get_item(&key).unwrap_or_default(), out);
            }
            out.push_str(if is_namespace { "}>" } else { "}" });
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let is_tuple = value.is_tuple();
            out.push(if is_tuple { '(' } else { '[' });
            for (index, item) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write_repr(&item, out);
            }
            out.push_str(if is_tuple && value.len() == Some(1) { "," } else { "" });
            out.push(if is_tuple { ')' } else { ']' });
        }
        _ => out.push_str(&value.to_string()),
    }
}

fn write_quoted(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if is_printable(c) => out.push(c),
            c => out.push_str(&escaped(c)),
        }
    }
    out.push(quote);
}

/// Returns whether `repr` writes a character as it is.
pub(super) fn is_printable(c: char) -> bool {
    // The standard library escapes the same categories, but quotes and marks too. A mark that
    // follows a letter is not escaped.
    let text: String = ['a', c].into_iter().collect();
    matches!(c, ' '..='~') || text.escape_debug().count() == 2
}

/// Returns the escape sequence of a character.
pub(super) fn escaped(c: char) -> String {
    match u32::from(c) {
        code @ ..=0xff => format!("\\x{code:02x}"),
        code @ ..=0xffff => format!("\\u{code:04x}"),
        code => format!("\\U{code:08x}"),
    }
}

/// Returns whether Python's `str.isspace` includes a character.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\x1c'..='\x1f')
}

/// Replaces the characters that HTML reserves, as `markupsafe.escape`.
pub(super) fn html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}
