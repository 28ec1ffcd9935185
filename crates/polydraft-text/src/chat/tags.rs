//! Where comments and raw blocks of a template end, as minijinja's lexer finds it: who looks
//! elsewhere takes the rest of a template for a text in quotes, and checks none of it.

/// Bytes of the comment that a text begins with.
pub(super) fn comment(text: &str) -> usize {
    text[2..].find("#}").map_or(text.len(), |end| end + 4)
}

/// Bytes of the raw block that a text begins with, up to and with its end; `None` if it begins with
/// another tag.
pub(super) fn raw(text: &str) -> Option<usize> {
    let signed = 2 + usize::from(text[2..].starts_with(['-', '+']));
    let mut at = signed + bare(&text[signed..], "raw")?;
    // Quotes and comments are nothing here.
    while let Some(next) = text[at..].find("{%") {
        at += next + 2;
        let signed = at + usize::from(text[at..].starts_with(['-', '+']));
        if let Some(length) = bare(&text[signed..], "endraw") {
            return Some(signed + length);
        }
    }
    Some(text.len())
}

/// Bytes of the rest of a tag that has this word and no more.
fn bare(tag: &str, word: &str) -> Option<usize> {
    let space = |c: char| c.is_ascii_whitespace();
    let rest = tag.trim_start_matches(space).strip_prefix(word)?.trim_start_matches(space);
    let rest = rest.strip_prefix(['-', '+']).unwrap_or(rest).strip_prefix("%}")?;
    Some(tag.len() - rest.len())
}

#[cfg(test)]
mod tests {
    use super::{comment, raw};

    #[test]
    fn they_end_where_the_library_ends_them() {
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
