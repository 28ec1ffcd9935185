//! Ends of comments and raw blocks, as in minijinja's lexer: a scan that disagreed would take the
//! rest of a template for a string, and check none of it.

/// Returns the length of the comment at the start of a text.
pub(super) fn comment(text: &str) -> usize {
    text[2..].find("#}").map_or(text.len(), |end| end + 4)
}

/// Returns the length of the raw block at the start of a text, including its end tag; `None` if the
/// text starts with another tag.
pub(super) fn raw(text: &str) -> Option<usize> {
    let signed = 2 + usize::from(text[2..].starts_with(['-', '+']));
    let mut at = signed + tag_end_length(&text[signed..], "raw")?;
    // Quotes and comments have no meaning here.
    while let Some(next) = text[at..].find("{%") {
        at += next + 2;
        let signed = at + usize::from(text[at..].starts_with(['-', '+']));
        if let Some(length) = tag_end_length(&text[signed..], "endraw") {
            return Some(signed + length);
        }
    }
    Some(text.len())
}

/// Returns the length of the rest of a tag that consists of this word.
fn tag_end_length(tag: &str, word: &str) -> Option<usize> {
    let space = |c: char| c.is_ascii_whitespace();
    let rest = tag.trim_start_matches(space).strip_prefix(word)?.trim_start_matches(space);
    let rest = rest.strip_prefix(['-', '+']).unwrap_or(rest).strip_prefix("%}")?;
    Some(tag.len() - rest.len())
}

#[cfg(test)]
mod tests {
    use super::{comment, raw};

    #[test]
    fn ends_agree_with_template_engine() {
        for (text, expected) in [
            ("{% raw %}a{% endraw %}b", Some(22)),
            ("{%-\x0craw\n+%}{% ' %}{%+endraw-%}'", Some(30)),
            ("{% raw %}{# {% endraw %}#}", Some(24)),
            ("{% raw %}{% endraw", Some(18)),
            ("{% rawest %}{% endraw %}", None),
            ("{% raw x %}{% endraw %}", None),
        ] {
            assert_eq!(raw(text), expected, "{text}");
        }
        for (text, expected) in [("{#}{{ #}a", 8), ("{##}a", 4), ("{#-#}a", 5), ("{# a", 4)] {
            assert_eq!(comment(text), expected, "{text}");
        }
    }
}
