//! Methods of Python's strings that the engine's library lacks or that differ there.

use minijinja::value::{Tuple, Value, ValueKind};
use minijinja::{Error, ErrorKind};

use super::arguments::{bind, flag, integer, required, split, string};
use super::limits::{charge_output, check_width, refused};
use super::{formats, python};

/// Calls a method; `None` if the engine's library has it.
pub(super) fn call(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let one = |name| -> Result<String, Error> {
        let [argument] = bind(args, [name])?;
        string(Some(required(argument)?), "")
    };
    let none = || bind(args, []).map(|[]| ());
    let value = match method {
        "strip" | "lstrip" | "rstrip" | "split" | "rsplit" | "splitlines" => {
            return strip_or_split(text, method, args).map(Some);
        }
        "find" | "rfind" | "index" | "rindex" | "count" | "startswith" | "endswith" => {
            return search(text, method, args).map(Some);
        }
        "center" | "ljust" | "rjust" | "zfill" | "expandtabs" => padded(text, method, args)?.into(),
        "removeprefix" => text.strip_prefix(&one("prefix")?).unwrap_or(text).into(),
        "removesuffix" => text.strip_suffix(&one("suffix")?).unwrap_or(text).into(),
        "partition" | "rpartition" => {
            let separator = one("sep")?;
            check_separator(&separator)?;
            let first = method == "partition";
            let halves =
                if first { text.split_once(&separator) } else { text.rsplit_once(&separator) };
            let all = match halves {
                Some((before, after)) => [before, &separator, after],
                None if first => [text, "", ""],
                None => ["", "", text],
            };
            Value::from(Tuple::from(all.map(Value::from)))
        }
        "replace" => {
            let [old, new, count] = bind(args, ["old", "new", "count"])?;
            let (old, new) = (string(Some(required(old)?), "")?, string(Some(required(new)?), "")?);
            replaced(text, &old, &new, integer(count)?)?.into()
        }
        "join" => {
            let [items] = bind(args, ["iterable"])?;
            let mut out = String::new();
            for (index, item) in required(items)?.try_iter()?.enumerate() {
                let item = item.as_str().map(str::to_owned).ok_or_else(|| {
                    refused(format!("join: item {index}: expected a string, got {}", item.kind()))
                })?;
                charge_output(item.len() + text.len())?;
                out.push_str(if index > 0 { text } else { "" });
                out.push_str(&item);
            }
            out.into()
        }
        "format" => {
            let (positional, named) = split(args);
            formats::braces(text, positional, named)?.into()
        }
        "format_map" => {
            let [values] = bind(args, ["mapping"])?;
            formats::braces(text, &[], Some(&required(values)?))?.into()
        }
        "title" => none().map(|()| title(text))?.into(),
        "swapcase" => {
            none()?;
            let swapped = |c: char| match c.is_uppercase() {
                true => c.to_lowercase().collect::<String>(),
                false => c.to_uppercase().collect(),
            };
            text.chars().map(swapped).collect::<String>().into()
        }
        "casefold" => {
            none()?;
            let folded = text.chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase);
            folded.collect::<String>().into()
        }
        "isspace" => all_are(text, python::is_space).into(),
        "isdecimal" | "isdigit" | "isnumeric" => {
            // Superscripts are digits, fractions are only numeric.
            let is_fraction = |c: char| "¼½¾".contains(c) || ('⅐'..='⅞').contains(&c);
            let is_superscript = |c: char| "²³¹⁰⁴⁵⁶⁷⁸⁹₀₁₂₃₄₅₆₇₈₉".contains(c);
            let is_digit = |c: char| match method {
                "isdecimal" => c.is_numeric() && !is_fraction(c) && !is_superscript(c),
                "isdigit" => c.is_numeric() && !is_fraction(c),
                _ => c.is_numeric() || "〇一二三四五六七八九十百千万億".contains(c),
            };
            all_are(text, is_digit).into()
        }
        "istitle" => (text.chars().any(is_cased) && title(text) == text).into(),
        "isidentifier" => {
            let starts = text.starts_with(|c: char| c.is_alphabetic() || c == '_');
            (starts && all_are(text, |c| c.is_alphanumeric() || c == '_')).into()
        }
        "isprintable" => text.chars().all(python::is_printable).into(),
        _ => return Ok(None),
    };
    Ok(Some(value))
}

fn all_are(text: &str, holds: impl Fn(char) -> bool) -> bool {
    !text.is_empty() && text.chars().all(holds)
}

fn check_separator(separator: &str) -> Result<(), Error> {
    if separator.is_empty() { Err(refused("empty separator".to_owned())) } else { Ok(()) }
}

fn is_cased(c: char) -> bool {
    c.is_uppercase() || c.is_lowercase()
}

