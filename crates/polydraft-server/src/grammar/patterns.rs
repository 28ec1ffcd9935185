//! Regular expressions of strings that have no quotes around them.

use serde_json::Value;

/// Regular expression for a whole text that contains a match of a pattern.
pub(super) fn contained_pattern(pattern: &str) -> String {
    let (start, rest) = match pattern.strip_prefix('^') {
        Some(rest) => ("", rest),
        None => ("(?s:.*)", pattern),
    };
    let (rest, end) = match rest.strip_suffix('$').filter(|rest| !rest.ends_with('\\')) {
        Some(rest) => (rest, ""),
        None => (rest, "(?s:.*)"),
    };
    format!("{start}({}){end}", rest.replace('/', "\\/"))
}

/// Regular expression of a string's format: RFC 3339, RFC 4122 and the like, as validators of JSON
/// schemas check them; `None` for others.
pub(super) fn format_pattern(format: &str) -> Option<String> {
    const DATE: &str = concat!(
        "[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|",
        "(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|[12][0-9]))"
    );
    const TIME: &str = concat!(
        r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?",
        "(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
    );
    const LABEL: &str = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
    const BYTE: &str = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
    const TIME_SPAN: &str = "T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S)";
    Some(match format {
        "date" => DATE.to_owned(),
        "time" => TIME.to_owned(),
        "date-time" => format!("{DATE}T{TIME}"),
        "uuid" => "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}".to_owned(),
        "hostname" => format!("{LABEL}(\\.{LABEL})*"),
        "email" => format!("[A-Za-z0-9_+-]+(\\.[A-Za-z0-9_+-]+)*@{LABEL}(\\.{LABEL})+"),
        "ipv4" => format!("({BYTE}\\.){{3}}{BYTE}"),
        "ipv6" => concat!(
            "([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}|([0-9a-f]{1,4}:){1,6}:[0-9a-f]{1,4}|",
            "::[0-9a-f]{1,4}|::"
        )
        .to_owned(),
        "uri" => r"[A-Za-z][A-Za-z0-9+.-]*:[A-Za-z0-9._~:\/?#@!$&'()*+,;=%-]+".to_owned(),
        "duration" => {
            const DAYS: &str = "[0-9]+D|[0-9]+M([0-9]+D)?|[0-9]+Y([0-9]+M([0-9]+D)?)?";
            format!("P(({DAYS})({TIME_SPAN})?|{TIME_SPAN}|[0-9]+W)")
        }
        _ => return None,
    })
}

/// Number of characters that a schema allows, as the end of a regular expression.
pub(super) fn lengths(schema: &Value) -> Option<String> {
    let number = |key: &str| schema.get(key).and_then(Value::as_u64);
    match (number("minLength"), number("maxLength")) {
        (None, None) => None,
        (min, None) => Some(format!("{{{},}}", min.unwrap_or(0))),
        (min, Some(max)) => Some(format!("{{{},{max}}}", min.unwrap_or(0))),
    }
}

/// Regular expressions of the patterns and the format that a schema asks for.
pub(super) fn patterns(schema: &Value) -> Vec<String> {
    let patterns = match schema.get("pattern") {
        Some(Value::Array(patterns)) => patterns.as_slice(),
        pattern => pattern.map_or(&[][..], std::slice::from_ref),
    };
    let patterns = patterns.iter().filter_map(Value::as_str).map(contained_pattern);
    let format = schema.get("format").and_then(Value::as_str).and_then(format_pattern);
    patterns.chain(format).map(|part| format!("/{part}/")).collect()
}
