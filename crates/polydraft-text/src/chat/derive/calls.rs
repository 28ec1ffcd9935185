//! Format of tool calls, from renderings of one and of two calls.

use std::sync::Arc;

use serde_json::{Value, json};

use super::outputs::{Outputs, VALUES, call_form, single_form};
use super::segments::{Repetition, segments};
use super::{ANSWER, CallShape, KEYS, NAMES, Probe, answer, parameters, slots};
use crate::output::{ArgumentForm, Braces, CallForm, Calls, OutputPart, ReasoningForm, Tool};

/// Derives the format, from calls of this shape.
pub(super) fn derive(
    probe: &Probe,
    reasoning: &ReasoningForm,
    shape: CallShape,
) -> Option<CallForm> {
    let answer = probe.output(answer());
    let end = answer.as_ref().and_then(|answer| Some(answer.split_once(ANSWER)?.1));
    let end = segments(end.unwrap_or_default(), &[]);
    let outputs = Outputs { probe, reasoning, shape, end };
    let argument = |value: &str| json!({ KEYS[0]: value });
    let one = outputs.of(&[argument(VALUES[0])])?;
    let two = outputs.of(&[argument(VALUES[0]), argument(VALUES[1])]);
    let form = match find_object(&one, 0) {
        Some(_) => objects(&outputs, &one, two.as_deref()),
        None => parameters::derive(&outputs, &one, two.as_deref()),
    }?;
    reads_back(&outputs, &form).then_some(form)
}

/// Start and end of arguments that are a JSON object.
fn find_object(output: &str, from: usize) -> Option<(usize, usize)> {
    let key = from + output[from..].find(KEYS[0])?;
    let start = from + output[from..key].rfind('{')?;
    (output[start + 1..key].trim() == "\"").then_some(())?;
    let length = Braces::default().end(&output[start..])?;
    Some((start, start + length))
}

/// Format of calls whose arguments are an object.
fn objects(outputs: &Outputs, one: &str, two: Option<&str>) -> Option<CallForm> {
    let slots = slots();
    let part = |text: &str| segments(text, &slots);
    let repeated = two.and_then(|two| {
        let first = find_object(two, 0)?;
        let second = find_object(two, first.1)?;
        let (before, between) = (part(&two[..first.0]), part(&two[first.1..second.0]));
        let after = part(&two[second.1..]);
        Some(Repetition::new(&before, &between, outputs.after(&after)))
    });
    if let Some(form) = repeated.and_then(|parts| call_form(parts, ArgumentForm::Json)) {
        return Some(form);
    }
    let (start, end) = find_object(one, 0)?;
    single_form(&part(&one[..start]), outputs.after(&part(&one[end..])), ArgumentForm::Json)
}

/// Whether a format reads the calls that the template writes.
fn reads_back(outputs: &Outputs, form: &CallForm) -> bool {
    let arguments = [
        json!({ KEYS[0]: "a \"b\" é, {c}", KEYS[1]: { "zqin": [1, -2.5, true, "x"] } }),
        json!({ KEYS[1]: 4217 }),
    ];
    let arguments = &arguments[..1 + usize::from(form.allows_several)];
    let Some(output) = outputs.of(arguments) else { return false };
    let tools = NAMES.map(|name| Tool { name: name.to_owned(), schema: Value::Bool(true) });
    let mut calls = Calls::new(Arc::new(form.clone()), Arc::new(tools.into()));
    let mut parts = calls.push(&output);
    parts.extend(calls.finish(false));
    let mut found: Vec<(String, String)> = Vec::new();
    for part in parts {
        match part {
            OutputPart::Call(name) => found.push((name, String::new())),
            OutputPart::Arguments(more) => {
                found.last_mut().into_iter().for_each(|(_, all)| all.push_str(&more));
            }
            OutputPart::Text(_) | OutputPart::Reasoning(_) => {}
        }
    }
    let expected = NAMES.iter().zip(arguments);
    found.len() == arguments.len()
        && found.iter().zip(expected).all(|((name, text), (expected, arguments))| {
            name == expected && serde_json::from_str::<Value>(text).is_ok_and(|v| v == *arguments)
        })
}
