//! Operators that get the results of Python, in templates before they are parsed.
//!
//! Problem: the template engine has no hook for operators, and differs from Python in some.
//! Source: ours.
//! Complexity: one pass over the tokens of a tag; sums and products look at their neighbours.
//!
//! 1. Operands of `~` get a filter that converts them to text, because the engine writes numbers
//!    differently.
//! 2. `'%d' % 3` and `x[3:0:-1]` become calls of methods; a `+` without an operand before it is
//!    removed.
//! 3. `x.items` and `x['items']` become calls too: in Python, dictionaries have methods under such
//!    names.
//! 4. A sum with a text that is marked as safe escapes its other operands.
//! 5. A loop over `none` fails.

use super::insertions::{Insertion, outermost};
use super::tokens::{Kind, Token};

/// Method in place of a slice with a step.
pub(super) const SLICE: &str = "polydraft_slice";
/// Method in place of `%` after a string literal.
pub(super) const PERCENT: &str = "polydraft_percent";
/// Method in place of an attribute in [`METHODS`].
pub(super) const ATTRIBUTE: &str = "polydraft_attribute";
/// Method in place of an item whose key is in [`METHODS`].
pub(super) const ENTRY: &str = "polydraft_entry";

/// Methods of Python's dictionaries that may be keys of a tool's parameters. Those that change a
/// dictionary are not allowed in templates.
pub(super) const METHODS: [&str; 5] = ["items", "keys", "values", "get", "copy"];
/// Filters whose output is marked as safe.
const SAFE: [&str; 4] = ["safe", "e", "escape", "forceescape"];

/// Adds the replacements of a tag, by position.
pub(super) fn replace(
    text: &str,
    all: &[Token],
    is_statement: bool,
    replaced: &mut Vec<(usize, Insertion)>,
) {
    let word = |token: &Token| &text[token.start..token.end];
    // Attributes of a namespace that are assigned to.
    let assigned = match all.first().filter(|first| is_statement && word(first) == "set") {
        Some(_) => outermost(all, 1).find(|at| all[*at].kind == Kind::Assign).unwrap_or(all.len()),
        None => 0,
    };
    for (index, token) in all.iter().enumerate() {
        let before = index.checked_sub(1).map(|at| &all[at]);
        let is_after_operand = before.is_some_and(|before| before.ends_operand());
        match token.kind {
            Kind::Open => {
                replaced.extend(slice(text, all, index).into_iter().flatten());
                replaced.extend(entry(text, all, index).into_iter().flatten());
            }
            Kind::Dot if index >= assigned => {
                let name = all.get(index + 1).filter(|name| METHODS.contains(&word(name)));
                let is_called =
                    all.get(index + 2).is_some_and(|next| text[next.start..].starts_with('('));
                if let Some(name) = name.filter(|_| !is_called) {
                    replaced.push((token.start, Insertion::Attribute));
                    replaced.push((name.end, Insertion::EndAttribute));
                }
            }
            Kind::Percent => {
                if let Some(last) = formatted(text, all, index) {
                    replaced.push((token.start, Insertion::Percent));
                    replaced.push((all[last].end, Insertion::Close));
                }
            }
            Kind::Sum if is_sign(text, all, index) => {
                replaced.push((token.start, Insertion::Plus));
            }
            Kind::Sum if word(token) == "~" && is_after_operand => {
                let (begin, end) = (product_begin(text, all, index - 1), index - 1);
                replaced.extend(joined(text, all, begin, end));
                if let Some(end) = product_end(text, all, index + 1) {
                    replaced.extend(joined(text, all, index + 1, end));
                }
            }
            _ => {}
        }
    }
    if is_statement {
        replaced.extend(iteration(text, all).into_iter().flatten());
    }
}

/// Returns whether a token is a `+` without an operand before it.
pub(super) fn is_sign(text: &str, all: &[Token], index: usize) -> bool {
    let before = index.checked_sub(1).map(|at| &all[at]);
    let is_operand = before.is_some_and(|it| it.ends_operand() && it.kind != Kind::Keyword);
    text[all[index].start..].starts_with('+') && !is_operand
}

