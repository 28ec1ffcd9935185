//! Rendered text as segments: marks such as `<tool_call>` or `[ARGS]`, numbers, single characters,
//! and slots. Two texts are compared by segments, so that `<a>` and `<ab>` have nothing in common.

use crate::output::Piece;

/// Segment of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Segment {
    /// Mark, or a single character.
    Text(String),
    /// Run of digits.
    Digits(String),
    /// Slot.
    Slot(Piece),
}

/// Maximum bytes of a mark.
const MAX_MARK: usize = 64;

/// Splits a text, with slots in place of the given strings.
pub(super) fn segments(text: &str, slots: &[(&str, Piece)]) -> Vec<Segment> {
    let (mut all, mut at) = (Vec::new(), 0);
    'text: while let Some(character) = text[at..].chars().next() {
        let rest = &text[at..];
        for (string, slot) in slots {
            if rest.starts_with(string) {
                all.push(Segment::Slot(slot.clone()));
                at += string.len();
                continue 'text;
            }
        }
        let length = mark_length(rest, slots)
            .or_else(|| {
                let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
                (digits > 0).then_some(digits)
            })
            .unwrap_or(character.len_utf8());
        let part = rest[..length].to_owned();
        all.push(match character.is_ascii_digit() {
            true => Segment::Digits(part),
            false => Segment::Text(part),
        });
        at += length;
    }
    all
}

/// Length of a mark at the start of a text: `<..>` or `[..]` without white space and quotes, or a
/// name between the marks of Kimi K3.
fn mark_length(text: &str, slots: &[(&str, Piece)]) -> Option<usize> {
    if text.starts_with("<|open|>") || text.starts_with("<|close|>") {
        let end = text.find("<|sep|>")? + "<|sep|>".len();
        let has_space = text[..end].contains(char::is_whitespace);
        return (!has_space && end <= MAX_MARK).then_some(end).or_else(|| Some(text.find('>')? + 1));
    }
    let close = match text.chars().next()? {
        '<' => '>',
        '[' => ']',
        _ => return None,
    };
    let end = text.find(close)? + 1;
    let inner = &text[1..end - 1];
    let is_word = |c: char| c.is_ascii_uppercase() || matches!(c, '_' | '/');
    let is_mark = match close {
        ']' => inner.len() > 1 && inner.chars().all(is_word),
        _ => {
            !inner.is_empty()
                && !inner.contains(|c: char| c.is_whitespace() || "<>\"'".contains(c))
        }
    };
    let has_slot = slots.iter().any(|(string, _)| inner.contains(string));
    (is_mark && !has_slot && end <= MAX_MARK).then_some(end)
}

/// Whether two segments are the same; numbers that count up are a [`Piece::Number`].
fn common(first: &Segment, second: &Segment, counts: bool) -> Option<Segment> {
    if first == second {
        return Some(first.clone());
    }
    let (Segment::Digits(first), Segment::Digits(second)) = (first, second) else { return None };
    let (first, second): (u32, u32) = (first.parse().ok()?, second.parse().ok()?);
    (counts && first <= 1 && second == first + 1).then_some(Segment::Slot(Piece::Number(first)))
}

/// Longest common start.
pub(super) fn common_prefix(first: &[Segment], second: &[Segment], counts: bool) -> Vec<Segment> {
    first.iter().zip(second).map_while(|(a, b)| common(a, b, counts)).collect()
}

/// Longest common end.
pub(super) fn common_suffix(first: &[Segment], second: &[Segment], counts: bool) -> Vec<Segment> {
    let pairs = first.iter().rev().zip(second.iter().rev());
    let mut all: Vec<Segment> = pairs.map_while(|(a, b)| common(a, b, counts)).collect();
    all.reverse();
    all
}

/// Joins segments to pieces of a pattern.
pub(super) fn pieces(segments: &[Segment]) -> Vec<Piece> {
    let mut all: Vec<Piece> = Vec::new();
    for segment in segments {
        match (segment, all.last_mut()) {
            (Segment::Slot(slot), _) => all.push(slot.clone()),
            (Segment::Text(text) | Segment::Digits(text), Some(Piece::Text(last))) => {
                last.push_str(text);
            }
            (Segment::Text(text) | Segment::Digits(text), _) => all.push(Piece::Text(text.clone())),
        }
    }
    all
}

/// Joins segments without slots to a text.
pub(super) fn text(segments: &[Segment]) -> Option<String> {
    let parts = segments.iter().map(|segment| match segment {
        Segment::Text(text) | Segment::Digits(text) => Some(text.as_str()),
        Segment::Slot(_) => None,
    });
    parts.collect()
}

/// Text around repeated items, from what stands before the first, between two, and after the last.
pub(super) struct Repetition {
    pub(super) opening: Vec<Segment>,
    /// Start of every item.
    pub(super) head: Vec<Segment>,
    /// End of every item.
    pub(super) tail: Vec<Segment>,
    pub(super) separator: Vec<Segment>,
    pub(super) closing: Vec<Segment>,
}

impl Repetition {
    /// Divides the texts: what `between` shares with the end of `before` begins an item, what it
    /// shares with the start of `after` ends one.
    pub(super) fn new(before: &[Segment], between: &[Segment], after: &[Segment]) -> Self {
        let tail = common_prefix(after, between, false);
        let head = common_suffix(before, &between[tail.len()..], true);
        Self {
            opening: before[..before.len() - head.len()].to_vec(),
            separator: between[tail.len()..between.len() - head.len()].to_vec(),
            closing: after[tail.len()..].to_vec(),
            head,
            tail,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str) -> Vec<Segment> {
        segments(text, &[("NAME", Piece::Name)])
    }

    #[test]
    fn divides_repeated_items_at_marks() {
        let check = |before: &str, between: &str, after: &str, expected: [&str; 5]| {
            let found = Repetition::new(&split(before), &split(between), &split(after));
            let Repetition { opening, head, tail, separator, closing } = found;
            let found = [opening, head, tail, separator, closing];
            assert_eq!(found.map(|part| text(&part).unwrap()), expected);
        };
        check("<all><one>f.", "</one><one>f.", "</one></all>",
            ["<all>", "<one>f.", "</one>", "", "</all>"]);
        check("<calls>[{\"name\": \"", "}, {\"name\": \"", "}]</calls>",
            ["<calls>[", "{\"name\": \"", "}", ", ", "]</calls>"]);
        check(">\n<p=", "\n</p>\n<p=", "\n</p>\n</f>", [">\n", "<p=", "\n</p>\n", "", "</f>"]);
        let found = Repetition::new(&split("[{\"i\": 0, \""), &split("}, {\"i\": 1, \""),
            &split("}]"));
        assert_eq!(pieces(&found.head), [Piece::Text("{\"i\": ".to_owned()), Piece::Number(0),
            Piece::Text(", \"".to_owned())]);
    }

    #[test]
    fn marks_and_slots_are_single_segments() {
        let count = |text: &str| split(text).len();
        assert_eq!((count("<｜a▁b｜>"), count("[ARGS]"), count("[{\""), count("< a>")), (1, 1, 3, 4));
        assert_eq!(split("<NAME>")[1], Segment::Slot(Piece::Name));
    }
}
