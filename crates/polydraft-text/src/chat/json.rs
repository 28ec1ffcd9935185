//! JSON as Python writes it: a space behind commas and colons, nothing escaped that need not be.

use std::io;

use minijinja::value::Value;
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

use super::limits::spend;

/// On one line, or with `indent` spaces a level.
pub(super) fn text(value: &Value, indent: Option<usize>) -> serde_json::Result<String> {
    let mut out = Counted(Vec::new());
    match indent {
        None => value.serialize(&mut Serializer::with_formatter(&mut out, OneLine))?,
        Some(indent) => {
            // No template indents deeper than its author can read.
            let indent = " ".repeat(indent.min(64));
            let formatter = PrettyFormatter::with_indent(indent.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut out, formatter))?;
        }
    }
    Ok(String::from_utf8_lossy(&out.0).into_owned())
}

/// What is written, as long as the template may make so much.
struct Counted(Vec<u8>);

impl io::Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        spend(bytes.len()).map_err(|e| io::Error::other(e.to_string()))?;
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct OneLine;

impl Formatter for OneLine {
    fn begin_array_value<W: io::Write + ?Sized>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: io::Write + ?Sized>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.begin_array_value(out, first)
    }

    fn begin_object_value<W: io::Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }
}
