//! Filters of Jinja2 that the engine lacks or that differ there.

use minijinja::value::{Kwargs, Rest, Tuple, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, State, filters};
use minijinja_contrib::filters as contributed;

use super::arguments::{bind, flag, integer, required, split, string};
use super::limits::{charge_filter_input, charge_output, check_width, refused};
use super::{formats, json, python, strings};

type Filter = fn(&mut State, &Value, &[Value]) -> Result<Value, Error>;

const FILTERS: [(&str, Filter); 36] = [
    ("abs", |_, value, _| match bool::try_from(value.clone()) {
        Ok(flag) => Ok(i64::from(flag).into()),
        Err(_) => filters::abs(value.clone()),
    }),
    // Attributes of Python's dictionaries are methods, not entries.
    ("attr", |_, value, args| match python::is_dict(value) {
        true => Ok(Value::UNDEFINED),
        false => filters::attr(value, &required(bind(args, ["name"])?[0].clone())?),
    }),
    ("capitalize", |_, value, _| {
        let text = python::text(value);
        let rest = text.chars().next().map_or(0, char::len_utf8);
        Ok(with_safety(value, text[..rest].to_uppercase() + &text[rest..].to_lowercase()))
    }),
    ("center", |_, value, args| {
        let [width] = bind(args, ["width"])?;
        let width = width.unwrap_or_else(|| 80.into());
        method(&python::text(value), "center", &[width])
    }),
    ("count", |_, value, args| length(value, args)),
    ("d", |_, value, args| default(value, args)),
    ("default", |_, value, args| default(value, args)),
    ("dictsort", |_, value, args| dictsort(value, args)),
    ("e", |_, value, _| Ok(escape(value))),
    ("escape", |_, value, _| Ok(escape(value))),
    ("filesizeformat", |_, value, args| {
        let [binary] = bind(args, ["binary"])?;
        let bytes = f64::try_from(value.clone())?;
        Ok(contributed::filesizeformat(bytes, Some(flag(&binary))).into())
    }),
    ("first", |_, value, _| match value.is_undefined() {
        true => Ok(Value::UNDEFINED),
        false => filters::first(value),
    }),
    ("float", |_, value, args| float(value, args)),
    ("forceescape", |_, value, _| Ok(Value::from_safe_string(python::html(&python::text(value))))),
    ("format", |_, value, args| {
        let (positional, named) = split(args);
        let values = named.cloned().unwrap_or_else(|| Tuple::from(positional).into());
        Ok(formats::percent(&python::text(value), &values)?.into())
    }),
    ("indent", |_, value, args| indent(value, args)),
    ("int", |_, value, args| int(value, args)),
    ("items", |_, value, _| match value.kind() {
        ValueKind::Undefined => Ok(Value::from(Vec::<Value>::new())),
        _ => filters::items(value),
    }),
    ("join", |_, value, args| join(value, args)),
    ("last", |_, value, _| match value.is_undefined() {
        true => Ok(Value::UNDEFINED),
        false => filters::last(value.clone()),
    }),
    ("length", |_, value, args| length(value, args)),
    ("list", |_, value, _| items(value).map(Value::from)),
    ("lower", |_, value, _| Ok(with_safety(value, python::text(value).to_lowercase()))),
    ("pprint", |_, value, _| Ok(python::repr(value).into())),
    ("replace", |_, value, args| {
        let [old, new, count] = bind(args, ["old", "new", "count"])?;
        let [old, new] = [required(old)?, required(new)?].map(|value| python::text(&value));
        let replaced = strings::replaced(&python::text(value), &old, &new, integer(count)?)?;
        Ok(with_safety(value, replaced))
    }),
    ("reverse", |_, value, _| match python::is_dict(value) {
        true => items(value)?.into_iter().collect::<Value>().reverse(),
        false => value.reverse(),
    }),
    ("safe", |_, value, _| Ok(Value::from_safe_string(python::text(value)))),
    ("sort", |state, value, args| {
        let named = named(args, ["reverse", "case_sensitive", "attribute"])?;
        let sorted = filters::sort(state, value.clone(), named)?;
        let all: Vec<Value> = sorted.try_iter()?.collect();
        match all.windows(2).find(|pair| !is_ordered(&pair[0], &pair[1])) {
            Some(pair) => {
                let (a, b) = (pair[0].kind(), pair[1].kind());
                Err(refused(format!("sort: cannot compare {a} and {b}")))
            }
            None => Ok(sorted),
        }
    }),
    ("string", |_, value, _| {
        Ok(if value.is_safe() { value.clone() } else { python::text(value).into() })
    }),
    ("striptags", |_, value, _| Ok(contributed::striptags(python::text(value)).into())),
    ("title", |_, value, _| Ok(with_safety(value, filters::title(python::text(value).into())))),
    ("tojson", |_, value, args| Ok(json::Style::from_arguments(args)?.text(value)?.into())),
    ("trim", |_, value, args| {
        let [chars] = bind(args, ["chars"])?;
        let chars: Vec<Value> = chars.into_iter().collect();
        let trimmed = method(&python::text(value), "strip", &chars)?;
        Ok(with_safety(value, python::text(&trimmed)))
    }),
    ("truncate", |_, value, args| truncate(value, args)),
    ("unique", |state, value, args| {
        filters::unique(state, value.clone(), named(args, ["case_sensitive", "attribute"])?)
    }),
    ("upper", |_, value, _| Ok(with_safety(value, python::text(value).to_uppercase()))),
];

