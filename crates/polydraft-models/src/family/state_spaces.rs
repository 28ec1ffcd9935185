//! What families with state spaces share.

use polydraft_text::Fields;
use serde_json::Value;

use super::common::Result;

/// The least and the most that a step is; nothing is said of no bounds.
pub(super) fn step_limits(fields: &Fields) -> Result<[f32; 2]> {
    const FIELD: &str = "time_step_limit";
    let wrong = |got: &str| format!("{FIELD}: expected two numbers from 0 on, in order, got {got}");
    let Some(listed) = fields.get::<Value>(FIELD)? else { return Ok([0.0, f32::INFINITY]) };
    let Some([least, most]) = listed.as_array().map(Vec::as_slice) else {
        return Err(wrong(&listed.to_string()));
    };
    match [least, most].map(number) {
        [Some(least), Some(most)] if 0.0 <= least && least <= most => Ok([least, most]),
        _ => Err(wrong(&listed.to_string())),
    }
}

/// A number, or one of the ways in which such files write one that JSON has not.
fn number(value: &Value) -> Option<f32> {
    match value.get("__float__").unwrap_or(value) {
        Value::Number(number) => number.as_f64().map(|number| number as f32),
        Value::String(word) if ["Infinity", "inf"].contains(&&word[..]) => Some(f32::INFINITY),
        _ => None,
    }
}

/// JSON as Python writes it, with a word for what is larger than every number: that as a string.
pub(super) fn with_words_for_numbers(text: &str) -> String {
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
        let own;
        (own, rest) = rest.split_at(length);
        out.push_str(own);
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn infinity_is_read_in_all_spellings() {
        let text = r#"{"a": [0.0, Infinity], "b\"": "Infinity \\", "c": {"__float__": Infinity}}"#;
        let found: Value = serde_json::from_str(&with_words_for_numbers(text)).unwrap();
        let expected = json!({
            "a": [0.0, "Infinity"], "b\"": "Infinity \\", "c": { "__float__": "Infinity" },
        });
        assert_eq!(found, expected);
        for most in [json!("inf"), json!("Infinity"), json!({ "__float__": "Infinity" })] {
            let fields = json!({ "time_step_limit": [0.5, most] });
            let found = step_limits(&Fields::of(&fields).unwrap());
            assert_eq!(found, Ok([0.5, f32::INFINITY]));
        }
        let nothing = json!({ "time_step_limit": null });
        let found = step_limits(&Fields::of(&nothing).unwrap());
        assert_eq!(found, Ok([0.0, f32::INFINITY]));
        for wrong in [json!(1), json!([1]), json!([2, 1]), json!([-1, 1]), json!([0, "x"])] {
            let fields = json!({ "time_step_limit": wrong });
            let error = step_limits(&Fields::of(&fields).unwrap()).unwrap_err();
            assert!(error.contains("time_step_limit: expected two numbers"), "{error}");
        }
    }
}
