//! Instrumentation of templates that limits operators with large outputs: `s ~ s` in a loop doubles
//! a string until memory ends.
//!
//! Problem: the template engine counts operations but not their output, and has no hook for
//! operators.
//! Source: ours.
//! Complexity: one pass over the template's text.
//!
//! 1. Operands of `~`, `+` and `*` in a tag get a filter that charges their size to the template's
//!    output limit: `a ~ b.c` becomes `a|spent ~ b.c|spent`. A filter binds tighter than all
//!    operators, so the result is unchanged.
//! 2. Products repeat: a string or list next to `*` is charged a thousand times, and a number is
//!    limited to a thousand if a string or list has been repeated.
//! 3. Literal lists, tuples and objects get a filter that checks their size and depth: `[a, a]` in
//!    a loop is a tree of 2^n leaves, and `[a]` in a loop is too deep to be dropped. So do values
//!    assigned to a namespace. A lazy slice that is assigned to a variable is evaluated: `a[:]` of
//!    `a[:]` is deep too.
//! 4. A filter's input passes a filter that charges it; before filters with small outputs, one that
//!    checks the deadline, as do loops and macros in each iteration.
//! 5. Comments and raw blocks are unchanged.
//!
//! Operators get the results of Python in the same pass: see `operators`.

use super::insertions::{Insertion, outermost};
use super::operators::{self, ATTRIBUTE, ENTRY, PERCENT, SLICE};
use super::tags;
use super::tokens::{Kind, Token, string_end, tokens};

/// Filter after operands of `+`.
pub(super) const SPENT: &str = "polydraft_spent";
/// Filter after operands of `*`.
pub(super) const FACTOR: &str = "polydraft_factor";
/// Filter after an operand of `*` next to a string literal.
pub(super) const COUNT: &str = "polydraft_count";
/// Filter after literal lists and objects.
pub(super) const BUILT: &str = "polydraft_built";
/// Filter before filters.
pub(super) const INPUT: &str = "polydraft_input";
/// Filter before filters with small outputs.
pub(super) const TIMED: &str = "polydraft_timed";
/// Filter after the value of an assignment.
pub(super) const ASSIGNED: &str = "polydraft_assigned";
/// Filter after a value that is stored in a namespace or tuple.
pub(super) const STORED: &str = "polydraft_stored";
/// Filter after operands of `~`, which are converted to text.
pub(super) const JOINED: &str = "polydraft_joined";
/// Filter after operands of a `+` with a text marked as safe, which escapes the others.
pub(super) const ESCAPED: &str = "polydraft_escaped";
/// Filter after the list of a loop.
pub(super) const ITERATED: &str = "polydraft_iterated";
/// Function that checks the deadline.
pub(super) const TICK: &str = "polydraft_tick";

/// Filters with small outputs: they read no more than a part of their input.
const SMALL: [&str; 4] = ["length", "count", "first", "last"];

/// Returns the template with the additional filters.
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
        // The parser reports tags that do not end.
        if is_expression && length > 4 && (tag.ends_with("%}") || tag.ends_with("}}")) {
            with_filters(tag, &mut out);
        } else {
            out.push_str(tag);
        }
    }
    out + rest
}

/// Writes a tag with the additional filters.
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
        // A block trims white space like the tag before it.
        let sign = &tag[end..tag.len() - 2];
        out.extend(["{% if ", TICK, "() %}{% endif ", sign, "%}"]);
    }
}

/// Returns the length of a tag up to `close`, which strings may contain.
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
            // Continuation bytes of a character are never ASCII.
            _ => at += 1,
        }
        while at < bytes.len() && !tag.is_char_boundary(at) {
            at += 1;
        }
    }
    tag.len()
}