/// Adds the filters, and removes the engine's that Jinja2 lacks.
pub(super) fn install(environment: &mut Environment) {
    for (name, filter) in FILTERS {
        environment.add_filter(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            let (value, rest) = args.split_first().ok_or_else(|| required(None).unwrap_err())?;
            rest.iter().try_for_each(charge_filter_input)?;
            filter(state, value, rest)
        });
    }
    environment.add_filter("wordcount", |value: Value| {
        let text = python::text(&value);
        let is_separator = |c: char| !c.is_alphanumeric() && c != '_';
        text.split(is_separator).filter(|word| !word.is_empty()).count()
    });
    environment.add_filter("urlencode", |value: Value| urlencode(&value));
    // The depth of the output of `chain` and `zip` would not be limited.
    for name in ["chain", "zip", "split", "lines", "bool"] {
        environment.remove_filter(name);
    }
}

/// Returns the arguments by name, for the engine's filters that take no others.
fn named<const N: usize>(args: &[Value], names: [&str; N]) -> Result<Kwargs, Error> {
    let all = bind(args, names)?;
    let given = names.into_iter().zip(all).filter_map(|(name, value)| Some((name, value?)));
    Ok(given.collect())
}

fn method(text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    required(strings::call(text, name, args)?)
}

/// Marks a text as safe if the value that it was made of is.
fn with_safety(value: &Value, text: String) -> Value {
    if value.is_safe() { Value::from_safe_string(text) } else { text.into() }
}

/// Escapes text for HTML unless it is marked as safe.
pub(super) fn escape(value: &Value) -> Value {
    match value.is_safe() {
        true => value.clone(),
        false => Value::from_safe_string(python::html(&python::text(value))),
    }
}

/// Returns whether Python compares two values by order.
fn is_ordered(a: &Value, b: &Value) -> bool {
    let is_number = |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool);
    (is_number(a) && is_number(b)) || (a.kind() == b.kind() && !a.is_none())
}

/// Returns the items of a value; `none` has none that could be iterated.
pub(super) fn items(value: &Value) -> Result<Vec<Value>, Error> {
    match value.is_none() {
        true => Err(refused("none is not iterable".to_owned())),
        false => Ok(value.try_iter()?.collect()),
    }
}

fn length(value: &Value, args: &[Value]) -> Result<Value, Error> {
    bind(args, [])?;
    match value.is_undefined() {
        true => Ok(0.into()),
        false => filters::length(value).map(Value::from),
    }
}

fn default(value: &Value, args: &[Value]) -> Result<Value, Error> {
    let [default, boolean] = bind(args, ["default_value", "boolean"])?;
    let is_missing = value.is_undefined() || (flag(&boolean) && !value.is_true());
    Ok(if is_missing { default.unwrap_or_else(|| "".into()) } else { value.clone() })
}

