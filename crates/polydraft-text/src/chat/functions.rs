//! Filters, methods and functions of a template, within the limits of a run.

use minijinja::value::{Kwargs, Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{AutoEscape, Environment, Error, Output, State, functions};
use minijinja_contrib::globals;

use super::limits::{
    assigned, charge_filter_input, charge_output, check_deadline, check_flat, factor, flattened,
    refused, stored, text_size,
};
use super::{filters, measured, methods, python};

/// Replaces or wraps filters, methods and functions whose output may be much larger than their
/// input.
pub(super) fn install(environment: &mut Environment) {
    environment.set_formatter(|out: &mut Output, state: &mut State, value: &Value| {
        // Also charges captured output, which does not reach the writer.
        charge_output(text_size(value, 0)?)?;
        match state.auto_escape() {
            AutoEscape::None => Ok(out.write_str(&python::text(value))?),
            _ => minijinja::escape_formatter(out, state, value),
        }
    });
    environment.add_filter(measured::JOINED, |value: Value| {
        charge_output(text_size(&value, 0)?)?;
        Ok::<_, Error>(if value.as_str().is_some() { value } else { python::text(&value).into() })
    });
    environment.add_filter(measured::ESCAPED, |value: Value| {
        charge_output(text_size(&value, 0)?)?;
        let value = if value.as_str().is_some() { filters::escape(&value) } else { value };
        charge_output(text_size(&value, 0)?)?;
        Ok::<_, Error>(value)
    });
    environment.add_filter(measured::ITERATED, |value: Value| match value.is_none() {
        true => Err(refused("none is not iterable".to_owned())),
        false => Ok(value),
    });
    environment.add_filter(measured::SPENT, |value: Value| {
        charge_output(text_size(&value, 0)?)?;
        flattened(value)
    });
    environment.add_function(measured::TICK, || check_deadline().map(|()| false));
    environment.add_function("cycler", |items: Rest<Value>| {
        items.iter().try_for_each(check_flat)?;
        globals::cycler(items.0)
    });
    environment.add_function("joiner", |separator: Option<Value>| {
        separator.iter().try_for_each(check_flat)?;
        Ok::<_, Error>(globals::joiner(separator))
    });
    environment.remove_global("debug");
    for name in [measured::INPUT, measured::BUILT, measured::STORED] {
        environment.add_filter(name, stored);
    }
    environment.add_filter(measured::TIMED, |value: Value| check_deadline().map(|()| value));
    environment.add_filter(measured::ASSIGNED, assigned);
    environment.add_function("dict", |value: Option<Value>, parts: Kwargs| {
        // Lists of pairs are maps too.
        let value = match value {
            Some(pairs) if matches!(pairs.kind(), ValueKind::Seq | ValueKind::Iterable) => {
                Some(methods::from_pairs(&pairs)?)
            }
            value => value,
        };
        stored(functions::dict(value, parts)?)
    });
    environment.add_function("namespace", |parts: Option<ValueOrKwargs>| {
        let names = parts.as_deref().map(Value::try_iter).transpose()?.into_iter().flatten();
        if let Some(name) = names.into_iter().find(|name| python::text(name).starts_with('_')) {
            return Err(refused(format!("namespace: a name that starts with _: {name}")));
        }
        stored(functions::namespace(parts)?)
    });
    environment.add_filter(measured::FACTOR, factor);
    // Python repeats a string less than zero times as zero times.
    environment.add_filter(measured::COUNT, |value: Value| {
        let value = factor(value)?;
        Ok::<_, Error>(if value.as_i64().is_some_and(|n| n < 0) { 0.into() } else { value })
    });
    environment.set_unknown_method_callback(|state, value, method, args| {
        charge_filter_input(value)?;
        args.iter().try_for_each(charge_filter_input)?;
        match methods::call(value, method, args)? {
            Some(result) => Ok(result),
            None => {
                minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
            }
        }
    });
    // The originals remain under names that no template can contain.
    environment.add_filter("library's batch", minijinja::filters::batch);
    environment.add_filter("library's slice", minijinja::filters::slice);
    for (name, original) in [("batch", "library's batch"), ("slice", "library's slice")] {
        environment.add_filter(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            // Number of lists, or number of items of the last list.
            let items = args.get(1).and_then(Value::as_usize).unwrap_or(0);
            charge_output(items.saturating_mul(32))?;
            state.apply_filter(original, &args)
        });
    }
}
