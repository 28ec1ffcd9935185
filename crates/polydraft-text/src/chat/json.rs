//! JSON as written by Python's `json.dumps`: a space after commas and colons, no unnecessary
//! escapes.

use std::io::{self, Write};

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

use super::limits::{charge_output, check_width};

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
    pub(super) fn from_options(options: &Kwargs) -> Result<Self, Error> {
        let indent =
            match options.get::<Option<Value>>("indent")?.filter(|indent| !indent.is_none()) {
                None => None,
                Some(indent) => Some(match (indent.as_str(), indent.as_i64()) {
                    (Some(text), _) => text.to_owned(),
                    (_, Some(spaces)) => {
                        let spaces = usize::try_from(spaces).unwrap_or(0);
                        check_width(spaces)?;
                        " ".repeat(spaces)
                    }
                    _ => {
                        return Err(invalid_option(
                            "indent",
                            "a number of spaces or a string",
                            &indent,
                        ));
                    }
                }),
            };
        let separators = options.get::<Option<Value>>("separators")?.filter(|both| !both.is_none());
        let [comma, colon] = match separators {
            None => [if indent.is_some() { "," } else { ", " }, ": "].map(str::to_owned),
            Some(both) => parse_separators(&both)
                .ok_or_else(|| invalid_option("separators", "two strings", &both))?,
        };
        let flag = |name| Ok::<_, Error>(options.get::<Option<bool>>(name)?.unwrap_or(false));
        let (ensure_ascii, sort_keys) = (flag("ensure_ascii")?, flag("sort_keys")?);
        Ok(Self { indent, comma, colon, ensure_ascii, sort_keys })
    }

    pub(super) fn text(&self, value: &Value) -> serde_json::Result<String> {
        let mut out = Counted(Vec::new());
        let writer = Writer { style: self, level: 0, is_empty: true };
        let mut serializer = Serializer::with_formatter(&mut out, writer);
        match self.sort_keys {
            true => sorted(value).serialize(&mut serializer)?,
            false => value.serialize(&mut serializer)?,
        }
        Ok(String::from_utf8_lossy(&out.0).into_owned())
    }
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

/// Sorts the keys of all objects, recursively. The depth of a filter's input is limited.
fn sorted(value: &Value) -> Value {
    let items = || value.try_iter().into_iter().flatten();
    match value.kind() {
        ValueKind::Map => {
            let mut all: Vec<(Value, Value)> = items()
                .map(|key| {
                    let item = value.get_item(&key).unwrap_or_default();
                    (key, sorted(&item))
                })
                .collect();
            all.sort_by(|(a, _), (b, _)| a.cmp(b));
            Value::from_pairs(all)
        }
        ValueKind::Seq | ValueKind::Iterable => items().map(|item| sorted(&item)).collect(),
        _ => value.clone(),
    }
}

/// Output buffer, charged against the template's output limit.
struct Counted(Vec<u8>);

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        charge_output(bytes.len()).map_err(|e| io::Error::other(e.to_string()))?;
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Writer<'s> {
    style: &'s Style,
    level: usize,
    /// Whether the current list or object is empty.
    is_empty: bool,
}

impl Writer<'_> {
    fn line(&self, out: &mut (impl Write + ?Sized)) -> io::Result<()> {
        let Some(indent) = &self.style.indent else { return Ok(()) };
        out.write_all(b"\n")?;
        (0..self.level).try_for_each(|_| out.write_all(indent.as_bytes()))
    }

    fn begin(&mut self, out: &mut (impl Write + ?Sized), bracket: &[u8]) -> io::Result<()> {
        self.level += 1;
        self.is_empty = true;
        out.write_all(bracket)
    }

    fn item(&mut self, out: &mut (impl Write + ?Sized), first: bool) -> io::Result<()> {
        self.is_empty = false;
        if !first {
            out.write_all(self.style.comma.as_bytes())?;
        }
        self.line(out)
    }

    fn end(&mut self, out: &mut (impl Write + ?Sized), bracket: &[u8]) -> io::Result<()> {
        self.level -= 1;
        if !self.is_empty {
            self.line(out)?;
        }
        self.is_empty = false;
        out.write_all(bracket)
    }
}

impl Formatter for Writer<'_> {
    fn begin_array<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.begin(out, b"[")
    }

    fn end_array<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.end(out, b"]")
    }

    fn begin_array_value<W: Write + ?Sized>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.item(out, first)
    }

    fn begin_object<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.begin(out, b"{")
    }

    fn end_object<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.end(out, b"}")
    }

    fn begin_object_key<W: Write + ?Sized>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.item(out, first)
    }

    fn begin_object_value<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(self.style.colon.as_bytes())
    }

    fn write_string_fragment<W: Write + ?Sized>(
        &mut self,
        out: &mut W,
        text: &str,
    ) -> io::Result<()> {
        let is_plain = |c: char| !self.style.ensure_ascii || matches!(c, ' '..='~');
        let mut rest = text;
        while let Some((at, c)) = rest.char_indices().find(|(_, c)| !is_plain(*c)) {
            out.write_all(&rest.as_bytes()[..at])?;
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(out, "\\u{unit:04x}")?;
            }
            rest = &rest[at + c.len_utf8()..];
        }
        out.write_all(rest.as_bytes())
    }
}
