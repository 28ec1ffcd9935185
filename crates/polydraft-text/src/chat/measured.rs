//! Operators that make much of little, measured: `s ~ s` in a loop doubles a text until memory ends.
//!
//! Problem: the template engine counts operations, not what they make, and lets nobody look on.
//! Source: ours.
//! Complexity: one pass over the template's text.
//!
//! 1. What stands beside `~`, `+` and `*` in a tag gets a filter behind it, which takes its size from what the template
//!    may still make: `a ~ b.c` becomes `a|spent ~ b.c|spent`. A filter binds tighter than all operators, so nothing
//!    else changes.
//! 2. A product repeats: beside `*` a text or list counts a thousand times, and a number may be a thousand at most where
//!    a text or list has been repeated.
//! 3. A list, tuple or object that is written down gets a filter too, which looks how large and deep it is: `[a, a]` in a
//!    loop is a tree of 2^n leaves, and `[a]` one that is too deep to be dropped.
//! 4. What goes into a filter gets one before, which counts it, and a loop or a macro looks at the clock at each turn.
//! 5. Comments and raw blocks stay as they are.

/// The filter behind operands of `~` and `+`.
pub(super) const SPENT: &str = "polydraft_spent";
/// The filter behind operands of `*`.
pub(super) const FACTOR: &str = "polydraft_factor";
/// The filter behind lists and objects.
pub(super) const BUILT: &str = "polydraft_built";

/// The filter before filters.
pub(super) const MADE: &str = "polydraft_made";
/// The function that looks at the clock.
pub(super) const TICK: &str = "polydraft_tick";

/// The template with the filters.
pub(super) fn measured(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + text.len() / 8);
    let mut rest = text;
    let mut raw = false;
    while let Some(start) = rest.find('{') {
        let tag = &rest[start..];
        let length = match tag.as_bytes().get(1) {
            Some(b'#') if !raw => tag.find("#}").map_or(tag.len(), |end| end + 2),
            Some(b'%') => expression_end(tag, "%}"),
            Some(b'{') if !raw => expression_end(tag, "}}"),
            _ => 1,
        };
        let (tag, after) = tag.split_at(length);
        out.push_str(&rest[..start]);
        rest = after;
        if tag.starts_with("{%") {
            match tag.trim_matches(['{', '%', '}', '-', '+', ' ', '\n', '\t', '\r']) {
                "raw" => raw = true,
                "endraw" => raw = false,
                _ => {}
            }
        }
        let is_expression = length > 4 && (tag.starts_with("{%") || tag.starts_with("{{")) && !raw;
        // A tag that does not end is the parser's to complain about.
        if is_expression && (tag.ends_with("%}") || tag.ends_with("}}")) {
            let signs = ['-', '+'];
            let begin = 2 + usize::from(tag[2..].starts_with(signs));
            let end = tag.len() - 2 - usize::from(tag[begin..tag.len() - 2].ends_with(signs));
            out.push_str(&tag[..begin]);
            with_filters(&tag[begin..end], &mut out);
            out.push_str(&tag[end..]);
            let word = tag[begin..end].trim_start();
            if tag.starts_with("{%") && ["for ", "for(", "macro "].iter().any(|start| word.starts_with(start))
            {
                // A block does to the white space around it what the tag does.
                let sign = &tag[end..tag.len() - 2];
                out.extend(["{% if ", TICK, "() %}{% endif ", sign, "%}"]);
            }
        } else {
            out.push_str(tag);
        }
    }
    out + rest
}

/// Bytes of a tag that ends so; strings inside may say anything.
fn expression_end(tag: &str, close: &str) -> usize {
    let bytes = tag.as_bytes();
    let (mut at, mut braces) = (2, 0usize);
    while at < bytes.len() {
        match bytes[at] {
            quote @ (b'\'' | b'"') => at = string_end(bytes, at, quote),
            _ if braces == 0 && tag[at..].starts_with(close) => return at + 2,
            b'{' => {
                braces += 1;
                at += 1;
            }
            b'}' => {
                braces = braces.saturating_sub(1);
                at += 1;
            }
            // The rest of a character is never a sign of its own.
            _ => at += 1,
        }
        while at < bytes.len() && !tag.is_char_boundary(at) {
            at += 1;
        }
    }
    tag.len()
}

