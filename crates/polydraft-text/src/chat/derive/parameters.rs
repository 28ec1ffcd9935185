//! Format of arguments that are written as parameters.

use serde_json::{Value, json};

use super::outputs::{Outputs, VALUES, call_form, single_form};
use super::segments::{Repetition, Segment, pieces, segments, text};
use super::{KEYS, slots};
use crate::output::{
    ArgumentForm, CallForm, Kind, Kinds, Nested, ParameterForm, Piece, ValueForm, read_value,
};

/// Values of each kind.
fn samples() -> [Value; Kind::ALL.len()] {
    [
        json!(VALUES[0]),
        json!(4217),
        json!(true),
        Value::Null,
        json!({ "zqin": ["zqdeep", true] }),
        json!(["zqdeep", { "zqin": 1 }]),
    ]
}

/// Derives the format of calls and of their parameters.
pub(super) fn derive(outputs: &Outputs, one: &str, two: Option<&str>) -> Option<CallForm> {
    let slots = slots_with_keys();
    let part = |text: &str| segments(text, &slots);
    let both = outputs.of(&[json!({ KEYS[0]: VALUES[0], KEYS[1]: VALUES[1] })])?;
    let key = |text: &str, number: usize, from: usize| {
        let start = from + text[from..].find(KEYS[number])?;
        Some((start, start + KEYS[number].len()))
    };
    let value = |text: &str, number: usize, from: usize| {
        let start = from + text[from..].find(VALUES[number])?;
        Some((start, start + VALUES[number].len()))
    };
    let first_key = key(&both, 0, 0)?;
    let first = value(&both, 0, first_key.1)?;
    let second_key = key(&both, 1, first.1)?;
    let second = value(&both, 1, second_key.1)?;
    let items = Repetition::new(
        &part(&both[..first_key.0]),
        &part(&both[first.1..second_key.0]),
        outputs.after(&part(&both[second.1..])),
    );
    let string =
        ValueForm { before: both[first_key.1..first.0].to_owned(), after: pieces(&items.tail) };
    let form = ParameterForm {
        before_key: text(&items.head)?,
        values: Kind::ALL.map(|_| string.clone()),
        separator: text(&items.separator)?,
        nested: Nested::Json,
        sorted: is_sorted(outputs),
    };
    let form = with_values(outputs, form, one)?;
    // The calls around the parameters.
    let (head, tail) = (items.head.len(), items.tail.len());
    let repeated = two.and_then(|two| {
        let first_key = key(two, 0, 0)?;
        let first = value(two, 0, first_key.1)?;
        let second_key = key(two, 0, first.1)?;
        let second = value(two, 1, second_key.1)?;
        let before = part(&two[..first_key.0]);
        let between = part(&two[first.1..second_key.0]);
        let after = part(&two[second.1..]);
        let after = outputs.after(&after);
        Some(Repetition::new(
            within(&before, 0, head)?,
            within(&between, tail, head)?,
            within(after, tail, 0)?,
        ))
    });
    let arguments = ArgumentForm::Parameters(Box::new(form));
    if let Some(form) = repeated.and_then(|parts| call_form(parts, arguments.clone())) {
        return Some(form);
    }
    let before = part(&both[..first_key.0]);
    let after = part(&both[second.1..]);
    single_form(within(&before, 0, head)?, within(outputs.after(&after), tail, 0)?, arguments)
}

/// Segments without so many at the start and at the end.
fn within(segments: &[Segment], start: usize, end: usize) -> Option<&[Segment]> {
    segments.get(start..segments.len().checked_sub(end)?)
}

fn slots_with_keys() -> Vec<(&'static str, Piece)> {
    slots().into_iter().chain(KEYS.map(|key| (key, Piece::Key))).collect()
}

/// Whether parameters are sorted by name.
fn is_sorted(outputs: &Outputs) -> bool {
    let output = outputs.of(&[json!({ KEYS[1]: VALUES[1], KEYS[0]: VALUES[0] })]);
    output.is_some_and(|output| output.find(KEYS[0]) < output.find(KEYS[1]))
}

/// Adds the text around values other than strings. `one` has a string.
fn with_values(outputs: &Outputs, mut form: ParameterForm, one: &str) -> Option<ParameterForm> {
    let string = form.value(Kind::String).clone();
    let (_, after_string) = one.split_once(VALUES[0])?;
    let closing = match string.after.as_slice() {
        [Piece::Text(closing)] => closing.as_str(),
        _ => "",
    };
    for (kind, sample) in Kind::ALL.into_iter().zip(samples()).skip(1) {
        let Some(output) = outputs.of(&[json!({ KEYS[0]: sample })]) else { continue };
        let Some((_, rest)) = output.split_once(KEYS[0]) else { continue };
        // What follows is the same as after a string, or the same without its closing mark.
        let (value, after) = match rest.strip_suffix(after_string) {
            Some(value) => (value, string.after.clone()),
            None => match rest.strip_suffix(after_string.strip_prefix(closing)?) {
                Some(value) => (value, Vec::new()),
                None => continue,
            },
        };
        let number = if kind == Kind::Number { &string } else { form.value(Kind::Number) }.clone();
        let (before, nested) = match read_sample(value, &sample, &mut form) {
            Some(at) => (value[..at].to_owned(), None),
            None if value.contains(form.before_key.trim())
                && !form.before_key.trim().is_empty() =>
            {
                (string.before.clone(), Some(Nested::Tags))
            }
            None => (number.before, None),
        };
        form.values[kind as usize] = ValueForm { before, after };
        form.nested = nested.unwrap_or(form.nested);
    }
    // Strings between quotes are literals, as other values are.
    let number = form.value(Kind::Number).clone();
    let quote = string.before.strip_prefix(number.before.as_str());
    if number.after.is_empty() && quote.is_some_and(|quote| matches!(quote, "'" | "\"")) {
        form.values[Kind::String as usize] = number;
        form.nested = Nested::Python;
    }
    Some(form)
}

/// Start of the value in a text that ends with it; sets the notation of objects and lists.
fn read_sample(text: &str, sample: &Value, form: &mut ParameterForm) -> Option<usize> {
    let all: Kinds = [true; Kind::ALL.len()];
    let starts =
        || text.char_indices().filter(|(_, first)| !first.is_whitespace()).map(|(at, _)| at);
    if let Some(at) =
        starts().find(|at| serde_json::from_str(&text[*at..]).ok() == Some(sample.clone()))
    {
        return Some(at);
    }
    let is_nested = matches!(Kind::of(sample), Kind::Object | Kind::Array);
    for nested in [Nested::Python, Nested::Marked] {
        let before = std::mem::replace(&mut form.nested, nested);
        let found = starts().find(|at| read_value(&text[*at..], None, all, form) == *sample);
        form.nested = if is_nested && found.is_some() { nested } else { before };
        if found.is_some() {
            return found;
        }
    }
    None
}
