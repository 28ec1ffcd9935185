//! Patterns of literal text and slots, matched against output that may not be complete yet.
//!
//! White space is not compared, since models vary it around marks, and none is consumed at the end
//! of a literal: what follows may be a value that begins with some.

/// Part of a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// This text.
    Text(String),
    /// Name of a tool.
    Name,
    /// Id of a call.
    Id,
    /// Number of a call, counted from this one.
    Number(u32),
    /// Name of a parameter.
    Key,
}

/// Result of matching a pattern at the start of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Match {
    /// The text does not begin like the pattern.
    No,
    /// The text ends before the pattern does.
    Partial,
    /// The pattern, which ends at this byte.
    Yes(Slots, usize),
}

/// Contents of a pattern's slots.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Slots {
    pub(crate) name: Option<String>,
    pub(crate) id: Option<String>,
    pub(crate) key: Option<String>,
}

/// Maximum bytes of an id or a parameter's name.
const MAX_SLOT: usize = 256;

/// Matches a pattern at the start of a text. A name is one of `names`, a parameter's name
/// preferably so; a slot that is filled already, or occurs twice, has the same content. `complete`
/// is whether no text follows.
pub(crate) fn matches(
    pieces: &[Piece],
    text: &str,
    names: &[String],
    slots: Slots,
    complete: bool,
) -> Match {
    match matches_from(pieces, text, 0, names, slots) {
        Match::Partial if complete => Match::No,
        found => found,
    }
}

fn matches_from(pieces: &[Piece], text: &str, at: usize, names: &[String], slots: Slots) -> Match {
    let Some((piece, rest)) = pieces.split_first() else { return Match::Yes(slots, at) };
    match piece {
        Piece::Text(literal) => match literal_end(literal, &text[at..]) {
            Literal::End(length) => matches_from(rest, text, at + length, names, slots),
            Literal::Partial => Match::Partial,
            Literal::No => Match::No,
        },
        Piece::Name => {
            let start = at + leading_space(&text[at..]);
            let known = slots.name.as_ref().map_or(names, std::slice::from_ref);
            let fill = |name: &String| Slots { name: Some(name.clone()), ..slots.clone() };
            known_slot(known, fill, rest, text, start, names)
        }
        Piece::Key if slots.key.is_some() => {
            let start = at + leading_space(&text[at..]);
            known_slot(slots.key.as_slice(), |_| slots.clone(), rest, text, start, names)
        }
        Piece::Key if !names.is_empty() => {
            let start = at + leading_space(&text[at..]);
            let fill = |key: &String| Slots { key: Some(key.clone()), ..slots.clone() };
            match known_slot(names, fill, rest, text, start, names) {
                Match::No => matches_from(pieces, text, at, &[], slots),
                found => found,
            }
        }
        Piece::Id | Piece::Number(_) | Piece::Key => {
            let start = at + leading_space(&text[at..]);
            let left = &text[start..];
            let stop = match rest.first() {
                Some(Piece::Text(next)) => next.trim_start().chars().next(),
                _ => None,
            };
            let is_part = |character: char| match piece {
                Piece::Number(_) => character.is_ascii_digit(),
                Piece::Id => {
                    character.is_ascii_alphanumeric() || matches!(character, '_' | '-' | '.' | ':')
                }
                _ => Some(character) != stop && character != '\n',
            };
            let length = left.find(|character: char| !is_part(character)).unwrap_or(left.len());
            if length > MAX_SLOT {
                return Match::No;
            }
            if length == left.len() && !rest.is_empty() {
                return Match::Partial;
            }
            let content = left[..length].trim_end().to_owned();
            let mut slots = slots;
            match piece {
                Piece::Id => slots.id = Some(content),
                Piece::Key => slots.key = Some(content),
                _ => {}
            }
            matches_from(rest, text, start + length, names, slots)
        }
    }
}