fn string_end(bytes: &[u8], start: usize, quote: u8) -> usize {
    let mut at = start + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    /// A name, a number or a string.
    Word,
    /// A word behind which something begins: `in`, `if`, ..
    Keyword,
    Open,
    Close,
    Dot,
    Pipe,
    /// `~` or `+`.
    Sum,
    Product,
    Other,
}

/// What is put into the text at a place, in this order where several are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Insertion {
    Made,
    Built,
    Factor,
    Spent,
    Open,
}

/// A token: its kind and where it ends.
struct Token {
    kind: Kind,
    end: usize,
    /// For an opening bracket the token that closes it.
    closed_by: usize,
}

const KEYWORDS: [&str; 22] = [
    "in",
    "if",
    "else",
    "elif",
    "and",
    "or",
    "not",
    "is",
    "set",
    "for",
    "with",
    "filter",
    "call",
    "do",
    "macro",
    "block",
    "include",
    "import",
    "from",
    "as",
    "recursive",
    "return",
];

fn tokens(text: &str) -> Vec<Token> {
    let bytes = text.as_bytes();
    let mut all: Vec<Token> = Vec::new();
    let mut open = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let start = at;
        let byte = bytes[at];
        at += 1;
        let kind = match byte {
            b' ' | b'\n' | b'\t' | b'\r' => continue,
            b'\'' | b'"' => {
                at = string_end(bytes, start, byte).min(bytes.len());
                Kind::Word
            }
            b'(' | b'[' | b'{' => Kind::Open,
            b')' | b']' | b'}' => Kind::Close,
            b'.' => Kind::Dot,
            b'|' => Kind::Pipe,
            b'~' | b'+' => Kind::Sum,
            b'*' if bytes.get(at) == Some(&b'*') => {
                at += 1;
                Kind::Other
            }
            b'*' => Kind::Product,
            _ if byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii() => {
                let word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_' || !byte.is_ascii();
                while bytes.get(at).is_some_and(word) {
                    at += 1;
                }
                if KEYWORDS.contains(&&text[start..at]) { Kind::Keyword } else { Kind::Word }
            }
            _ => Kind::Other,
        };
        // A string may end within a character only if it does not end at all.
        while !text.is_char_boundary(at) {
            at += 1;
        }
        match kind {
            Kind::Open => open.push(all.len()),
            Kind::Close => {
                if let Some(opened) = open.pop() {
                    let closes = all.len();
                    all[opened].closed_by = closes;
                }
            }
            _ => {}
        }
        all.push(Token { kind, end: at, closed_by: usize::MAX });
    }
    all
}

/// Writes an expression with the filters.
fn with_filters(text: &str, out: &mut String) {
    let all = tokens(text);
    // Where, and which.
    let mut filters: Vec<(usize, Insertion)> = Vec::new();
    let ends_operand = |index: usize| matches!(all[index].kind, Kind::Word | Kind::Close);
    for (index, token) in all.iter().enumerate() {
        let follows = index.checked_sub(1).is_some_and(ends_operand);
        match token.kind {
            // Behind an operand it is a call or an item.
            Kind::Open if !follows && text.as_bytes()[token.end - 1] != b'(' => {
                // `[a, b] = ..` and the names of a loop are no values.
                let closes = token.closed_by;
                let behind = all.get(closes.saturating_add(1)).map(|next| &text[all[closes].end..next.end]);
                if closes < all.len() && !behind.is_some_and(|text| text.trim_start().starts_with('=')) {
                    // Behind a filter nothing can be taken out, behind a bracket it can.
                    filters.push((token.end - 1, Insertion::Open));
                    filters.push((all[closes].end, Insertion::Built));
                }
            }
            Kind::Pipe if follows => filters.push((all[index - 1].end, Insertion::Made)),
            Kind::Sum | Kind::Product if follows => {
                let filter = if token.kind == Kind::Sum { Insertion::Spent } else { Insertion::Factor };
                filters.push((all[index - 1].end, filter));
                if let Some(last) = operand(&all, text, index + 1) {
                    filters.push((all[last].end, filter));
                }
            }
            _ => {}
        }
    }
    filters.sort_unstable();
    filters.dedup();
    let mut from = 0;
    for (at, filter) in filters {
        out.push_str(&text[from..at]);
        match filter {
            Insertion::Open => out.push('('),
            Insertion::Built => out.extend(["|", BUILT, ")"]),
            Insertion::Made => out.extend(["|", MADE]),
            Insertion::Factor => out.extend(["|", FACTOR]),
            Insertion::Spent => out.extend(["|", SPENT]),
        }
        from = at;
    }
    out.push_str(&text[from..]);
}