/// Capitalises each word; any character without case ends one.
fn title(text: &str) -> String {
    let mut is_inside = false;
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match is_inside {
            true => out.extend(c.to_lowercase()),
            false => out.extend(c.to_uppercase()),
        }
        is_inside = is_cased(c);
    }
    out
}

/// Replaces the first `count` occurrences, or all.
pub(super) fn replaced(
    text: &str,
    old: &str,
    new: &str,
    count: Option<i64>,
) -> Result<String, Error> {
    let count = count.map_or(usize::MAX, |count| usize::try_from(count).unwrap_or(usize::MAX));
    let found = text.matches(old).take(count).count();
    charge_output(text.len().saturating_add(found.saturating_mul(new.len())))?;
    Ok(text.replacen(old, new, count))
}

fn strip_or_split(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    if method == "splitlines" {
        let [keep] = bind(args, ["keepends"])?;
        return Ok(lines(text, flag(&keep)).into_iter().map(Value::from).collect());
    }
    let [chars, most] = match method {
        "split" | "rsplit" => bind(args, ["sep", "maxsplit"])?,
        _ => bind(args, ["chars"]).map(|[chars]| [chars, None])?,
    };
    let chars = chars.filter(|chars| !chars.is_none()).map(|chars| string(Some(chars), ""));
    let chars = chars.transpose()?;
    let most = integer(most)?.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX - 1);
    let set = |c: char| match &chars {
        Some(chars) => chars.contains(c),
        None => python::is_space(c),
    };
    let mut all: Vec<&str> = match (method, &chars) {
        ("strip", _) => return Ok(text.trim_matches(set).into()),
        ("lstrip", _) => return Ok(text.trim_start_matches(set).into()),
        ("rstrip", _) => return Ok(text.trim_end_matches(set).into()),
        ("split", None) => return Ok(words(text, most).into_iter().map(Value::from).collect()),
        (_, None) => {
            let mut all = Vec::new();
            let mut rest = text.trim_end_matches(set);
            while let Some(at) = rest.rfind(set).filter(|_| all.len() < most) {
                let after = at + rest[at..].chars().next().map_or(0, char::len_utf8);
                all.push(&rest[after..]);
                rest = rest[..at].trim_end_matches(set);
            }
            all.extend(Some(rest).filter(|rest| !rest.is_empty()));
            all
        }
        ("split", Some(separator)) => {
            check_separator(separator)?;
            return Ok(text.splitn(most + 1, separator).map(Value::from).collect());
        }
        (_, Some(separator)) => {
            check_separator(separator)?;
            text.rsplitn(most + 1, separator).collect()
        }
    };
    all.reverse();
    Ok(all.into_iter().map(Value::from).collect())
}

/// Splits at white space, at most `most` times.
fn words(text: &str, most: usize) -> Vec<&str> {
    let mut all = Vec::new();
    let mut rest = text.trim_start_matches(python::is_space);
    while !rest.is_empty() {
        let end = rest.find(python::is_space).filter(|_| all.len() < most);
        let (word, after) = rest.split_at(end.unwrap_or(rest.len()));
        all.push(word);
        rest = after.trim_start_matches(python::is_space);
    }
    all
}

/// Splits into lines, with or without their ends.
fn lines(text: &str, keep: bool) -> Vec<&str> {
    let mut all = Vec::new();
    let mut rest = text;
    let ends = |c| matches!(c, '\n'..='\r' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}');
    while let Some(at) = rest.find(ends) {
        let end = rest[at..].chars().next().map_or(0, char::len_utf8);
        let end = at + if rest[at..].starts_with("\r\n") { 2 } else { end };
        all.push(&rest[..if keep { end } else { at }]);
        rest = &rest[end..];
    }
    all.extend(Some(rest).filter(|rest| !rest.is_empty()));
    all
}

