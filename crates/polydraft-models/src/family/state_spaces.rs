//! Helpers for families with state spaces.

use polydraft_text::Fields;
use serde_json::Value;

use super::common::Result;

/// Reads the bounds of the time step. Without the field there are none.
pub(super) fn step_limits(fields: &Fields) -> Result<[f32; 2]> {
    const FIELD: &str = "time_step_limit";
    let invalid =
        |got: &str| format!("{FIELD}: expected two ascending non-negative numbers, got {got}");
    let Some(listed) = fields.get::<Value>(FIELD)? else { return Ok([0.0, f32::INFINITY]) };
    let Some([min, max]) = listed.as_array().map(Vec::as_slice) else {
        return Err(invalid(&listed.to_string()));
    };
    match [min, max].map(number) {
        [Some(min), Some(max)] if 0.0 <= min && min <= max => Ok([min, max]),
        _ => Err(invalid(&listed.to_string())),
    }
}

/// Parses a number, including the notations for infinity in such files.
fn number(value: &Value) -> Option<f32> {
    match value.get("__float__").unwrap_or(value) {
        Value::Number(number) => number.as_f64().map(|number| number as f32),
        Value::String(word) if ["Infinity", "inf"].contains(&&word[..]) => Some(f32::INFINITY),
        _ => None,
    }
}

/// Quotes the word `Infinity`, which Python writes as a number, so that the text is valid JSON.
pub(super) fn quote_infinity(text: &str) -> String {
    const WORD: &str = "Infinity";
    let (mut out, mut rest, mut quoted) = (String::with_capacity(text.len()), text, false);
    while let Some(next) = rest.chars().next() {
        let length = match next {
            '\\' if quoted => 1 + rest.chars().nth(1).map_or(0, char::len_utf8),
            _ if !quoted && rest.starts_with(WORD) => {
                out.push('"');
                out.push_str(WORD);
                out.push('"');
                rest = &rest[WORD.len()..];
                continue;
            }
            other => other.len_utf8(),
        };
        quoted ^= next == '"';
        let copied;
        (copied, rest) = rest.split_at(length);
        out.push_str(copied);
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reads_infinity_in_all_notations() {
        let text = r#"{"a": [0.0, Infinity], "b\"": "Infinity \\", "c": {"__float__": Infinity}}"#;
        let found: Value = serde_json::from_str(&quote_infinity(text)).unwrap();
        let expected = json!({
            "a": [0.0, "Infinity"], "b\"": "Infinity \\", "c": { "__float__": "Infinity" },
        });
        assert_eq!(found, expected);
        for most in [json!("inf"), json!("Infinity"), json!({ "__float__": "Infinity" })] {
            let fields = json!({ "time_step_limit": [0.5, most] });
            let found = step_limits(&Fields::new(&fields).unwrap());
            assert_eq!(found, Ok([0.5, f32::INFINITY]));
        }
        let nothing = json!({ "time_step_limit": null });
        let found = step_limits(&Fields::new(&nothing).unwrap());
        assert_eq!(found, Ok([0.0, f32::INFINITY]));
    }

    #[test]
    fn rejects_invalid_time_step_limits() {
        for limits in [json!(1), json!([1]), json!([2, 1]), json!([-1, 1]), json!([0, "x"])] {
            let fields = json!({ "time_step_limit": limits });
            let error = step_limits(&Fields::new(&fields).unwrap()).unwrap_err();
            assert!(error.contains("time_step_limit: expected two ascending"), "{error}");
        }
    }
}
