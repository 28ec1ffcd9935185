//! Operators that make much of little, measured: `s ~ s` in a loop doubles a string until memory
//! ends.
//!
//! Problem: the template engine counts operations, not what they make, and lets nobody look on.
//! Source: ours.
//! Complexity: one pass over the template's text.
//!
//! 1. What stands beside `~`, `+` and `*` in a tag gets a filter after it, which takes its size
//!    from what the template may still make: `a ~ b.c` becomes `a|spent ~ b.c|spent`. A filter
//!    binds tighter than all operators, so nothing else changes.
//! 2. A product repeats: beside `*` a string or list counts a thousand times, and a number may be a
//!    thousand at most where a string or list has been repeated.
//! 3. A list, tuple or object that is written down gets a filter too, which looks how large and
//!    deep it is: `[a, a]` in a loop is a tree of 2^n leaves, and `[a]` one that is too deep to be
//!    dropped. So does what becomes a part of a namespace. What is stored under another name is
//!    made a list if it is a part of one: `a[:]` of `a[:]` is deep too.
//! 4. What goes into a filter gets one before, which counts it; before filters that make nothing,
//!    one that looks at the clock, as do loops and macros at each turn.
//! 5. Comments and raw blocks stay as they are.

use super::tags;
use super::tokens::{Kind, Token, string_end, tokens};

/// The filter after operands of `~` and `+`.
pub(super) const SPENT: &str = "polydraft_spent";
/// The filter after operands of `*`.
pub(super) const FACTOR: &str = "polydraft_factor";
/// The filter after lists and objects.
pub(super) const BUILT: &str = "polydraft_built";
/// The filter before filters.
pub(super) const MADE: &str = "polydraft_made";
/// The filter before filters that make nothing.
pub(super) const SEEN: &str = "polydraft_seen";
/// The filter after what gets a name.
pub(super) const KEPT: &str = "polydraft_kept";
/// The filter after what becomes a part of a namespace.
pub(super) const HELD: &str = "polydraft_held";
/// The function that looks at the clock.
pub(super) const TICK: &str = "polydraft_tick";

/// Filters that make nothing: they look at no more than a part of what they get.
const SMALL: [&str; 4] = ["length", "count", "first", "last"];

/// The template with the filters.
pub(super) fn measured(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + text.len() / 8);
    let mut rest = text;
    while let Some(start) = rest.find('{') {
        let tag = &rest[start..];
        let (length, is_expression) = match tag.as_bytes().get(1) {
            Some(b'#') => (tags::comment(tag), false),
            Some(b'%') => match tags::raw(tag) {
                Some(length) => (length, false),
                None => (expression_end(tag, "%}"), true),
            },
            Some(b'{') => (expression_end(tag, "}}"), true),
            _ => (1, false),
        };
        let (tag, after) = tag.split_at(length);
        out.push_str(&rest[..start]);
        rest = after;
        // A tag that does not end is the parser's to complain about.
        if is_expression && length > 4 && (tag.ends_with("%}") || tag.ends_with("}}")) {
            with_filters(tag, &mut out);
        } else {
            out.push_str(tag);
        }
    }
    out + rest
}

/// Writes a tag with the filters.
fn with_filters(tag: &str, out: &mut String) {
    let signs = ['-', '+'];
    let begin = 2 + usize::from(tag[2..].starts_with(signs));
    let end = tag.len() - 2 - usize::from(tag[begin..tag.len() - 2].ends_with(signs));
    let is_statement = tag.starts_with("{%");
    let (text, all) = (&tag[begin..end], tokens(&tag[begin..end], is_statement));
    out.push_str(&tag[..begin]);
    write_filtered(text, insertions(text, &all, is_statement), out);
    out.push_str(&tag[end..]);
    let first = all.first().map_or("", |token| &text[token.start..token.end]);
    if is_statement && matches!(first, "for" | "macro") {
        // A block does to the white space around it what the tag does.
        let sign = &tag[end..tag.len() - 2];
        out.extend(["{% if ", TICK, "() %}{% endif ", sign, "%}"]);
    }
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

/// What is put into the text at a place, in this order where several are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Insertion {
    Seen,
    Made,
    Built,
    Factor,
    Spent,
    Kept,
    Held,
    /// Before what is [`Self::Kept`] or [`Self::Held`].
    OpenName,
    /// Before what is [`Self::Built`].
    Open,
}

