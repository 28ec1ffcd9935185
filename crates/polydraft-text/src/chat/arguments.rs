//! Arguments of filters and methods, by position or by name as in Python.

use minijinja::value::Value;
use minijinja::{Error, ErrorKind};

use super::limits::refused;

/// Returns the arguments of a call by the names of its parameters; `None` if missing.
pub(super) fn bind<const N: usize>(
    args: &[Value],
    names: [&str; N],
) -> Result<[Option<Value>; N], Error> {
    let (positional, named) = split(args);
    if positional.len() > N {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let mut all = [const { None }; N];
    for (slot, value) in all.iter_mut().zip(positional) {
        *slot = Some(value.clone());
    }
    for key in named.map(Value::try_iter).transpose()?.into_iter().flatten() {
        let slot = names.iter().position(|name| key.as_str() == Some(name));
        let slot = slot.ok_or_else(|| refused(format!("unexpected keyword argument {key}")))?;
        let value = named.map(|named| named.get_item(&key)).transpose()?;
        if all[slot].is_some() {
            return Err(refused(format!("got several values for argument {key}")));
        }
        all[slot] = value;
    }
    Ok(all)
}

/// Splits arguments into those by position and the map of those by name.
pub(super) fn split(args: &[Value]) -> (&[Value], Option<&Value>) {
    match args.split_last() {
        Some((last, rest)) if last.is_kwargs() => (rest, Some(last)),
        _ => (args, None),
    }
}

/// Returns a required argument.
pub(super) fn required(value: Option<Value>) -> Result<Value, Error> {
    value.ok_or_else(|| Error::from(ErrorKind::MissingArgument))
}

/// Returns a string argument, or the default.
pub(super) fn string(value: Option<Value>, default: &str) -> Result<String, Error> {
    match value {
        None => Ok(default.to_owned()),
        Some(value) => match value.as_str() {
            Some(text) => Ok(text.to_owned()),
            None => Err(refused(format!("expected a string, got {}", value.kind()))),
        },
    }
}

/// Returns a whole number; `None` if it is missing or `none`.
pub(super) fn integer(value: Option<Value>) -> Result<Option<i64>, Error> {
    match value.filter(|value| !value.is_none()) {
        None => Ok(None),
        Some(value) => match (bool::try_from(value.clone()), value.as_i64()) {
            (Ok(flag), _) => Ok(Some(flag.into())),
            (_, Some(number)) if value.is_integer() => Ok(Some(number)),
            _ => Err(refused(format!("expected a whole number, got {}", value.kind()))),
        },
    }
}

/// Returns the truth of an argument; false if missing.
pub(super) fn flag(value: &Option<Value>) -> bool {
    value.as_ref().is_some_and(Value::is_true)
}
