//! Checks of a chat template before parsing: its size, and the nesting depth of its expressions and
//! blocks. Templates come from untrusted models, and deep nesting would overflow the stack. The
//! parser itself limits brackets and blocks, but not chains (`not not ..`, `a + b + ..`, `elif`
//! after `elif`), in which each link is a level of the syntax tree.

use minijinja::Error;

use super::limits::refused;
use super::tags;

/// Maximum size of a template in bytes.
const MAX_TEMPLATE_SIZE: usize = 1 << 20;
/// Maximum depth of the syntax tree.
const MAX_DEPTH: usize = 400;
/// Maximum number of operations per run.
const FUEL: u64 = 2_000_000;
/// Maximum number of literal bytes that the operations of a run may write.
const MAX_LITERAL_OUTPUT: usize = 1 << 29;

/// Checks size and nesting of a template; returns its number of allowed operations.
pub(super) fn check(text: &str) -> Result<u64, Error> {
    if text.len() > MAX_TEMPLATE_SIZE {
        return Err(refused(format!(
            "expected at most {MAX_TEMPLATE_SIZE} bytes, got {}",
            text.len()
        )));
    }
    let scan = Scan::new(text);
    if let Some(line) = scan.too_deep {
        return Err(refused(format!(
            "expected at most {MAX_DEPTH} levels of nesting, got more in line {line}"
        )));
    }
    Ok(FUEL.min((MAX_LITERAL_OUTPUT / scan.longest_literal.max(1)) as u64))
}

/// Properties of a template that is not parsed.
#[derive(Default)]
struct Scan {
    /// Line of the first tag with too deep nesting.
    too_deep: Option<usize>,
    /// Length of the longest literal between two tags, in bytes.
    longest_literal: usize,
}

impl Scan {
    /// Scans the text once, up to the first tag with too deep nesting.
    fn new(text: &str) -> Self {
        let mut scan = Self::default();
        // Number of links of each open block.
        let mut blocks: Vec<usize> = Vec::new();
        let (mut at, mut literal) = (0, 0);
        while let Some(start) = text[at..].find('{').map(|next| at + next) {
            let kind = text.as_bytes().get(start + 1);
            at = match kind {
                Some(b'#') => start + tags::comment(&text[start..]),
                Some(b'{' | b'%') => {
                    let is_block = kind == Some(&b'%');
                    if is_block && let Some(length) = tags::raw(&text[start..]) {
                        at = start + length;
                        continue;
                    }
                    let (end, depth) = tag(text, start + 2, is_block);
                    if is_block {
                        block(&text[start + 2..end], &mut blocks);
                    }
                    if depth + blocks.iter().sum::<usize>() > MAX_DEPTH {
                        scan.too_deep = Some(1 + text[..start].matches('\n').count());
                        return scan;
                    }
                    end
                }
                _ => {
                    at = start + 1;
                    continue;
                }
            };
            scan.longest_literal = scan.longest_literal.max(start - literal);
            literal = at;
        }
        scan.longest_literal = scan.longest_literal.max(text.len() - literal);
        scan
    }
}

/// Updates the open blocks: the first word of a tag opens, continues or closes one.
fn block(tag: &str, blocks: &mut Vec<usize>) {
    let word = tag.trim_start_matches(|c: char| !c.is_alphabetic());
    match word.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default() {
        "elif" => {
            if let Some(links) = blocks.last_mut() {
                *links += 1;
            }
        }
        // `set` with a value is not a block.
        "set" if tag.contains('=') => {}
        "if" | "for" | "macro" | "call" | "filter" | "set" | "with" | "block" | "generation" => {
            blocks.push(1)
        }
        word if word.starts_with("end") => drop(blocks.pop()),
        _ => {}
    }
}

/// Returns the end of a tag and an upper bound of its expression's depth: the number of links in
/// open chains. A bracket opens a chain inside, a comma starts the next one.
fn tag(text: &str, start: usize, is_block: bool) -> (usize, usize) {
    let bytes = text.as_bytes();
    let close = if is_block { b'%' } else { b'}' };
    let mut links = vec![0usize];
    let (mut total, mut deepest) = (0usize, 0usize);
    let mut at = start;
    let mut add = |links: &mut Vec<usize>, total: &mut usize| {
        if let Some(last) = links.last_mut() {
            *last += 1;
            *total += 1;
            deepest = deepest.max(*total);
        }
    };
    while let Some(&byte) = bytes.get(at) {
        at += 1;
        match byte {
            b'\'' | b'"' => {
                while let Some(&inner) = bytes.get(at) {
                    at += if inner == b'\\' { 2 } else { 1 };
                    if inner == byte {
                        break;
                    }
                }
            }
            _ if byte == close && links.len() == 1 && bytes.get(at) == Some(&b'}') => {
                return (at + 1, deepest);
            }
            b'(' | b'[' | b'{' => {
                add(&mut links, &mut total);
                links.push(0);
            }
            b')' | b']' | b'}' if links.len() > 1 => total -= links.pop().unwrap_or(0),
            b',' => {
                if let Some(last) = links.last_mut() {
                    total -= std::mem::take(last);
                }
            }
            b'.' | b'|' | b'+' | b'-' | b'*' | b'/' | b'%' | b'~' | b'<' | b'>' | b'=' | b'!' => {
                add(&mut links, &mut total);
            }
            _ if byte.is_ascii_alphabetic() || byte == b'_' => {
                let word = at - 1;
                while bytes.get(at).is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_') {
                    at += 1;
                }
                if matches!(
                    &bytes[word..at],
                    b"not" | b"if" | b"else" | b"and" | b"or" | b"in" | b"is"
                ) {
                    add(&mut links, &mut total);
                }
            }
            _ => {}
        }
    }
    (text.len(), deepest)
}
