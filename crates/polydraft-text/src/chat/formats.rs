//! Python's string formatting: `%` fields and the `{}` fields of `str.format`.
//!
//! The engine's formatter writes numbers; fields and text are handled here, because Python writes
//! other values with `str`. Widths are limited and the output is charged field by field.

use minijinja::Error;
use minijinja::formatting::{FormatStyle, format};
use minijinja::value::{Value, ValueKind};

use super::limits::{charge_filter_input, charge_output, check_width, refused};
use super::python;

/// Formats `%` fields with the values of a tuple, the entries of a map, or one value.
pub(super) fn percent(text: &str, values: &Value) -> Result<String, Error> {
    let is_map = values.kind() == ValueKind::Map;
    let all: Vec<Value> = match values.is_tuple() {
        true => values.try_iter()?.collect(),
        false => vec![values.clone()],
    };
    let mut remaining = all.iter();
    let mut next =
        || remaining.next().ok_or_else(|| refused("not enough arguments for format".to_owned()));
    let (mut out, mut rest) = (String::new(), text);
    while let Some((before, field)) = rest.split_once('%') {
        out.push_str(before);
        if let Some(after) = field.strip_prefix('%') {
            out.push('%');
            rest = after;
            continue;
        }
        let (key, field) = match field.strip_prefix('(').map(|named| named.split_once(')')) {
            Some(Some((key, after))) if is_map => (Some(key), after),
            Some(_) => return Err(refused("format requires a mapping".to_owned())),
            None => (None, field),
        };
        let flags = field.find(|c| !"#-+ 0".contains(c)).unwrap_or(field.len());
        let (flags, mut field) = field.split_at(flags);
        let mut spec = flags.to_owned();
        let mut number = |field: &mut &str| -> Result<Option<usize>, Error> {
            let digits = field.find(|c: char| !c.is_ascii_digit()).unwrap_or(field.len());
            let (digits, after) = field.split_at(digits);
            *field = after;
            match field.strip_prefix('*').filter(|_| digits.is_empty()) {
                Some(after) => {
                    *field = after;
                    let width = next()?.as_usize();
                    width.ok_or_else(|| refused("* wants a positive width".to_owned())).map(Some)
                }
                None if digits.is_empty() => Ok(None),
                None => Ok(Some(digits.parse().unwrap_or(usize::MAX))),
            }
        };
        let width = number(&mut field)?;
        let precision = match field.strip_prefix('.') {
            Some(after) => {
                field = after;
                Some(number(&mut field)?.unwrap_or(0))
            }
            None => None,
        };
        field = field.trim_start_matches(['h', 'l', 'L']);
        check_width(width.unwrap_or(0).max(precision.unwrap_or(0)))?;
        let mut after = field.chars();
        let conversion = after.next().ok_or_else(|| refused("incomplete format".to_owned()))?;
        rest = after.as_str();
        let value = match key {
            Some(key) => values.get_item(&Value::from(key))?,
            None if conversion == '%' => Value::from("%"),
            None => next()?.clone(),
        };
        charge_filter_input(&value)?;
        let text = match conversion {
            's' | '%' => python::text(&value),
            'r' => python::repr(&value),
            'a' => python::repr(&value)
                .chars()
                .map(|c| if c.is_ascii() { c.to_string() } else { python::escaped(c) })
                .collect(),
            'c' if value.as_str().is_some_and(|text| text.chars().count() == 1) => {
                value.to_string()
            }
            'd' | 'i' | 'u' | 'x' | 'X' | 'o' | 'c' | 'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
                let (conversion, value) = match conversion {
                    'd' | 'i' | 'u' => ('d', truncated(&value)?),
                    'c' | 'x' | 'X' | 'o' => (conversion, value),
                    other => match f64::try_from(value.clone()) {
                        Ok(number) => (other, number.into()),
                        Err(_) => (other, value),
                    },
                };
                if !matches!(value.kind(), ValueKind::Number | ValueKind::Bool) {
                    return Err(refused(format!("%{conversion}: expected a number, got {value}")));
                }
                spec.extend(width.map(|width| width.to_string()));
                spec.extend(precision.map(|precision| format!(".{precision}")));
                let text = format(FormatStyle::Printf, &format!("%{spec}{conversion}"), &[value])?;
                charge_output(text.len())?;
                out.push_str(&text);
                continue;
            }
            other => return Err(refused(format!("unsupported format character {other:?}"))),
        };
        let precise: String = text.chars().take(precision.unwrap_or(usize::MAX)).collect();
        let fill = " ".repeat(width.unwrap_or(0).saturating_sub(precise.chars().count()));
        charge_output(precise.len() + fill.len())?;
        match flags.contains('-') {
            true => out.extend([precise, fill]),
            false => out.extend([fill, precise]),
        }
    }
    let is_mapping = is_container(values) || values.is_undefined();
    if remaining.next().is_some() && (values.is_tuple() || !is_mapping) {
        return Err(refused("not all arguments converted during string formatting".to_owned()));
    }
    Ok(out + rest)
}

fn is_container(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Map | ValueKind::Seq | ValueKind::Iterable)
}