/// Returns whether a token is an operator that binds tighter than `~`.
fn is_factor(text: &str, token: &Token) -> bool {
    let operator = &text[token.start..token.end];
    token.kind == Kind::Percent || matches!(operator, "*" | "/" | "//" | "**")
}

/// Returns the insertions around an operand of `~`.
fn joined(text: &str, all: &[Token], begin: usize, end: usize) -> Vec<(usize, Insertion)> {
    let word = |at: usize| all.get(at).map_or("", |token| &text[token.start..token.end]);
    // The test needs the value, not its text, and its result has the same text in both.
    if word(end + 1) == "is" && all[end + 1].kind == Kind::Keyword {
        return vec![(all[end].end, Insertion::Spent)];
    }
    let is_product = outermost(&all[..=end], begin).any(|at| is_factor(text, &all[at]));
    match is_product {
        true => {
            vec![(all[begin].start, Insertion::OpenName), (all[end].end, Insertion::JoinedProduct)]
        }
        false => vec![(all[end].end, Insertion::Joined)],
    }
}

/// Returns the first token of the product that ends at a token.
fn product_begin(text: &str, all: &[Token], end: usize) -> usize {
    let mut begin = end;
    let mut open = 0usize;
    loop {
        match all[begin].kind {
            Kind::Close => open += 1,
            Kind::Begin | Kind::Open => open = open.saturating_sub(1),
            _ => {}
        }
        let Some(before) = begin.checked_sub(1).map(|before| &all[before]) else { return begin };
        let is_operand = begin.checked_sub(2).is_some_and(|at| all[at].ends_operand());
        let continues = match before.kind {
            _ if open > 0 => true,
            Kind::Word | Kind::Text | Kind::Close | Kind::Dot | Kind::Pipe | Kind::Percent => true,
            Kind::Minus => !is_operand,
            Kind::Sum => is_sign(text, all, begin - 1),
            Kind::Keyword if matches!(all[begin].kind, Kind::Dot | Kind::Pipe | Kind::Open) => true,
            Kind::Keyword => {
                let word = |token: &Token| &text[token.start..token.end];
                let is_test = |token: &Token| token.kind == Kind::Keyword && word(token) == "is";
                is_test(before)
                    || begin.checked_sub(2).is_some_and(|at| is_test(&all[at]))
                    || is_test(&all[begin])
            }
            _ => is_factor(text, before),
        };
        if !continues {
            return begin;
        }
        begin -= 1;
    }
}

/// Returns the last token of the product that begins at a token.
fn product_end(text: &str, all: &[Token], begin: usize) -> Option<usize> {
    let mut end = operand(text, all, begin)?;
    while all.get(end + 1).is_some_and(|next| is_factor(text, next)) {
        end = operand(text, all, end + 2)?;
    }
    Some(end)
}

/// Returns the replacements of an item with a literal key in [`METHODS`].
fn entry(text: &str, all: &[Token], open: usize) -> Option<[(usize, Insertion); 2]> {
    let [key, close] = [all.get(open + 1)?, all.get(open + 2)?];
    let name = text[key.start..key.end].trim_matches(['\'', '"']);
    let is_entry = text.as_bytes()[all[open].start] == b'['
        && all[open].closed_by == open + 2
        && key.kind == Kind::Text
        && METHODS.contains(&name);
    is_entry.then_some([(all[open].start, Insertion::Entry), (close.start, Insertion::SliceEnd)])
}

/// Returns the insertions around the list of `{% for a in b if c recursive %}`.
fn iteration(text: &str, all: &[Token]) -> Option<[(usize, Insertion); 2]> {
    let word = |at: usize| &text[all[at].start..all[at].end];
    let is_keyword = |at: usize, name: &str| all[at].kind == Kind::Keyword && word(at) == name;
    all.first().filter(|_| word(0) == "for")?;
    let begin = outermost(all, 1).find(|at| is_keyword(*at, "in"))?;
    let condition = outermost(all, begin + 1).find(|at| is_keyword(*at, "if"));
    let end = condition.unwrap_or(all.len()) - 1;
    let end = if condition.is_none() && is_keyword(end, "recursive") { end - 1 } else { end };
    let around = [(all[begin].end, Insertion::OpenName), (all[end].end, Insertion::Iterated)];
    Some(around).filter(|_| begin < end)
}

