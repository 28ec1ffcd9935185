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
            statement => match changed_list(statement) {
                Some([first, second]) => {
                    // White space before and after is trimmed as around the original.
                    let (open, close) = (&tag[..3], &tag[tag.len() - 3..]);
                    let [open, close] = [open.trim_end(), close.trim_start()];
                    out.push_str(&format!("{open} {first} -%}}{{%- {second} {close}"));
                }
                None => out.push_str(tag),
            },
        }
    }
    out + rest
}

/// Statements in place of one that changes a list: `set _ = a.b.append(c)` or `set c = a.b.pop(0)`.
/// The engine's lists do not change (nor do those of transformers, which refuses such templates);
/// Kimi K2's template needs them for the results of tools.
fn changed_list(statement: &str) -> Option<[String; 2]> {
    let (target, value) = statement.strip_prefix("set ")?.split_once('=')?;
    let (list, argument) = value.trim().strip_suffix(')')?.rsplit_once('(')?;
    let is_name = |name: &str| {
        name.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '.') && name.contains('.')
    };
    let (target, argument) = (target.trim(), argument.trim());
    match list.rsplit_once('.')? {
        (list, "append") if is_name(list) => {
            let list = list.trim();
            Some([format!("set {list} = {list} + [{argument}]"), format!("set {target} = none")])
        }
        (list, "pop") if is_name(list) && argument == "0" => {
            Some([format!("set {target} = {list}[0]"), format!("set {list} = {list}[1:]")])
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_statements_that_change_a_list() {
        let text = "{%- set _ = n.ids.append('a') -%}{% set x = n.ids.pop(0) %}{% set y = f(x) %}";
        let expected = "{%- set n.ids = n.ids + ['a'] -%}{%- set _ = none -%}\
                        {% set x = n.ids[0] -%}{%- set n.ids = n.ids[1:] %}{% set y = f(x) %}";
        assert_eq!(adapted(text), expected);
    }
}