fn dictsort(value: &Value, args: &[Value]) -> Result<Value, Error> {
    let [case_sensitive, by, reverse] = bind(args, ["case_sensitive", "by", "reverse"])?;
    let by = match string(by, "key")?.as_str() {
        "key" => 0,
        "value" => 1,
        other => return Err(refused(format!("dictsort: by {other:?}"))),
    };
    if value.kind() != ValueKind::Map {
        return Err(refused(format!("dictsort: expected a map, got {}", value.kind())));
    }
    let mut all: Vec<[Value; 2]> = Vec::new();
    for key in value.try_iter()? {
        let item = value.get_item(&key)?;
        all.push([key, item]);
    }
    let key = |pair: &[Value; 2]| match pair[by].as_str() {
        Some(text) if !flag(&case_sensitive) => Value::from(text.to_lowercase()),
        _ => pair[by].clone(),
    };
    let is_reversed = flag(&reverse);
    all.sort_by(|a, b| {
        let (a, b) = if is_reversed { (b, a) } else { (a, b) };
        key(a).cmp(&key(b))
    });
    Ok(all.into_iter().map(|pair| Value::from(Tuple::from(pair))).collect())
}

fn float(value: &Value, args: &[Value]) -> Result<Value, Error> {
    let [default] = bind(args, ["default"])?;
    let number = match value.kind() {
        ValueKind::Undefined => return Err(refused("float: the value is undefined".to_owned())),
        ValueKind::String => parsed_float(value.as_str().unwrap_or_default()),
        ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        _ => f64::try_from(value.clone()).ok(),
    };
    Ok(number.map_or_else(|| default.unwrap_or_else(|| 0.0.into()), Value::from))
}

fn parsed_float(text: &str) -> Option<f64> {
    plain_digits(text)?.parse().ok()
}

/// Removes white space around a number and underscores between its digits.
fn plain_digits(text: &str) -> Option<String> {
    let text = text.trim_matches(python::is_space);
    let is_valid = !text.starts_with('_') && !text.ends_with('_') && !text.contains("__");
    is_valid.then(|| text.replace('_', ""))
}

fn int(value: &Value, args: &[Value]) -> Result<Value, Error> {
    let [default, base] = bind(args, ["default", "base"])?;
    let base = integer(base)?.unwrap_or(10);
    let truncated = |number: f64| match number.abs() < 1e38 || number.is_nan() {
        true => Ok(Value::from(number.trunc() as i128)),
        false => Err(refused(format!("int: expected a number below 1e38, got {number:e}"))),
    };
    let number = match value.kind() {
        ValueKind::Undefined => return Err(refused("int: the value is undefined".to_owned())),
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default();
            let whole = plain_digits(text).and_then(|text| parsed_int(&text, base));
            match whole {
                Some(whole) => Some(whole.into()),
                None => parsed_float(text).map(truncated).transpose()?,
            }
        }
        ValueKind::Bool => Some(i64::from(value.is_true()).into()),
        ValueKind::Number if value.is_integer() => Some(value.clone()),
        ValueKind::Number => {
            let number = f64::try_from(value.clone())?;
            Some(truncated(number)?).filter(|_| !number.is_nan())
        }
        _ => None,
    };
    Ok(number.unwrap_or_else(|| default.unwrap_or_else(|| 0.into())))
}

/// Parses a whole number with an optional prefix of its base; base 0 is that of the prefix.
fn parsed_int(text: &str, base: i64) -> Option<i128> {
    let unsigned = text.trim_start_matches(['-', '+']);
    let sign = if text.starts_with('-') { "-" } else { "" };
    let prefix = unsigned.get(..2).unwrap_or_default().to_lowercase();
    let named = [("0x", 16), ("0o", 8), ("0b", 2)].into_iter().find(|(name, _)| *name == prefix);
    let (digits, base) = match named {
        Some((_, of_prefix)) if base == 0 || base == of_prefix => (&unsigned[2..], of_prefix),
        _ => (unsigned, if base == 0 { 10 } else { base }),
    };
    let base = u32::try_from(base).ok().filter(|base| (2..=36).contains(base))?;
    let is_valid = text.len() - unsigned.len() <= 1 && !digits.starts_with(['-', '+']);
    i128::from_str_radix(&format!("{sign}{digits}"), base).ok().filter(|_| is_valid)
}

