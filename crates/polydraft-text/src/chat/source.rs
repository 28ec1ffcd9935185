//! Source of a template, adapted to the engine where its syntax differs from Jinja2's.

use super::tags;

/// Returns the source with `\n` at the end of lines, and with a scope in place of each
/// `{% generation %}`, which marks the model's output for training tools. A line end after
/// `{% raw %}`, which the engine would remove, is doubled.
pub(super) fn adapted(text: &str) -> String {
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(start) = rest.find('{') {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let raw = tag.starts_with("{%").then(|| tags::raw(tag)).flatten();
        let length = match tag.as_bytes().get(1) {
            Some(b'#') => tags::comment(tag),
            Some(b'%') => raw.unwrap_or_else(|| tag.find("%}").map_or(tag.len(), |end| end + 2)),
            _ => 1,
        };
        let (tag, after) = tag.split_at(length);
        rest = after;
        let begin = tag.find("%}").map_or(0, |end| end + 2);
        if raw.is_some() && tag[begin..].starts_with('\n') && !tag[..begin].ends_with("-%}") {
            out.extend([&tag[..begin], "\n", &tag[begin..]]);
            continue;
        }
        let word = tag.trim_start_matches("{%").trim_end_matches("%}");
        match word.trim_matches(|c: char| "-+".contains(c) || c.is_whitespace()) {
            "generation" => out.push_str(&tag.replacen("generation", "with", 1)),
            "endgeneration" => out.push_str(&tag.replacen("generation", "with", 1)),
            _ => out.push_str(tag),
        }
    }
    out + rest
}
