//! JSON as written by Python's `json.dumps`: a space after commas and colons, no unnecessary
//! escapes.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

use super::arguments::{bind, flag, integer};
use super::limits::{charge_output, check_width};
use super::python;

/// Options of `json.dumps`, under Python's names.
pub(super) struct Style {
    /// Indentation per level; `None` for a single line.
    indent: Option<String>,
    /// Separator between items.
    comma: String,
    /// Separator after a key.
    colon: String,
    ensure_ascii: bool,
    sort_keys: bool,
}

impl Style {
    /// Parses the arguments of a call.
    pub(super) fn from_arguments(args: &[Value]) -> Result<Self, Error> {
        let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
        let [ensure_ascii, indent, separators, sort_keys] = bind(args, names)?;
        let indent = match indent.filter(|indent| !indent.is_none()) {
            None => None,
            Some(indent) => Some(match (indent.as_str(), integer(Some(indent.clone()))) {
                (Some(text), _) => {
                    check_width(text.len())?;
                    text.to_owned()
                }
                (_, Ok(spaces)) => {
                    let spaces = usize::try_from(spaces.unwrap_or(0)).unwrap_or(0);
                    check_width(spaces)?;
                    " ".repeat(spaces)
                }
                _ => {
                    let expected = "a number of spaces or a string";
                    return Err(invalid_option("indent", expected, &indent));
                }
            }),
        };
        let separators = separators.filter(|both| !both.is_none());
        let [comma, colon] = match separators {
            None => [if indent.is_some() { "," } else { ", " }, ": "].map(str::to_owned),
            Some(both) => parse_separators(&both)
                .ok_or_else(|| invalid_option("separators", "two strings", &both))?,
        };
        let (ensure_ascii, sort_keys) = (flag(&ensure_ascii), flag(&sort_keys));
        Ok(Self { indent, comma, colon, ensure_ascii, sort_keys })
    }

    /// Returns the JSON text of a value. The depth of a filter's input is limited.
    pub(super) fn text(&self, value: &Value) -> Result<String, Error> {
        let mut out = String::new();
        self.write(value, 0, &mut out)?;
        Ok(out)
    }

    fn write(&self, value: &Value, level: usize, out: &mut String) -> Result<(), Error> {
        let start = out.len();
        match value.kind() {
            ValueKind::String => self.write_string(value.as_str().unwrap_or_default(), out),
            ValueKind::None | ValueKind::Bool | ValueKind::Number => out.push_str(&scalar(value)),
            ValueKind::Map if python::is_dict(value) => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.write_items("{", keys, "}", level, out, |key, out| {
                    match key.kind() {
                        ValueKind::String => {
                            self.write_string(key.as_str().unwrap_or_default(), out);
                        }
                        ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                            self.write_string(&scalar(key), out);
                        }
                        _ => return Err(not_serializable(key)),
                    }
                    out.push_str(&self.colon);
                    self.write(&value.get_item(key)?, level + 1, out)
                })?;
                return Ok(());
            }
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.collect();
                self.write_items("[", items, "]", level, out, |item, out| {
                    self.write(item, level + 1, out)
                })?;
                return Ok(());
            }
            _ => return Err(not_serializable(value)),
        }
        charge_output(out.len() - start)
    }

    fn write_items(
        &self,
        open: &str,
        items: Vec<Value>,
        close: &str,
        level: usize,
        out: &mut String,
        write: impl Fn(&Value, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let line = |level: usize, out: &mut String| match &self.indent {
            None => Ok(()),
            Some(indent) => {
                charge_output(1 + level * indent.len())?;
                out.push('\n');
                out.extend(std::iter::repeat_n(indent.as_str(), level));
                Ok::<_, Error>(())
            }
        };
        out.push_str(open);
        for (index, item) in items.iter().enumerate() {
            charge_output(self.comma.len() + self.colon.len())?;
            out.push_str(if index > 0 { &self.comma } else { "" });
            line(level + 1, out)?;
            write(item, out)?;
        }
        if !items.is_empty() {
            line(level, out)?;
        }
        out.push_str(close);
        charge_output(2)
    }

    fn write_string(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\x08' => out.push_str("\\b"),
                '\x0c' => out.push_str("\\f"),
                ' '..='~' => out.push(c),
                c if c >= ' ' && !self.ensure_ascii => out.push(c),
                c => out.extend(c.encode_utf16(&mut [0; 2]).iter().map(|u| format!("\\u{u:04x}"))),
            }
        }
        out.push('"');
    }
}

/// Returns the text of a number, a truth value or none.
fn scalar(value: &Value) -> String {
    match (value.kind(), f64::try_from(value.clone())) {
        (ValueKind::None, _) => "null".to_owned(),
        (ValueKind::Bool, _) => value.is_true().to_string(),
        (_, Ok(number)) if python::is_float(value) && !number.is_finite() => match number {
            f64::INFINITY => "Infinity".to_owned(),
            f64::NEG_INFINITY => "-Infinity".to_owned(),
            _ => "NaN".to_owned(),
        },
        _ => python::text(value),
    }
}

fn not_serializable(value: &Value) -> Error {
    let problem = format!("tojson: a value of type {} is not JSON", value.kind());
    Error::new(ErrorKind::BadSerialization, problem)
}

/// JSON of a value as `json.dumps` writes it.
pub(super) fn python(value: &serde_json::Value) -> String {
    let style = Style {
        indent: None,
        comma: ", ".to_owned(),
        colon: ": ".to_owned(),
        ensure_ascii: false,
        sort_keys: false,
    };
    style.text(&Value::from(minijinja::value::Serde(value))).unwrap_or_default()
}

fn invalid_option(option: &str, expected: &str, got: &Value) -> Error {
    let problem = format!("tojson: {option}: expected {expected}, got {}", got.kind());
    Error::new(ErrorKind::InvalidOperation, problem)
}

fn parse_separators(both: &Value) -> Option<[String; 2]> {
    let all: Vec<Value> = both.try_iter().ok()?.take(3).collect();
    let [comma, colon] = all.as_slice() else { return None };
    Some([comma.as_str()?.to_owned(), colon.as_str()?.to_owned()])
}