/// The filters of a tag, in the order of their places.
fn insertions(text: &str, all: &[Token], is_statement: bool) -> Vec<(usize, Insertion)> {
    let mut filters: Vec<(usize, Insertion)> = Vec::new();
    for (index, token) in all.iter().enumerate() {
        let before =
            index.checked_sub(1).map(|before| &all[before]).filter(|before| before.ends_operand());
        match (token.kind, before) {
            (Kind::Begin, _) if is_value(text, all, index) => {
                // After a filter nothing can be taken out, after a bracket it can.
                filters.push((token.start, Insertion::Open));
                filters.push((all[token.closed_by].end, Insertion::Built));
            }
            (Kind::Pipe, Some(before)) => {
                let name = all.get(index + 1).map_or("", |name| &text[name.start..name.end]);
                let filter = if SMALL.contains(&name) { Insertion::Seen } else { Insertion::Made };
                filters.push((before.end, filter));
            }
            (Kind::Sum | Kind::Product, Some(before)) => {
                let filter =
                    if token.kind == Kind::Sum { Insertion::Spent } else { Insertion::Factor };
                filters.push((before.end, filter));
                if let Some(last) = operand(all, index + 1) {
                    filters.push((all[last].end, filter));
                }
            }
            _ => {}
        }
    }
    if is_statement {
        filters.extend(named(text, all).into_iter().flatten());
    }
    filters.sort_unstable();
    filters.dedup();
    filters
}

/// Whether a bracket that begins a value is that of a list, an object or a tuple.
fn is_value(text: &str, all: &[Token], index: usize) -> bool {
    let closes = all[index].closed_by;
    // `(a, b) = ..`: names.
    if closes >= all.len() || all.get(closes + 1).is_some_and(|next| next.kind == Kind::Assign) {
        return false;
    }
    let is_round = text.as_bytes()[all[index].start] == b'(';
    !is_round || outermost(&all[..closes], index + 1).any(|at| all[at].kind == Kind::Comma)
}

/// The tokens from one on that are in no bracket.
fn outermost(all: &[Token], from: usize) -> impl Iterator<Item = usize> {
    let next = move |at: &usize| {
        let closes = all[*at].closed_by;
        Some(if closes < all.len() { closes } else { *at } + 1).filter(|next| *next < all.len())
    };
    std::iter::successors(Some(from).filter(|from| *from < all.len()), next)
}

/// What is put around that which gets a name: `{% set a = b %}`, also that which is a part of a
/// namespace.
fn named(text: &str, all: &[Token]) -> Option<[(usize, Insertion); 2]> {
    let (first, last) = (all.first()?, all.last()?);
    if &text[first.start..first.end] != "set" {
        return None;
    }
    let assign = outermost(all, 1).find(|at| all[*at].kind == Kind::Assign)?;
    let is_part = all[..assign].iter().any(|token| token.kind == Kind::Dot);
    let is_tuple = outermost(all, assign + 1).any(|at| all[at].kind == Kind::Comma);
    let filter = if is_part || is_tuple { Insertion::Held } else { Insertion::Kept };
    Some([(all[assign].end, Insertion::OpenName), (last.end, filter)])
}

fn write_filtered(text: &str, filters: Vec<(usize, Insertion)>, out: &mut String) {
    let mut from = 0;
    for (at, filter) in filters {
        out.push_str(&text[from..at]);
        match filter {
            Insertion::Open | Insertion::OpenName => out.push('('),
            Insertion::Built => out.extend(["|", BUILT, ")"]),
            Insertion::Seen => out.extend(["|", SEEN]),
            Insertion::Made => out.extend(["|", MADE]),
            Insertion::Factor => out.extend(["|", FACTOR]),
            Insertion::Spent => out.extend(["|", SPENT]),
            Insertion::Kept => out.extend([")|", KEPT]),
            Insertion::Held => out.extend([")|", HELD]),
        }
        from = at;
    }
    out.push_str(&text[from..]);
}