/// Truncates a number.
fn truncated(value: &Value) -> Result<Value, Error> {
    match f64::try_from(value.clone()) {
        Ok(number) if python::is_float(value) => Ok(Value::from(number.trunc() as i128)),
        _ => match bool::try_from(value.clone()) {
            Ok(flag) => Ok(Value::from(i64::from(flag))),
            Err(_) => Ok(value.clone()),
        },
    }
}

/// Formats `{}` fields with arguments by position and by name.
pub(super) fn braces(
    text: &str,
    positional: &[Value],
    named: Option<&Value>,
) -> Result<String, Error> {
    let mut arguments = Arguments { positional, named, next: 0 };
    arguments.formatted(text, 0)
}

/// Arguments of `str.format`.
struct Arguments<'a> {
    positional: &'a [Value],
    named: Option<&'a Value>,
    /// Position of the next field without a name.
    next: usize,
}

impl Arguments<'_> {
    fn formatted(&mut self, text: &str, depth: usize) -> Result<String, Error> {
        let unmatched = || refused("single '{' or '}' in format string".to_owned());
        let (mut out, mut rest) = (String::new(), text);
        while let Some(at) = rest.find(['{', '}']) {
            out.push_str(&rest[..at]);
            let (mark, field) = rest[at..].split_at(1);
            if let Some(after) = field.strip_prefix(mark) {
                out.push_str(mark);
                rest = after;
                continue;
            }
            if mark == "}" || depth > 1 {
                return Err(unmatched());
            }
            let name = name_end(field).ok_or_else(unmatched)?;
            let (name, mut field) = field.split_at(name);
            let mut conversion = None;
            if let Some(after) = field.strip_prefix('!') {
                conversion = after.chars().next();
                field = &after[conversion.map_or(0, char::len_utf8)..];
            }
            let mut spec = "";
            if let Some(after) = field.strip_prefix(':') {
                (spec, field) = after.split_at(spec_end(after).ok_or_else(unmatched)?);
            }
            rest = field.strip_prefix('}').ok_or_else(unmatched)?;
            let value = self.value(name)?;
            let spec = self.formatted(spec, depth + 1)?;
            charge_filter_input(&value)?;
            let value = match conversion {
                None => value,
                Some('s') => Value::from(python::text(&value)),
                Some('r') => Value::from(python::repr(&value)),
                Some(other) => return Err(refused(format!("unknown conversion {other:?}"))),
            };
            let text = with_spec(&value, &spec)?;
            charge_output(text.len())?;
            out.push_str(&text);
        }
        Ok(out + rest)
    }

    /// Returns the value of a field such as `0`, `name.attribute` or `name[key]`.
    fn value(&mut self, path: &str) -> Result<Value, Error> {
        let (name, mut rest) = path.split_at(path.find(['.', '[']).unwrap_or(path.len()));
        let mut value = match name.parse::<usize>() {
            Ok(index) => self.positional.get(index).cloned(),
            Err(_) if name.is_empty() => {
                self.next += 1;
                self.positional.get(self.next - 1).cloned()
            }
            Err(_) => self.named.map(|named| named.get_attr(name)).transpose()?,
        }
        .filter(|value| !value.is_undefined())
        .ok_or_else(|| refused(format!("format: no argument {name:?}")))?;
        while !rest.is_empty() {
            let key;
            if let Some(after) = rest.strip_prefix('[') {
                (key, rest) = after.split_once(']').unwrap_or((after, ""));
            } else {
                let after = rest.strip_prefix('.').unwrap_or(rest);
                (key, rest) = after.split_at(after.find(['.', '[']).unwrap_or(after.len()));
                if key.is_empty() {
                    return Err(refused("format: empty attribute".to_owned()));
                }
            }
            let index = key.parse::<usize>().map_or_else(|_| Value::from(key), Value::from);
            value = value.get_item(&index)?;
        }
        Ok(value)
    }
}

/// Returns the length of a field's name; keys in brackets may contain any character.
fn name_end(field: &str) -> Option<usize> {
    let mut at = 0;
    loop {
        at += field[at..].find(['[', '}', ':', '!'])?;
        if !field[at..].starts_with('[') {
            return Some(at);
        }
        at += field[at..].find(']')?;
    }
}

/// Returns the length of a field's format, which may contain fields.
fn spec_end(spec: &str) -> Option<usize> {
    let mut depth = 1;
    spec.char_indices().find_map(|(at, c)| {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        (depth == 0).then_some(at)
    })
}

/// Formats one value.
fn with_spec(value: &Value, spec: &str) -> Result<String, Error> {
    if spec.is_empty() {
        return Ok(python::text(value));
    }
    let digits = spec.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    for width in digits {
        check_width(width.parse().unwrap_or(usize::MAX))?;
    }
    if let Some(spec) = spec.strip_suffix('%') {
        let number = f64::try_from(value.clone())? * 100.0;
        let style = format!("{{:{spec}f}}");
        return Ok(format(FormatStyle::StrFormat, &style, &[Value::from(number)])? + "%");
    }
    if is_container(value) || value.is_none() {
        return Err(refused(format!("unsupported format {spec:?} of {}", value.kind())));
    }
    format(FormatStyle::StrFormat, &format!("{{:{spec}}}"), std::slice::from_ref(value))
}
