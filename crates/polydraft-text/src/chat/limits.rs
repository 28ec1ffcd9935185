//! Limits of a running chat template: output size, bytes processed by filters, work, and time. They
//! apply to operators (through [`measured`](super::measured)), filters and methods with outputs
//! larger than their inputs. Operations are limited as well (fuel), by [`scan`](super::scan).

use std::cell::Cell;
use std::io;
use std::time::{Duration, Instant};

use minijinja::value::{Kwargs, Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State, functions};

use minijinja_contrib::globals;

use super::{filters, measured, methods, python};

/// Output limit of a run in bytes, in addition to 16 times the size of the messages.
const OUTPUT_LIMIT: usize = 4 << 20;
/// Maximum width of a format or an indentation, in characters.
const MAX_WIDTH: usize = 10_000;
/// Maximum number of repetitions in a product of a string or list.
const MAX_REPEAT: usize = 1_000;
/// Maximum nesting depth of lists and objects.
const MAX_VALUE_DEPTH: usize = 100;
/// Maximum number of visited values per run.
const WORK_LIMIT: usize = 5_000_000;
/// Limit of bytes processed by filters, in addition to 64 times the size of the messages.
const FILTER_INPUT_LIMIT: usize = 64 << 20;
/// Time limit of a run: no sensible conversation takes this long on any machine.
const TIME_LIMIT: Duration = Duration::from_secs(5);

pub(super) fn refused(problem: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, problem)
}

thread_local! {
    /// Remaining output of this thread's run, in bytes.
    static OUTPUT_LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
    /// Remaining input of filters, in bytes.
    static FILTER_INPUT_LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
    /// Deadline of the run.
    static DEADLINE: Cell<Option<Instant>> = const { Cell::new(None) };
    /// Whether a product had a number above [`MAX_REPEAT`], and whether one had a string or a list.
    static FACTORS: Cell<(bool, bool)> = const { Cell::new((false, false)) };
    /// Remaining number of visited values.
    static WORK_LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Fails after the deadline.
fn check_deadline() -> Result<(), Error> {
    match DEADLINE.get() {
        Some(deadline) if Instant::now() > deadline => {
            Err(refused(format!("the template takes more than {} seconds", TIME_LIMIT.as_secs())))
        }
        _ => Ok(()),
    }
}

/// Evaluates a lazy sum of lists: the engine keeps sums of sums unevaluated, and a sum of 2^n empty
/// lists has no items that could be counted.
fn flattened(value: Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Iterable => Ok(Value::from(value.try_iter()?.collect::<Vec<_>>())),
        _ => Ok(value),
    }
}

/// Evaluates a lazy list that is assigned to a variable, so that lists do not refer to unevaluated
/// lists.
fn assigned(value: Value) -> Result<Value, Error> {
    if value.kind() != ValueKind::Iterable {
        return Ok(value);
    }
    check_deadline()?;
    let value = flattened(value)?;
    charge_work(value.len().unwrap_or(0))?;
    Ok(value)
}

/// Checks and evaluates the input of a filter, or a value that is stored in another.
fn stored(value: Value) -> Result<Value, Error> {
    charge_filter_input(&value)?;
    flattened(value)
}

/// Fails for a value that holds others: where it is stored, their depth would not be limited.
fn check_flat(value: &Value) -> Result<(), Error> {
    match value.as_object() {
        Some(_) => Err(refused(format!("expected text or a number, got {}", value.kind()))),
        None => Ok(()),
    }
}

/// Charges visited values.
fn charge_work(parts: usize) -> Result<(), Error> {
    let left = WORK_LEFT.get().checked_sub(parts).ok_or_else(|| {
        refused("the template does too much work on lists, and may never end".to_owned())
    })?;
    WORK_LEFT.set(left);
    Ok(())
}