/// Returns the replacements of a slice with a step, `[a:b:c]`: the engine confuses the stops 0 and
/// none.
fn slice(text: &str, all: &[Token], open: usize) -> Option<Vec<(usize, Insertion)>> {
    let close = all[open].closed_by;
    if close >= all.len() || text.as_bytes()[all[open].start] != b'[' {
        return None;
    }
    let is_colon = |at: &usize| &text[all[*at].start..all[*at].end] == ":";
    let colons: Vec<usize> = outermost(&all[..close], open + 1).filter(is_colon).collect();
    let &[first, second] = colons.as_slice() else { return None };
    let mut replaced = vec![(all[open].start, Insertion::SliceBegin)];
    for (before, end, insertion) in [
        (open, first, Insertion::SliceNext),
        (first, second, Insertion::SliceNext),
        (second, close, Insertion::SliceEnd),
    ] {
        if before + 1 == end {
            replaced.push((all[end].start, Insertion::Missing));
        }
        replaced.push((all[end].start, insertion));
    }
    Some(replaced)
}

/// Returns the last token of the operand after a `%` that formats a string literal.
fn formatted(text: &str, all: &[Token], percent: usize) -> Option<usize> {
    let literals = all[..percent].iter().rev().take_while(|token| token.kind == Kind::Text).count();
    let before = (percent - literals).checked_sub(1).map(|before| all[before].kind);
    // `2 * '%d' % 3` formats a product.
    let is_operand = !matches!(before, Some(Kind::Product | Kind::Percent | Kind::Other));
    let last = operand(text, all, percent + 1).filter(|_| literals > 0 && is_operand)?;
    // `**` binds tighter than `%`.
    match all.get(last + 1).filter(|next| &text[next.start..next.end] == "**") {
        Some(_) => operand(text, all, last + 2),
        None => Some(last),
    }
}

/// Returns whether an operand of a sum ends with a filter that marks text as safe.
pub(super) fn is_safe_sum(text: &str, all: &[Token], index: usize) -> bool {
    let ends_sum = |token: &Token| match token.kind {
        Kind::Comma | Kind::Assign | Kind::Keyword => true,
        Kind::Other => !is_factor(text, token),
        _ => false,
    };
    let mut open = 0usize;
    let mut begin = index;
    while let Some(before) = begin.checked_sub(1) {
        match all[before].kind {
            Kind::Close => open += 1,
            Kind::Begin | Kind::Open if open == 0 => break,
            Kind::Begin | Kind::Open => open -= 1,
            _ if open == 0 && ends_sum(&all[before]) => break,
            _ => {}
        }
        begin = before;
    }
    let is_end = |at: &usize| ends_sum(&all[*at]) || all[*at].kind == Kind::Close;
    let (mut is_safe, mut is_text) = (false, false);
    for at in outermost(all, begin).take_while(|at| !is_end(at)) {
        let name = all.get(at + 1).map_or("", |name| &text[name.start..name.end]);
        match &text[all[at].start..all[at].end] {
            "|" => is_safe |= SAFE.contains(&name),
            // A text of several operands is not marked.
            "~" => is_text = true,
            "+" if is_safe && !is_text => return true,
            "+" => (is_safe, is_text) = (false, false),
            _ => {}
        }
    }
    is_safe && !is_text
}

/// Returns the last token of the operand that begins at a token.
pub(super) fn operand(text: &str, all: &[Token], mut index: usize) -> Option<usize> {
    let kind = |index: usize| all.get(index).map(|token| token.kind);
    while kind(index) == Some(Kind::Minus)
        || all.get(index).is_some_and(|_| is_sign(text, all, index))
    {
        index += 1;
    }
    let closed = |index: usize| Some(all[index].closed_by).filter(|closes| *closes < all.len());
    let mut last = match kind(index)? {
        Kind::Begin | Kind::Open => closed(index)?,
        Kind::Word | Kind::Keyword => index,
        // Adjacent strings are concatenated.
        Kind::Text => {
            let last = (index..).take_while(|at| kind(*at) == Some(Kind::Text)).last()?;
            match kind(last + 1) {
                Some(Kind::Percent) => return formatted(text, all, last + 1).or(Some(last)),
                _ => last,
            }
        }
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