impl Insertion {
    /// Returns the inserted text, and the number of characters that it replaces.
    fn text(self) -> ([&'static str; 3], usize) {
        match self {
            Self::Open | Self::OpenName => (["(", "", ""], 0),
            Self::Built => (["|", BUILT, ")"], 0),
            Self::Timed => (["|", TIMED, ""], 0),
            Self::Input => (["|", INPUT, ""], 0),
            Self::Factor => (["|", FACTOR, ""], 0),
            Self::Count => (["|", COUNT, ""], 0),
            Self::Spent => (["|", SPENT, ""], 0),
            Self::Joined => (["|", JOINED, ""], 0),
            Self::Escaped => (["|", ESCAPED, ""], 0),
            Self::Assigned => ([")|", ASSIGNED, ""], 0),
            Self::Stored => ([")|", STORED, ""], 0),
            Self::Iterated => ([")|", ITERATED, ""], 0),
            Self::Close => ([")", "", ""], 0),
            Self::Missing => (["none", "", ""], 0),
            Self::SliceBegin => ([".", SLICE, "("], 1),
            Self::SliceNext => ([",", "", ""], 1),
            Self::SliceEnd => ([")", "", ""], 1),
            Self::Percent => ([".", PERCENT, "("], 1),
            Self::Plus => (["", "", ""], 1),
            Self::Attribute => ([".", ATTRIBUTE, "('"], 1),
            Self::EndAttribute => (["')", "", ""], 0),
            Self::Entry => ([".", ENTRY, "("], 1),
            Self::JoinedProduct => ([")|", JOINED, ""], 0),
        }
    }
}

/// Returns the insertions of a tag, by position.
fn insertions(text: &str, all: &[Token], is_statement: bool) -> Vec<(usize, Insertion)> {
    let mut filters: Vec<(usize, Insertion)> = Vec::new();
    for (index, token) in all.iter().enumerate() {
        let before =
            index.checked_sub(1).map(|before| &all[before]).filter(|before| before.ends_operand());
        match (token.kind, before) {
            (Kind::Begin, _) if is_value(text, all, index) => {
                // Parentheses, because a filter cannot be followed by an index.
                filters.push((token.start, Insertion::Open));
                filters.push((all[token.closed_by].end, Insertion::Built));
            }
            (Kind::Pipe, Some(before)) => {
                let name = all.get(index + 1).map_or("", |name| &text[name.start..name.end]);
                let filter =
                    if SMALL.contains(&name) { Insertion::Timed } else { Insertion::Input };
                filters.push((before.end, filter));
            }
            (Kind::Sum | Kind::Product, Some(before)) => {
                let filter = match &text[token.start..token.end] {
                    "~" => continue,
                    "+" if operators::is_sign(text, all, index) => continue,
                    "*" => Insertion::Factor,
                    _ if operators::is_safe_sum(text, all, index) => Insertion::Escaped,
                    _ => Insertion::Spent,
                };
                // Next to a literal, the other operand is a number.
                let beside = |other: Option<&Token>| match other.map(|other| other.kind) {
                    Some(Kind::Text) if filter == Insertion::Factor => Insertion::Count,
                    _ => filter,
                };
                filters.push((before.end, beside(all.get(index + 1))));
                if let Some(last) = operators::operand(text, all, index + 1) {
                    filters.push((all[last].end, beside(Some(before))));
                }
            }
            _ => {}
        }
    }
    if is_statement {
        filters.extend(assignment(text, all).into_iter().flatten());
    }
    operators::replace(text, all, is_statement, &mut filters);
    filters.sort_unstable();
    filters.dedup();
    filters
}

/// Returns whether a bracket starts a list, an object or a tuple.
fn is_value(text: &str, all: &[Token], index: usize) -> bool {
    let closes = all[index].closed_by;
    // `(a, b) = ..`: variable names.
    if closes >= all.len() || all.get(closes + 1).is_some_and(|next| next.kind == Kind::Assign) {
        return false;
    }
    let is_round = text.as_bytes()[all[index].start] == b'(';
    !is_round || outermost(&all[..closes], index + 1).any(|at| all[at].kind == Kind::Comma)
}

/// Returns the insertions around the value of `{% set a = b %}`, also for attributes of a
/// namespace.
fn assignment(text: &str, all: &[Token]) -> Option<[(usize, Insertion); 2]> {
    let (first, last) = (all.first()?, all.last()?);
    if &text[first.start..first.end] != "set" {
        return None;
    }
    let assign = outermost(all, 1).find(|at| all[*at].kind == Kind::Assign)?;
    let is_part = all[..assign].iter().any(|token| token.kind == Kind::Dot);
    let is_tuple = outermost(all, assign + 1).any(|at| all[at].kind == Kind::Comma);
    let filter = if is_part || is_tuple { Insertion::Stored } else { Insertion::Assigned };
    Some([(all[assign].end, Insertion::OpenName), (last.end, filter)])
}

fn write_filtered(text: &str, filters: Vec<(usize, Insertion)>, out: &mut String) {
    let mut from = 0;
    for (at, insertion) in filters {
        let (inserted, replaced) = insertion.text();
        out.push_str(&text[from..at]);
        out.extend(inserted);
        from = at + replaced;
    }
    out.push_str(&text[from..]);
}

#[cfg(test)]
mod tests {
    use super::measured;