/// Charges the input of a filter.
pub(super) fn charge_filter_input(value: &Value) -> Result<(), Error> {
    check_deadline()?;
    let left = FILTER_INPUT_LEFT.get().checked_sub(text_size(value, 0)?);
    FILTER_INPUT_LEFT.set(left.ok_or_else(|| {
        refused("the template does too much work on strings, and may never end".to_owned())
    })?);
    Ok(())
}

/// Returns the size of a value as text, in bytes; visited values are charged as work.
fn text_size(value: &Value, depth: usize) -> Result<usize, Error> {
    charge_work(1)?;
    if depth > MAX_VALUE_DEPTH {
        return Err(refused(format!("expected at most {MAX_VALUE_DEPTH} nested lists, got more")));
    }
    if let Some(text) = value.as_str() {
        return Ok(text.len() + 2);
    }
    match value.kind() {
        ValueKind::Map => value.try_iter()?.try_fold(2, |sum: usize, key| {
            let item = text_size(&value.get_item(&key)?, depth + 1)?;
            Ok(sum
                .saturating_add(text_size(&key, depth + 1)?)
                .saturating_add(item)
                .saturating_add(4))
        }),
        ValueKind::Seq | ValueKind::Iterable => {
            value.try_iter()?.try_fold(2, |sum: usize, item| {
                Ok(sum.saturating_add(text_size(&item, depth + 1)?).saturating_add(2))
            })
        }
        _ => Ok(32),
    }
}

/// Charges output bytes.
pub(super) fn charge_output(bytes: usize) -> Result<(), Error> {
    match OUTPUT_LEFT.get().checked_sub(bytes) {
        Some(left) => {
            OUTPUT_LEFT.set(left);
            Ok(())
        }
        None => Err(refused("the output of the template is longer than any prompt".to_owned())),
    }
}

/// Runs a template with limits for `input_bytes` bytes of messages, tools and variables.
pub(super) fn bounded(
    input_bytes: usize,
    run: impl FnOnce(&mut Bounded) -> Result<(), Error>,
) -> Result<String, Error> {
    let most = OUTPUT_LIMIT.saturating_add(input_bytes.saturating_mul(16));
    let outer = (OUTPUT_LEFT.replace(most), WORK_LEFT.replace(WORK_LIMIT));
    FACTORS.set((false, false));
    FILTER_INPUT_LEFT.set(FILTER_INPUT_LIMIT.saturating_add(input_bytes.saturating_mul(64)));
    DEADLINE.set(Some(Instant::now() + TIME_LIMIT));
    let mut text = Bounded { text: Vec::new(), most };
    let result = run(&mut text);
    OUTPUT_LEFT.set(outer.0);
    WORK_LEFT.set(outer.1);
    match result {
        Ok(()) => Ok(String::from_utf8_lossy(&text.text).into_owned()),
        Err(_) if text.most == 0 => {
            Err(refused(format!("expected an output of at most {most} bytes, got more")))
        }
        Err(e) => Err(e),
    }
}

/// Output buffer with a limit.
pub(super) struct Bounded {
    text: Vec<u8>,
    /// Limit in bytes; 0 after it was exceeded.
    most: usize,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.text.len() + bytes.len() > self.most {
            self.most = 0;
            return Err(io::Error::other("output limit exceeded"));
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Charges an operand of a product.
fn factor(value: Value) -> Result<Value, Error> {
    let (mut large, mut text) = FACTORS.get();
    match value.kind() {
        ValueKind::Number => large |= value.as_usize().is_some_and(|n| n > MAX_REPEAT),
        _ => {
            text = true;
            charge_output(text_size(&value, 0)?.saturating_mul(MAX_REPEAT))?;
        }
    }
    FACTORS.set((large, text));
    if large && text {
        return Err(refused(format!(
            "expected a string or a list repeated at most {MAX_REPEAT} times, got more"
        )));
    }
    flattened(value)
}

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

pub(super) fn check_width(width: usize) -> Result<(), Error> {
    if width > MAX_WIDTH {
        return Err(refused(format!("expected a width of at most {MAX_WIDTH}, got {width}")));
    }
    Ok(())
}