/// Matches a slot with known contents, and the pieces after it, at this byte of a text. Longer
/// contents come first: a shorter one may be the start of it.
fn known_slot(
    known: &[String],
    fill: impl Fn(&String) -> Slots,
    rest: &[Piece],
    text: &str,
    start: usize,
    names: &[String],
) -> Match {
    let left = &text[start..];
    let found = known.iter().map(|content| {
        if left.starts_with(content.as_str()) {
            let end = start + content.len();
            (content.len(), matches_from(rest, text, end, names, fill(content)))
        } else if content.starts_with(left) {
            (content.len(), Match::Partial)
        } else {
            (0, Match::No)
        }
    });
    let found = found.filter(|(_, found)| *found != Match::No);
    found.max_by_key(|(length, _)| *length).map_or(Match::No, |(_, found)| found)
}

/// Result of matching a literal.
pub(crate) enum Literal {
    No,
    Partial,
    /// Number of bytes of the text.
    End(usize),
}

/// Matches a literal at the start of a text, in which white space may differ.
pub(crate) fn literal_end(literal: &str, text: &str) -> Literal {
    let mut at = 0;
    for expected in literal.chars().filter(|character| !character.is_whitespace()) {
        at += leading_space(&text[at..]);
        match text[at..].chars().next() {
            None => return Literal::Partial,
            Some(found) if found == expected => at += found.len_utf8(),
            Some(_) => return Literal::No,
        }
    }
    Literal::End(at)
}

fn leading_space(text: &str) -> usize {
    text.len() - text.trim_start().len()
}

/// Length of the longest proper prefix of the mark at the end of a text.
pub(crate) fn partial_mark_len(text: &str, mark: &str) -> usize {
    let begins = |length: &usize| text.ends_with(&mark[..*length]);
    (1..mark.len()).rev().filter(|length| mark.is_char_boundary(*length)).find(begins).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(pieces: &[Piece], text: &str) -> Match {
        let names = ["get".to_owned(), "get_all".to_owned()];
        matches(pieces, text, &names, Slots::default(), false)
    }

    fn text(literal: &str) -> Piece {
        Piece::Text(literal.to_owned())
    }

    #[test]
    fn matches_names_and_ids_whatever_the_white_space() {
        let head = [
            text("<call>\n{\"name\": \""),
            Piece::Name,
            text("\", \"id\": \""),
            Piece::Id,
            text("\""),
        ];
        let whole = "<call>{ \"name\":\"get_all\",\"id\": \"x-1\"} rest";
        let Match::Yes(slots, end) = found(&head, whole) else { panic!() };
        assert_eq!((slots.name.as_deref(), slots.id.as_deref()), (Some("get_all"), Some("x-1")));
        assert_eq!(&whole[end..], "} rest");
        for cut in 0..end {
            assert_eq!(found(&head, &whole[..cut]), Match::Partial, "{}", &whole[..cut]);
        }
        assert_eq!(found(&head, "<call>{\"name\": \"other\""), Match::No);
    }

    #[test]
    fn keys_end_where_the_next_literal_begins() {
        let head = [text("<p="), Piece::Key, text(">\n")];
        let Match::Yes(slots, end) = found(&head, "<p=a b>\n\nx") else { panic!() };
        assert_eq!((slots.key.as_deref(), end), (Some("a b"), 7));
        assert_eq!(found(&head, "<p=a\nb>"), Match::No);
        // Known names may contain it.
        let keys = ["a".to_owned(), "a>b".to_owned()];
        let found = |text: &str| matches(&head, text, &keys, Slots::default(), false);
        for (whole, expected) in [("<p=a>b>1", "a>b"), ("<p=a>1", "a"), ("<p=ab>1", "ab")] {
            let Match::Yes(slots, end) = found(whole) else { panic!("{whole}") };
            assert_eq!((slots.key.as_deref(), end), (Some(expected), whole.len() - 1));
        }
        assert_eq!(found("<p=a>"), Match::Partial);
    }
}