fn join(value: &Value, args: &[Value]) -> Result<Value, Error> {
    let [separator, attribute] = bind(args, ["d", "attribute"])?;
    let separator = separator.map(|value| python::text(&value)).unwrap_or_default();
    let attribute = attribute.filter(|attribute| !attribute.is_none());
    let mut out = String::new();
    for (index, item) in items(value)?.into_iter().enumerate() {
        let item = match &attribute {
            Some(path) => path_of(&item, path)?,
            None => item,
        };
        let item = python::text(&item);
        charge_output(item.len() + separator.len())?;
        out.push_str(if index > 0 { &separator } else { "" });
        out.push_str(&item);
    }
    Ok(out.into())
}

/// Returns an attribute such as `function.name`, or the item at an index.
fn path_of(value: &Value, path: &Value) -> Result<Value, Error> {
    match path.as_str() {
        None => value.get_item(path),
        Some(path) => path.split('.').try_fold(value.clone(), |value, part| {
            let index = part.parse::<usize>().map_or_else(|_| Value::from(part), Value::from);
            value.get_item(&index)
        }),
    }
}

fn indent(value: &Value, args: &[Value]) -> Result<Value, Error> {
    let [width, first, blank] = bind(args, ["width", "first", "blank"])?;
    let indentation = match width {
        Some(text) if text.as_str().is_some() => python::text(&text),
        width => {
            let width = usize::try_from(integer(width)?.unwrap_or(4)).unwrap_or(0);
            check_width(width)?;
            " ".repeat(width)
        }
    };
    let text = python::text(value) + "\n";
    let lines = method(&text, "splitlines", &[])?;
    let mut out = String::new();
    for (index, line) in lines.try_iter()?.enumerate() {
        let line = python::text(&line);
        charge_output(line.len() + indentation.len() + 1)?;
        out.push_str(if index > 0 { "\n" } else { "" });
        let is_indented = if index == 0 { flag(&first) } else { flag(&blank) || !line.is_empty() };
        out.push_str(if is_indented { &indentation } else { "" });
        out.push_str(&line);
    }
    Ok(with_safety(value, out))
}

fn truncate(value: &Value, args: &[Value]) -> Result<Value, Error> {
    let [length, killwords, end, leeway] = bind(args, ["length", "killwords", "end", "leeway"])?;
    let end = string(end, "...")?;
    let number = |value, default| -> Result<usize, Error> {
        let number = integer(value)?.unwrap_or(default);
        usize::try_from(number).map_err(|_| refused(format!("truncate: got {number}")))
    };
    let (length, leeway) = (number(length, 255)?, number(leeway, 5)?);
    let text = python::text(value);
    let limit = length.checked_sub(end.chars().count());
    let limit = limit.ok_or_else(|| refused(format!("truncate: expected {end:?} to fit")))?;
    if text.chars().count() <= length.saturating_add(leeway) {
        return Ok(value.clone());
    }
    let cut: String = text.chars().take(limit).collect();
    let cut = match cut.rsplit_once(' ') {
        Some((words, _)) if !flag(&killwords) => words,
        _ => &cut,
    };
    Ok(format!("{cut}{end}").into())
}

/// Encodes text for the path of an address, or pairs for its query.
fn urlencode(value: &Value) -> Result<String, Error> {
    let quoted = |value: &Value, is_query: bool| {
        let mut out = String::new();
        for byte in python::text(value).bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => {
                    out.push(char::from(byte));
                }
                b'/' if !is_query => out.push('/'),
                b' ' if is_query => out.push('+'),
                byte => out.push_str(&format!("%{byte:02X}")),
            }
        }
        out
    };
    let pairs = match value.kind() {
        ValueKind::Map => filters::items(value)?,
        ValueKind::Seq | ValueKind::Iterable => value.clone(),
        _ => return Ok(quoted(value, false)),
    };
    let mut all = Vec::new();
    for pair in pairs.try_iter()? {
        let [key, item] = [0, 1].map(|at| pair.get_item_by_index(at));
        all.push(format!("{}={}", quoted(&key?, true), quoted(&item?, true)));
    }
    Ok(all.join("&"))
}