/// The last token of the operand that begins at a token.
fn operand(all: &[Token], mut index: usize) -> Option<usize> {
    let kind = |index: usize| all.get(index).map(|token| token.kind);
    while kind(index) == Some(Kind::Minus) {
        index += 1;
    }
    let closed = |index: usize| Some(all[index].closed_by).filter(|closes| *closes < all.len());
    let mut last = match kind(index)? {
        Kind::Begin | Kind::Open => closed(index)?,
        Kind::Word | Kind::Keyword => index,
        // Strings beside each other are one.
        Kind::Text => (index..).take_while(|at| kind(*at) == Some(Kind::Text)).last()?,
        _ => return None,
    };
    loop {
        last = match kind(last + 1) {
            Some(Kind::Dot | Kind::Pipe)
                if matches!(kind(last + 2), Some(Kind::Word | Kind::Keyword)) =>
            {
                last + 2
            }
            Some(Kind::Open) => closed(last + 1)?,
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
            .replace("|polydraft_seen", "°")
            .replace(")|polydraft_kept", "¶")
            .replace(")|polydraft_held", "¬")
    }

    #[test]
    fn operands_get_a_filter() {
        for (text, expected) in [
            ("a ~ b {{ a ~ b }} c + d", "a ~ b {{ a§ ~ b§ }} c + d"),
            ("{{ a.b['~'](1) ~ '}}' ~ c|upper }}", "{{ a.b['~'](1)§ ~ '}}'§ ~ cµ|upper§ }}"),
            ("{{- (a + b) * 3 -}}", "{{- (a§ + b§)× * 3× -}}"),
            (
                "{%- set x = -1 + -y if z else f(*w) -%}",
                "{%- set x =( -1§ + -y§ if z else f(*w)¶ -%}",
            ),
            (
                "{%+ if a %}{% raw %}{{ a + b }}{% endraw %}{# a ~ b #}",
                "{%+ if a %}{% raw %}{{ a + b }}{% endraw %}{# a ~ b #}",
            ),
            (
                "{% for m in messages + [{'a': [1]}] %}",
                "{% for m in messages§ + ([({'a': ([1]¤}¤]¤§ %}⏲%}",
            ),
            (
                "{{ 2 ** 3 }}{{ x[0] }}{{ [x][0] ~ é }}",
                "{{ 2 ** 3 }}{{ x[0] }}{{ ([x]¤[0]§ ~ é§ }}",
            ),
            ("{%- for x in y|list -%} z", "{%- for x in yµ|list -%}⏲-%} z"),
            (
                "{{ a\x0c~ b }}{{ 1. ~ a }}{{ 1.5e+3 + 1 }}",
                "{{ a§\x0c~ b§ }}{{ 1.§ ~ a§ }}{{ 1.5e+3§ + 1§ }}",
            ),
            (
                "{{ call ~ if|upper }}{{ a.in[0] * block }}",
                "{{ call§ ~ ifµ|upper§ }}{{ a.in[0]× * block× }}",
            ),
            ("{{ call['x'] }}{% do f(x in [1]) %}", "{{ call['x'] }}{% do f(x in ([1]¤) %}"),
            (
                "{% if not ['x'] and a == not[0] ~ not %}",
                "{% if not (['x']¤ and a == not[0]§ ~ not§ %}",
            ),
            ("{{ x is eq [1] }}{{ x not in [y] }}", "{{ x is eq ([1]¤ }}{{ x not in ([y]¤ }}"),
            ("{% for (a, b) in (c, d) %}", "{% for (a, b) in ((c, d)¤ %}⏲%}"),
            (
                "{% call(a, b) f((c)) %}{{ f(a, b=(1,)) }}",
                "{% call(a, b) f((c)) %}{{ f(a, b=((1,)¤) }}",
            ),
            (
                "{% set (a, b) = x, y %}{% set a.b = c %}",
                "{% set (a, b) =( x, y¬ %}{% set a.b =( c¬ %}",
            ),
            (
                "{% set a | upper %}{% set a = b == c %}",
                "{% set aµ | upper %}{% set a =( b == c¶ %}",
            ),
            (
                "{{ 'a' + 'b' 'c' + d }}{{ a|length - 1 }}",
                "{{ 'a'§ + 'b' 'c'§ + d§ }}{{ a°|length - 1 }}",
            ),
            (
                "{% raw %}{% ' %}{% endraw %}{{ a ~ b }}",
                "{% raw %}{% ' %}{% endraw %}{{ a§ ~ b§ }}",
            ),
            ("{#}{{ ' #}{{ a ~ b }}", "{#}{{ ' #}{{ a§ ~ b§ }}"),
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
