//! Marks of reasoning and answer, from renderings of an answer with a thought.

use serde_json::{Map, Value, json};

use super::segments::{Segment, common_suffix, segments, text};
use super::{ANSWER, CallShape, Probe, QUESTION, THOUGHT, answer, calling, table, without_end};
use crate::output::ReasoningForm;

/// Derives the marks; empty ones where the model has none.
pub(super) fn derive(probe: &Probe, with_tools: &Probe, source: &str) -> ReasoningForm {
    let thoughts = ["enable_thinking", "thinking"].map(|name| (name.to_owned(), true.into()));
    let thoughts: Map<String, Value> = thoughts.into_iter().collect();
    let thinking = probe.with_variables(thoughts.clone());
    let calling_tools = with_tools.with_variables(thoughts);
    let thought = |mut message: Value| {
        message["reasoning_content"] = THOUGHT.into();
        message
    };
    let call = || calling(&[json!({})], CallShape::default());
    let tries = [(probe, answer()), (&thinking, answer()), (&calling_tools, call())];
    let marks = tries.into_iter().find_map(|(probe, message)| {
        let plain = probe.output(message.clone());
        marks(probe, &probe.output(thought(message))?, plain.as_deref())
    });
    let mut form = marks.unwrap_or_else(|| table::reasoning(source));
    let plain = probe.output(answer()).or_else(|| with_tools.output(answer()));
    let Some((before, after)) = plain.as_ref().and_then(|plain| plain.split_once(ANSWER)) else {
        return form;
    };
    let before = without_marks(before, &form);
    let prompt = probe.prompt.as_deref().unwrap_or_default();
    match before.trim() {
        // The prompt of an answer without thoughts begins it.
        "" => match first_mark(&form.closing) {
            Some(mark) if form.closing.starts_with(&mark) && mark != form.closing => {
                form.answer_opening = form.closing.split_off(mark.len());
            }
            _ => return form,
        },
        before if prompt.trim_end().ends_with(before) => return form,
        answer => {
            // The closing mark ends where the answer begins.
            if let Some(closing) = form.closing.strip_suffix(answer) {
                form.closing = closing.trim_end().to_owned();
            }
            form.answer_opening = before.to_owned();
        }
    }
    // What follows an answer and follows calls, too, ends the turn.
    let (after, call) = (segments(after, &[]), with_tools.output(call()));
    let end_of_calls = segments(call.as_deref().unwrap_or_default(), &[]);
    if let Some(closing) = text(without_end(&after, &end_of_calls)) {
        form.answer_closing = closing.trim().to_owned();
    }
    form
}

/// Marks around the thought in an output. `plain` is the same without the thought.
fn marks(probe: &Probe, output: &str, plain: Option<&str>) -> Option<ReasoningForm> {
    let (opening, rest) = output.split_once(THOUGHT)?;
    let closing = match rest.split_once(ANSWER) {
        Some((closing, _)) => closing.trim().to_owned(),
        None => {
            let (rest, plain) = (segments(rest, &[]), segments(plain?, &[]));
            let shared = common_suffix(&rest, &plain, false).len();
            let own = text(&rest[..rest.len() - shared])?;
            match own.trim() {
                // An empty thought has its marks, too.
                "" => first_mark(&text(&rest)?)?,
                own => own.to_owned(),
            }
        }
    };
    if closing.is_empty() {
        return None;
    }
    let opening = match opening.trim() {
        "" => opening_in(probe.prompt.as_deref().ok()?, &closing),
        opening => opening.to_owned(),
    };
    Some(ReasoningForm { opening, closing, ..ReasoningForm::default() })
}

/// Opening mark in the prompt of an answer: the counterpart of the closing one, if it is there.
fn opening_in(prompt: &str, closing: &str) -> String {
    let prompt = prompt.rsplit(QUESTION).next().unwrap_or_default();
    let counterparts = [("</", "<"), ("[/", "["), ("<|close|>", "<|open|>"), ("|END_", "|START_")];
    let opening = counterparts.iter().find_map(|(end, start)| {
        let opening = first_mark(closing)?.replacen(end, start, 1);
        prompt.contains(&opening).then_some(opening)
    });
    opening.unwrap_or_default()
}

/// First mark of a text.
fn first_mark(text: &str) -> Option<String> {
    segments(text, &[]).into_iter().find_map(|segment| match segment {
        Segment::Text(text) if text.len() > 1 => Some(text),
        _ => None,
    })
}

/// Removes marks of reasoning around nothing from the start of an output.
pub(super) fn without_marks<'t>(text: &'t str, form: &ReasoningForm) -> &'t str {
    let ReasoningForm { opening, closing, answer_opening, answer_closing } = form;
    let mut rest = text.trim_start();
    loop {
        let marks = [opening, closing, answer_opening, answer_closing].into_iter();
        let mut marks = marks.map(|mark| mark.trim()).filter(|mark| !mark.is_empty());
        match marks.find_map(|mark| rest.strip_prefix(mark)) {
            Some(next) => rest = next.trim_start(),
            None => return rest,
        }
    }
}