    fn abbreviated(text: &str) -> String {
        measured(text)
            .replace("|polydraft_input", "µ")
            .replace("{% if polydraft_tick() %}{% endif ", "⏲")
            .replace("|polydraft_spent", "§")
            .replace("|polydraft_factor", "×")
            .replace("|polydraft_built)", "¤")
            .replace("|polydraft_timed", "°")
            .replace("|polydraft_joined", "†")
            .replace(".polydraft_", ".")
            .replace(")|polydraft_iterated", "∀")
            .replace("|polydraft_escaped", "€")
            .replace(")|polydraft_assigned", "¶")
            .replace(")|polydraft_stored", "¬")
    }

    #[test]
    fn inserts_filters_after_operands_and_around_literals() {
        for (text, expected) in [
            ("a ~ b {{ a ~ b }} c + d", "a ~ b {{ a† ~ b† }} c + d"),
            ("{{ a.b['~'](1) ~ '}}' ~ c|upper }}", "{{ a.b['~'](1)† ~ '}}'† ~ cµ|upper† }}"),
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
                "{% for m in( messages§ + ([({'a': ([1]¤}¤]¤§∀ %}⏲%}",
            ),
            (
                "{{ 2 ** 3 }}{{ x[0] }}{{ [x][0] ~ é }}",
                "{{ 2 ** 3 }}{{ x[0] }}{{ ([x]¤[0]† ~ é† }}",
            ),
            ("{%- for x in y|list -%} z", "{%- for x in( yµ|list∀ -%}⏲-%} z"),
            (
                "{{ a\x0c~ b }}{{ 1. ~ a }}{{ 1.5e+3 + 1 }}",
                "{{ a†\x0c~ b† }}{{ 1.† ~ a† }}{{ 1.5e+3§ + 1§ }}",
            ),
            (
                "{{ call ~ if|upper }}{{ a.in[0] * block }}",
                "{{ call† ~ ifµ|upper† }}{{ a.in[0]× * block× }}",
            ),
            ("{{ call['x'] }}{% do f(x in [1]) %}", "{{ call['x'] }}{% do f(x in ([1]¤) %}"),
            (
                "{% if not ['x'] and a == not[0] ~ not %}",
                "{% if not (['x']¤ and a == not[0]† ~ not† %}",
            ),
            ("{{ x is eq [1] }}{{ x not in [y] }}", "{{ x is eq ([1]¤ }}{{ x not in ([y]¤ }}"),
            ("{% for (a, b) in (c, d) %}", "{% for (a, b) in( ((c, d)¤∀ %}⏲%}"),
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
                "{% raw %}{% ' %}{% endraw %}{{ a† ~ b† }}",
            ),
            ("{#}{{ ' #}{{ a ~ b }}", "{#}{{ ' #}{{ a† ~ b† }}"),
            ("{{ 2 * a ~ -b / 3 ~ c }}", "{{ (2× * a×)† ~ (-b / 3)† ~ c† }}"),
            ("{{ a == b * 2 ~ c }}", "{{ a == (b× * 2×)† ~ c† }}"),
            ("{{ '%s' % a.b ~ c % 2 }}", "{{ ('%s' .percent( a.b))† ~ (c % 2)† }}"),
            ("{{ a[1::-1] }}{{ a[:] }}", "{{ a.slice(1,none,-1) }}{{ a[:] }}"),
            ("{{ +a + +1 }}", "{{ a§ + 1§ }}"),
            ("{{ a|safe + b }}{{ [c|e] + d }}", "{{ aµ|safe€ + b€ }}{{ ([cµ|e]¤§ + d§ }}"),
            ("{{ a.items.b['keys'] }}", "{{ a.attribute('items').b.entry('keys') }}"),
            ("{{ a.items() }}{% set a.keys = b %}", "{{ a.items() }}{% set a.keys =( b¬ %}"),
            (
                "{% for a in b if c %}{% for a in b recursive %}",
                "{% for a in( b∀ if c %}⏲%}{% for a in( b∀ recursive %}⏲%}",
            ),
            ("{% endif %é}", "{% endif %é}"),
            ("{{ a }▁}", "{{ a }▁}"),
            ("{{ a ~", "{{ a ~"),
            ("{{ 'a\\' ~ b", "{{ 'a\\' ~ b"),
            ("{ {% { %}", "{ {% { %}"),
        ] {
            assert_eq!(abbreviated(text), expected, "{text}");
        }
    }
}
