//! Methods of Python's values, and operators that the engine lacks, as methods.

use std::fmt;
use std::sync::Arc;

use minijinja::Error;
use minijinja::value::{Object, ObjectRepr, Value, ValueKind};

use super::arguments::{bind, integer, required};
use super::limits::{charge_filter_input, refused};
use super::operators::{ATTRIBUTE, ENTRY, METHODS, PERCENT, SLICE};
use super::{formats, python, strings};

/// Calls a method; `None` if the engine's library has it.
pub(super) fn call(value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    match (method, value.kind()) {
        (SLICE, _) => strings::sliced(value, args).map(Some),
        (PERCENT, ValueKind::String) => {
            let [values] = bind(args, ["values"])?;
            let text = value.as_str().unwrap_or_default();
            Ok(Some(formats::percent(text, &required(values)?)?.into()))
        }
        (ATTRIBUTE | ENTRY, _) => {
            let [name] = bind(args, ["name"])?;
            attribute(value, &required(name)?, method == ENTRY).map(Some)
        }
        (_, ValueKind::String) => strings::call(value.as_str().unwrap_or_default(), method, args),
        ("index", ValueKind::Seq | ValueKind::Iterable) => index(value, args).map(Some),
        ("count", ValueKind::Seq | ValueKind::Iterable) => {
            let [item] = bind(args, ["value"])?;
            let item = required(item)?;
            Ok(Some(value.try_iter()?.filter(|other| *other == item).count().into()))
        }
        ("copy", ValueKind::Seq | ValueKind::Map) => bind(args, []).map(|[]| Some(value.clone())),
        ("is_integer", ValueKind::Number) => {
            let is_whole = f64::try_from(value.clone()).is_ok_and(|number| number.fract() == 0.0);
            Ok(Some((value.is_integer() || is_whole).into()))
        }
        _ => Ok(None),
    }
}

/// Returns the value of `value.name`, or of `value['name']`, where the name is that of a method of
/// dictionaries.
fn attribute(value: &Value, name: &Value, is_item: bool) -> Result<Value, Error> {
    let item = value.get_item(name)?;
    let method = METHODS.into_iter().find(|method| name.as_str() == Some(method));
    match method.filter(|_| python::is_dict(value)) {
        Some(name) if !is_item || item.is_undefined() => Ok(Value::from_object(Method(name))),
        _ => Ok(item),
    }
}

/// Method of a dictionary that is not called. It does not hold the dictionary: the depth of such
/// values would not be limited.
struct Method(&'static str);

impl fmt::Debug for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<built-in method {} of dict object>", self.0)
    }
}

impl Object for Method {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
}

/// Returns the position of an item between optional bounds.
fn index(value: &Value, args: &[Value]) -> Result<Value, Error> {
    let [item, start, stop] = bind(args, ["value", "start", "stop"])?;
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
    found
        .map(|(at, _)| at.into())
        .ok_or_else(|| refused(format!("{} is not in the list", python::repr(&item))))
}

/// Returns a map of key and value pairs.
pub(super) fn from_pairs(pairs: &Value) -> Result<Value, Error> {
    charge_filter_input(pairs)?;
    let mut all = Vec::new();
    for pair in pairs.try_iter()? {
        let both: Vec<Value> = pair.try_iter()?.take(3).collect();
        let [key, value] = <[Value; 2]>::try_from(both)
            .map_err(|_| refused("dict: expected pairs of key and value".to_owned()))?;
        all.push((key, value));
    }
    Ok(Value::from_pairs(all))
}
