//! JSON whose numbers may be too large for 64 bits of floating point.

use serde_json::Value;

/// Number of decimal digits that every 64-bit floating-point number keeps.
const MAX_DIGITS: usize = 15;

/// Reads JSON. Numbers that are too large, such as `1e400`, become the largest there is: they are
/// valid JSON, which a grammar allows a model to write, but no value of common languages.
///
/// # Errors
/// Text that is not JSON.
pub fn read_json(text: &str) -> Result<Value, serde_json::Error> {
    serde_json::from_str(text).or_else(|error| match with_finite_numbers(text) {
        Some(finite) => serde_json::from_str(&finite),
        None => Err(error),
    })
}

/// Text of a JSON value whose numbers have more digits than 64 bits of floating point hold; `None`
/// where `value`, which was read from it, loses nothing.
pub(super) fn as_written<'t>(text: &'t str, value: &Value) -> Option<&'t str> {
    let is_long = |number: &str| number.bytes().filter(u8::is_ascii_digit).count() > MAX_DIGITS;
    let has_long = text.split(|next: char| !next.is_ascii_digit() && next != '.').any(is_long);
    let is_same = || serde_json::from_str::<Value>(text).is_ok_and(|read| read == *value);
    (has_long && is_same()).then_some(text)
}

/// Replaces too large numbers; `None` if there are none.
fn with_finite_numbers(text: &str) -> Option<String> {
    let (mut finite, mut rest, mut is_changed) = (String::new(), text, false);
    let (mut in_string, mut is_escaped) = (false, false);
    while let Some(character) = rest.chars().next() {
        let length = match character {
            '-' | '0'..='9' if !in_string => {
                let is_part = |next: char| next.is_ascii_digit() || "+-.eE".contains(next);
                rest.find(|next| !is_part(next)).unwrap_or(rest.len())
            }
            _ => character.len_utf8(),
        };
        let (token, after) = rest.split_at(length);
        match token.parse::<f64>() {
            Ok(number) if !in_string && number.is_infinite() => {
                finite += &format!("{:e}", f64::MAX.copysign(number));
                is_changed = true;
            }
            _ => finite += token,
        }
        is_escaped = match character {
            '\\' if in_string => !is_escaped,
            '"' if !is_escaped => {
                in_string = !in_string;
                false
            }
            _ => false,
        };
        rest = after;
    }
    is_changed.then_some(finite)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn too_large_numbers_become_the_largest() {
        let read = |text: &str| read_json(text).unwrap();
        assert_eq!(read("1e400"), json!(f64::MAX));
        let text = r#"{"a": [-845e2249, 1E+999, 1e-999, 2], "\"1e400": "\\1e400"}"#;
        let expected = json!({ "a": [f64::MIN, f64::MAX, 0.0, 2], "\"1e400": "\\1e400" });
        assert_eq!(read(text), expected);
        assert_eq!(read(&"9".repeat(400)), json!(f64::MAX));
        for wrong in ["", "1e400.", "{1e400}", "[1e400", "--1e400", "\u{e4}1e400"] {
            assert!(read_json(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn long_numbers_stay_as_written() {
        let written = |text| as_written(text, &read_json(text).unwrap());
        for text in ["12345678901234567890123", "0.12345678901234567", "[1, 12345678901234567e3]"] {
            assert_eq!(written(text), Some(text));
        }
        for text in ["123", "1.5e10", "\"12345678901234567\"x", "1e400"] {
            let read = read_json(text).unwrap_or(Value::String(text.to_owned()));
            assert_eq!(as_written(text, &read), None, "{text}");
        }
        assert_eq!(as_written("12345678901234567890", &json!("12345678901234567890")), None);
    }
}
