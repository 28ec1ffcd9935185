//! Limits of a running chat template: output size, bytes processed by filters, work, and time. They
//! apply to operators (through [`measured`](super::measured)), filters and methods with outputs
//! larger than their inputs. Operations are limited as well (fuel), by [`scan`](super::scan).

use std::cell::Cell;
use std::io;
use std::time::{Duration, Instant};

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

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
pub(super) fn check_deadline() -> Result<(), Error> {
    match DEADLINE.get() {
        Some(deadline) if Instant::now() > deadline => {
            Err(refused(format!("the template takes more than {} seconds", TIME_LIMIT.as_secs())))
        }
        _ => Ok(()),
    }
}

/// Evaluates a lazy sum of lists: the engine keeps sums of sums unevaluated, and a sum of 2^n empty
/// lists has no items that could be counted.
pub(super) fn flattened(value: Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Iterable => Ok(Value::from(value.try_iter()?.collect::<Vec<_>>())),
        _ => Ok(value),
    }
}

/// Evaluates a lazy list that is assigned to a variable, so that lists do not refer to unevaluated
/// lists.
pub(super) fn assigned(value: Value) -> Result<Value, Error> {
    if value.kind() != ValueKind::Iterable {
        return Ok(value);
    }
    check_deadline()?;
    let value = flattened(value)?;
    charge_work(value.len().unwrap_or(0))?;
    Ok(value)
}

/// Checks and evaluates the input of a filter, or a value that is stored in another.
pub(super) fn stored(value: Value) -> Result<Value, Error> {
    charge_filter_input(&value)?;
    flattened(value)
}

/// Fails for a value that holds others: where it is stored, their depth would not be limited.
pub(super) fn check_flat(value: &Value) -> Result<(), Error> {
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
pub(super) fn text_size(value: &Value, depth: usize) -> Result<usize, Error> {
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
pub(super) fn factor(value: Value) -> Result<Value, Error> {
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

pub(super) fn check_width(width: usize) -> Result<(), Error> {
    if width > MAX_WIDTH {
        return Err(refused(format!("expected a width of at most {MAX_WIDTH}, got {width}")));
    }
    Ok(())
}