fn search(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let [needle, start, end] = bind(args, ["sub", "start", "end"])?;
    let needle = required(needle)?;
    let length = text.chars().count();
    let position = |value: Option<Value>, default: usize| -> Result<usize, Error> {
        Ok(match integer(value)? {
            None => default,
            Some(at @ ..0) => length.saturating_sub(usize::try_from(-at).unwrap_or(length)),
            Some(at) => usize::try_from(at).unwrap_or(usize::MAX),
        })
    };
    let (start, end) = (position(start, 0)?, position(end, length)?.min(length));
    let byte = |at| text.char_indices().nth(at).map_or(text.len(), |(byte, _)| byte);
    // A position behind the end finds nothing, not even an empty string.
    let section = (start <= end).then(|| &text[byte(start)..byte(end)]);
    if matches!(method, "startswith" | "endswith") {
        let matches = |affix: &Value| -> Result<bool, Error> {
            let affix = string(Some(affix.clone()), "")?;
            Ok(section.is_some_and(|section| match method {
                "startswith" => section.starts_with(&affix),
                _ => section.ends_with(&affix),
            }))
        };
        let found = match needle.is_tuple() {
            true => needle
                .try_iter()?
                .try_fold(false, |found, affix| Ok::<_, Error>(matches(&affix)? || found))?,
            false => matches(&needle)?,
        };
        return Ok(found.into());
    }
    let needle = string(Some(needle), "")?;
    if method == "count" {
        return Ok(section.map_or(0, |section| section.matches(&needle).count()).into());
    }
    let found = section.and_then(|section| {
        let at =
            if method.starts_with('r') { section.rfind(&needle) } else { section.find(&needle) };
        at.map(|at| start + section[..at].chars().count())
    });
    match found {
        Some(at) => Ok(at.into()),
        None if method.ends_with("index") => Err(refused("substring not found".to_owned())),
        None => Ok((-1).into()),
    }
}

fn padded(text: &str, method: &str, args: &[Value]) -> Result<String, Error> {
    let [width, fill] = match method {
        "expandtabs" => bind(args, ["tabsize"]).map(|[size]| [size, None])?,
        "zfill" => bind(args, ["width"]).map(|[width]| [width, None])?,
        _ => bind(args, ["width", "fillchar"])?,
    };
    let width = match integer(width)? {
        None if method == "expandtabs" => 8,
        None => return Err(Error::from(ErrorKind::MissingArgument)),
        Some(width) => usize::try_from(width).unwrap_or(0),
    };
    check_width(width)?;
    if method == "expandtabs" {
        charge_output(text.len().saturating_add(text.matches('\t').count() * width))?;
        return Ok(expanded(text, width));
    }
    let fill = string(fill, if method == "zfill" { "0" } else { " " })?;
    if fill.chars().count() != 1 {
        return Err(refused(format!("expected one character to fill with, got {fill:?}")));
    }
    let length = text.chars().count();
    let missing = width.saturating_sub(length);
    charge_output(text.len() + missing * fill.len())?;
    let left = match method {
        "ljust" => 0,
        "center" => missing / 2 + (missing & width & 1),
        _ => missing,
    };
    let (sign, digits) = match method {
        "zfill" if text.starts_with(['-', '+']) => text.split_at(1),
        _ => ("", text),
    };
    Ok([sign, &fill.repeat(left), digits, &fill.repeat(missing - left)].concat())
}

/// Replaces tabs by spaces up to the next multiple of `size` columns.
fn expanded(text: &str, size: usize) -> String {
    let mut column = 0;
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\t' => {
                let spaces = if size == 0 { 0 } else { size - column % size };
                out.extend(std::iter::repeat_n(' ', spaces));
                column += spaces;
            }
            '\n' | '\r' => {
                out.push(c);
                column = 0;
            }
            c => {
                out.push(c);
                column += 1;
            }
        }
    }
    out
}

/// Returns `value[start:stop:step]`.
pub(super) fn sliced(value: &Value, args: &[Value]) -> Result<Value, Error> {
    let [start, stop, step] = bind(args, ["start", "stop", "step"])?;
    let step = integer(step)?.unwrap_or(1);
    if step == 0 {
        return Err(refused("slice step cannot be zero".to_owned()));
    }
    let items: Vec<Value> = match value.kind() {
        ValueKind::String | ValueKind::Seq | ValueKind::Iterable => value.try_iter()?.collect(),
        ValueKind::Undefined => return Err(Error::from(ErrorKind::UndefinedError)),
        _ => return Ok(Value::UNDEFINED),
    };
    let length = items.len() as i64;
    // Bounds of a slice: below the first item there is one more place when going backwards.
    let (lowest, highest) = if step < 0 { (-1, length - 1) } else { (0, length) };
    let bounded = |at: Option<i64>, default: i64| match at {
        None => default,
        Some(at) => (if at < 0 { at.saturating_add(length) } else { at }).clamp(lowest, highest),
    };
    let (first, last) = if step < 0 { (highest, lowest) } else { (lowest, highest) };
    let (mut at, stop) = (bounded(integer(start)?, first), bounded(integer(stop)?, last));
    let mut picked = Vec::new();
    while if step < 0 { at > stop } else { at < stop } {
        picked.extend(usize::try_from(at).ok().and_then(|at| items.get(at)).cloned());
        at = at.saturating_add(step);
    }
    Ok(match value.kind() {
        ValueKind::String => picked.iter().filter_map(Value::as_str).collect::<String>().into(),
        _ if value.is_tuple() => Value::from(Tuple::from(picked)),
        _ => Value::from(picked),
    })
}
