//! Outputs with calls, as a model writes them by one template, and the format of their parts.

use serde_json::Value;

use super::reasoning::without_marks;
use super::segments::{Repetition, Segment, pieces, text};
use super::{CallShape, NAMES, Probe, calling, without_end};
use crate::output::{ArgumentForm, CallForm, Piece, ReasoningForm};

/// Values of the arguments.
pub(super) const VALUES: [&str; 2] = ["zqvala", "zqvalb"];

/// Outputs of calls, by one template.
pub(super) struct Outputs<'a> {
    pub(super) probe: &'a Probe<'a>,
    pub(super) reasoning: &'a ReasoningForm,
    pub(super) shape: CallShape,
    /// End of an answer without calls.
    pub(super) end: Vec<Segment>,
}

impl Outputs<'_> {
    /// Output of calls with these arguments, without marks of reasoning before it.
    pub(super) fn of(&self, arguments: &[Value]) -> Option<String> {
        let output = self.probe.output(calling(arguments, self.shape))?;
        let written = NAMES.iter().take(arguments.len()).all(|name| output.contains(name));
        written.then(|| without_marks(&output, self.reasoning).to_owned())
    }

    /// Text after a call, up to the end of the turn.
    pub(super) fn after<'s>(&self, text: &'s [Segment]) -> &'s [Segment] {
        without_end(text, &self.end)
    }
}

/// Format of calls with these parts, if each has its name.
pub(super) fn call_form(parts: Repetition, arguments: ArgumentForm) -> Option<CallForm> {
    let Repetition { opening, head, tail, separator, closing } = parts;
    let head = pieces(&head);
    head.contains(&Piece::Name).then_some(())?;
    Some(CallForm {
        opening: text(&opening)?,
        head,
        arguments,
        tail: pieces(&tail),
        separator: text(&separator)?,
        closing: text(&closing)?.trim_end().to_owned(),
        allows_several: true,
    })
}

/// Format of a template that takes a single call.
pub(super) fn single_form(
    before: &[Segment],
    after: &[Segment],
    arguments: ArgumentForm,
) -> Option<CallForm> {
    let head = pieces(before);
    head.contains(&Piece::Name).then_some(())?;
    let [opening, separator, closing] = [const { String::new() }; 3];
    let (tail, allows_several) = (pieces(after), false);
    Some(CallForm { opening, head, arguments, tail, separator, closing, allows_several })
}
