//! Literal text of a model's output as terms of the library's dialect of Lark. Special tokens have
//! no text for the library, so they are named by id.

use polydraft_text::Tokenizer;

use super::literal::literal;

/// Converts literal text, with the special tokens of a tokenizer.
#[derive(Clone, Copy)]
pub struct Marks<'t>(pub Option<&'t Tokenizer>);

/// Part of a literal.
enum Part<'s> {
    Text(&'s str),
    /// Special token, as a term.
    Special(String),
}

impl Marks<'_> {
    fn parts<'s>(&self, text: &'s str) -> Vec<Part<'s>> {
        let special = self.0.map(|tokenizer| tokenizer.special_in(text)).unwrap_or_default();
        let (mut parts, mut at) = (Vec::new(), 0);
        for (range, token) in special {
            if range.start > at {
                parts.push(Part::Text(&text[at..range.start]));
            }
            parts.push(Part::Special(format!("<[{token}]>")));
            at = range.end;
        }
        if at < text.len() {
            parts.push(Part::Text(&text[at..]));
        }
        parts
    }

    /// Terms of a text; an empty one is the empty string.
    pub fn terms(&self, text: &str) -> String {
        let terms: Vec<String> = self.parts(text).into_iter().map(Part::term).collect();
        if terms.is_empty() { "\"\"".to_owned() } else { terms.join(" ") }
    }

    /// Rules that define `name` as any text up to and including the first of this mark; a text that
    /// begins with `other`, if any, is not meant.
    pub fn up_to(&self, name: &str, mark: &str, other: &str) -> String {
        let not_other = self.not_after(other);
        let mut parts = self.parts(mark).into_iter();
        let rest = |parts: std::vec::IntoIter<Part>| {
            parts.map(|part| format!(" {}", part.term())).collect::<String>()
        };
        match parts.next() {
            Some(Part::Text(first)) => format!(
                "{name}: {name}_text{}\n{name}_text[lazy]: /(?s:.*){}/{not_other}\n",
                rest(parts),
                escape_regex(first)
            ),
            Some(Part::Special(first)) => format!(
                "{name}: {upper}? {first}{}\n{upper}: /(?s:.+)/{not_other}\n",
                rest(parts),
                upper = name.to_uppercase()
            ),
            None => format!("{name}: \"\"\n"),
        }
    }

    /// Regular expression of text that does not contain the start of this mark; a text that begins
    /// with `other`, if any, is not meant.
    pub fn without(&self, mark: &str, other: &str) -> String {
        let not_other = self.not_after(other);
        match self.parts(mark).first() {
            Some(Part::Text(first)) => {
                format!("/(?s:.+)/ & ~/(?s:.*{}.*)/{not_other}", escape_regex(first))
            }
            Some(Part::Special(_)) | None => format!("/(?s:.+)/{not_other}"),
        }
    }

    /// Part of a regular expression that excludes text after this mark.
    fn not_after(&self, mark: &str) -> String {
        match self.parts(mark.trim()).first() {
            Some(Part::Text(first)) => format!(" & ~/(?s:\\s*{}.*)/", escape_regex(first)),
            Some(Part::Special(_)) | None => String::new(),
        }
    }
}

impl Part<'_> {
    fn term(self) -> String {
        match self {
            Self::Text(text) => literal(text),
            Self::Special(term) => term,
        }
    }
}

/// Escapes a string for a regular expression between slashes. Other characters are not escaped: an
/// escaped `<` is the start of a word.
pub(super) fn escape_regex(text: &str) -> String {
    let mut escaped = String::new();
    for character in text.chars() {
        match character {
            '\n' => escaped.push_str("\\n"),
            _ => {
                if r"\.+*?()|[]{}^$/".contains(character) {
                    escaped.push('\\');
                }
                escaped.push(character);
            }
        }
    }
    escaped
}
