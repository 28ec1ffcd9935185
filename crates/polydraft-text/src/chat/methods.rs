//! Methods of Python's values, and operators that the engine lacks, as methods.

use minijinja::Error;
use minijinja::value::{Value, ValueKind};

use super::arguments::{bound, integer, required};
use super::limits::refused;
use super::{formats, measured, python, strings};

/// Calls a method; `None` if the engine's library has it.
pub(super) fn call(value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    match (method, value.kind()) {
        (measured::SLICE, _) => strings::sliced(value, args).map(Some),
        (measured::PERCENT, ValueKind::String) => {
            let [values] = bound(args, ["values"])?;
            let text = value.as_str().unwrap_or_default();
            Ok(Some(formats::percent(text, &required(values)?)?.into()))
        }
        (_, ValueKind::String) => strings::call(value.as_str().unwrap_or_default(), method, args),
        ("index", ValueKind::Seq | ValueKind::Iterable) => index(value, args).map(Some),
        ("count", ValueKind::Seq | ValueKind::Iterable) => {
            let [item] = bound(args, ["value"])?;
            let item = required(item)?;
            Ok(Some(value.try_iter()?.filter(|other| *other == item).count().into()))
        }
        ("copy", ValueKind::Seq | ValueKind::Map) => bound(args, []).map(|[]| Some(value.clone())),
        ("is_integer", ValueKind::Number) => {
            let is_whole = f64::try_from(value.clone()).is_ok_and(|number| number.fract() == 0.0);
            Ok(Some((value.is_integer() || is_whole).into()))
        }
        _ => Ok(None),
    }
}

/// Returns the position of an item between optional bounds.
fn index(value: &Value, args: &[Value]) -> Result<Value, Error> {
    let [item, start, stop] = bound(args, ["value", "start", "stop"])?;
    let item = required(item)?;
    let length = value.len().unwrap_or(0);
    let position = |at: Option<i64>, default| match at {
        None => default,
        Some(at @ ..0) => length.saturating_sub(usize::try_from(-at).unwrap_or(length)),
        Some(at) => usize::try_from(at).unwrap_or(length),
    };
    let (start, stop) = (position(integer(start)?, 0), position(integer(stop)?, length));
    let found = value.try_iter()?.enumerate().take(stop).skip(start);
    let found = found.into_iter().find(|(_, other)| *other == item);
    found.map(|(at, _)| at.into()).ok_or_else(|| {
        refused(format!("{} is not in the list", python::repr(&item)))
    })
}

/// Returns a map of key and value pairs.
pub(super) fn from_pairs(pairs: &Value) -> Result<Value, Error> {
    let mut all = Vec::new();
    for pair in pairs.try_iter()? {
        let both: Vec<Value> = pair.try_iter()?.take(3).collect();
        let [key, value] = <[Value; 2]>::try_from(both)
            .map_err(|_| refused("dict: expected pairs of key and value".to_owned()))?;
        all.push((key, value));
    }
    Ok(Value::from_pairs(all))
}
