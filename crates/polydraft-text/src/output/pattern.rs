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

/// Matches a pattern at the start of a text. A name is one of `names`; a slot that is filled
/// already, or occurs twice, has the same content. `complete` is whether no text follows.
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

fn matches_from(
    pieces: &[Piece],
    text: &str,
    at: usize,
    names: &[String],
    slots: Slots,
) -> Match {
    let Some((piece, rest)) = pieces.split_first() else { return Match::Yes(slots, at) };
    match piece {
        Piece::Text(literal) => match literal_end(literal, &text[at..]) {
            Literal::End(length) => matches_from(rest, text, at + length, names, slots),
            Literal::Partial => Match::Partial,
            Literal::No => Match::No,
        },
        Piece::Name => {
            let start = at + leading_space(&text[at..]);
            let known: Vec<&String> = match &slots.name {
                Some(name) => vec![name],
                None => names.iter().collect(),
            };
            let found = known.into_iter().map(|name| {
                let left = &text[start..];
                if left.starts_with(name.as_str()) {
                    let slots = Slots { name: Some(name.clone()), ..slots.clone() };
                    (name.len(), matches_from(rest, text, start + name.len(), names, slots))
                } else if name.starts_with(left) {
                    (name.len(), Match::Partial)
                } else {
                    (0, Match::No)
                }
            });
            // Longer names first: a shorter one may be the start of it.
            found.filter(|(_, found)| *found != Match::No).max_by_key(|(length, _)| *length)
                .map_or(Match::No, |(_, found)| found)
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
                Piece::Key if slots.key.as_ref().is_some_and(|key| *key != content) => {
                    return Match::No;
                }
                Piece::Key => slots.key = Some(content),
                _ => {}
            }
            matches_from(rest, text, start + length, names, slots)
        }
    }
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
        let head = [text("<call>\n{\"name\": \""), Piece::Name, text("\", \"id\": \""), Piece::Id,
            text("\"")];
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
        assert_eq!(found(&head, "<p=a\n>"), Match::No);
    }
}
