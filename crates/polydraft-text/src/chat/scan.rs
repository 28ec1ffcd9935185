//! What is seen of a chat template before it is parsed: its length, and how deep its expressions
//! and blocks nest. Templates come with models of strangers: one that nests too deep would end the
//! program by its stack. The parser guards brackets and blocks itself, but not chains (`not not
//! ..`, `a + b + ..`, `elif` after `elif`), each link of which is a level of its tree.

use minijinja::Error;

use super::limits::refused;
use super::tags;

/// Bytes of a template.
const LONGEST_TEMPLATE: usize = 1 << 20;
/// Levels of its tree.
const DEEPEST: usize = 400;
/// Operations of a run.
const FUEL: u64 = 2_000_000;
/// Bytes of literal text that a run's operations may write together.
const MOST_LITERAL: usize = 1 << 29;

/// Checks length and nesting of a template; returns the operations that it may take.
pub(super) fn check(text: &str) -> Result<u64, Error> {
    if text.len() > LONGEST_TEMPLATE {
        return Err(refused(format!(
            "expected at most {LONGEST_TEMPLATE} bytes, got {}",
            text.len()
        )));
    }
    let scan = Scan::new(text);
    if let Some(line) = scan.too_deep {
        return Err(refused(format!(
            "expected at most {DEEPEST} levels of nesting, got more in line {line}"
        )));
    }
    Ok(FUEL.min((MOST_LITERAL / scan.longest_literal.max(1)) as u64))
}

/// What is known of a template without parsing it.
#[derive(Default)]
struct Scan {
    /// The line where it nests too deep.
    too_deep: Option<usize>,
    /// Bytes of the longest text between two tags.
    longest_literal: usize,
}

impl Scan {
    /// Reads the text once; no further than to where it nests too deep.
    fn new(text: &str) -> Self {
        let mut scan = Self::default();
        // Links of the open blocks.
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
                    if depth + blocks.iter().sum::<usize>() > DEEPEST {
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

/// Keeps account of the open blocks: the first word of a tag opens one, goes on with it, or ends
/// it.
fn block(tag: &str, blocks: &mut Vec<usize>) {
    let word = tag.trim_start_matches(|c: char| !c.is_alphabetic());
    match word.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default() {
        "elif" => {
            if let Some(links) = blocks.last_mut() {
                *links += 1;
            }
        }
        // With a value it is no block.
        "set" if tag.contains('=') => {}
        "if" | "for" | "macro" | "call" | "filter" | "set" | "with" | "block" | "generation" => {
            blocks.push(1)
        }
        word if word.starts_with("end") => drop(blocks.pop()),
        _ => {}
    }
}

/// Where a tag ends, and how deep its expression can nest at most: the links of the chains that are
/// open at once. A bracket opens a chain inside, a comma begins the next one.
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