/// The last token of the operand that begins at a token.
fn operand(all: &[Token], text: &str, mut index: usize) -> Option<usize> {
    let is_sign = |token: &Token| matches!(text.as_bytes()[token.end - 1], b'-' | b'+');
    while all.get(index).is_some_and(is_sign) {
        index += 1;
    }
    let group = |index: usize| match all.get(index)?.kind {
        Kind::Open => Some(all[index].closed_by).filter(|closes| *closes < all.len()),
        Kind::Word => Some(index),
        _ => None,
    };
    let mut last = group(index)?;
    loop {
        last = match all.get(last + 1).map(|token| token.kind) {
            Some(Kind::Dot | Kind::Pipe)
                if all.get(last + 2).is_some_and(|t| matches!(t.kind, Kind::Word | Kind::Keyword)) =>
            {
                last + 2
            }
            Some(Kind::Open) => group(last + 1)?,
            _ => return Some(last),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::measured;

    fn short(text: &str) -> String {
        measured(text)
            .replace("|polydraft_made", "µ")
            .replace("{% if polydraft_tick() %}{% endif ", "⏲")
            .replace("|polydraft_spent", "§")
            .replace("|polydraft_factor", "×")
            .replace("|polydraft_built)", "¤")
    }

    #[test]
    fn operands_get_a_filter() {
        for (text, expected) in [
            ("a ~ b {{ a ~ b }} c + d", "a ~ b {{ a§ ~ b§ }} c + d"),
            ("{{ a.b['~'](1) ~ '}}' ~ c|upper }}", "{{ a.b['~'](1)§ ~ '}}'§ ~ cµ|upper§ }}"),
            ("{{- (a + b) * 3 -}}", "{{- (a§ + b§)× * 3× -}}"),
            ("{%- set x = -1 + -y if z else f(*w) -%}", "{%- set x = -1§ + -y§ if z else f(*w) -%}"),
            (
                "{%+ if a %}{% raw %}{{ a + b }}{% endraw %}{# a ~ b #}",
                "{%+ if a %}{% raw %}{{ a + b }}{% endraw %}{# a ~ b #}",
            ),
            ("{% for m in messages + [{'a': [1]}] %}", "{% for m in messages§ + ([({'a': ([1]¤}¤]¤§ %}⏲%}"),
            ("{{ 2 ** 3 }}{{ x[0] }}{{ [x][0] ~ é }}", "{{ 2 ** 3 }}{{ x[0] }}{{ ([x]¤[0]§ ~ é§ }}"),
            ("{%- for x in y|list -%} z", "{%- for x in yµ|list -%}⏲-%} z"),
            ("{% endif %é}", "{% endif %é}"),
            ("{{ a }▁}", "{{ a }▁}"),
            ("{{ a ~", "{{ a ~"),
            ("{{ 'a\\' ~ b", "{{ 'a\\' ~ b"),
            ("{ {% { %}", "{ {% { %}"),
        ] {
            assert_eq!(short(text), expected, "{text}");
        }
    }
}
