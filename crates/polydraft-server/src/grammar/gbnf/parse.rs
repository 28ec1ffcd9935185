//! Reads GBNF.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::Peekable;
use std::str::Chars;

/// The rules by name.
pub type Rules = BTreeMap<String, Node>;

/// Brackets within brackets at most.
const DEPTH: usize = 64;
/// Repetitions of a repetition at most, without brackets.
const IN_A_ROW: usize = 4;
/// Repetitions at most, as in llama.cpp.
const REPETITIONS: u32 = 2000;

/// What a rule, or a part of one, derives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    Text(String),
    Class(Class),
    Rule(String),
    Sequence(Vec<Node>),
    Either(Vec<Node>),
    Repeated { part: Box<Node>, least: u32, most: Option<u32> },
}

/// Characters by their first and last codes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Class {
    pub negated: bool,
    pub ranges: Vec<(char, char)>,
}

impl Node {
    /// The rules that it uses.
    pub fn names(&self) -> BTreeSet<&str> {
        let (mut names, mut left) = (BTreeSet::new(), vec![self]);
        while let Some(node) = left.pop() {
            match node {
                Self::Rule(name) => drop(names.insert(&**name)),
                Self::Sequence(parts) | Self::Either(parts) => left.extend(parts),
                Self::Repeated { part, .. } => left.push(part),
                Self::Text(_) | Self::Class(_) => {}
            }
        }
        names
    }
}

/// The smallest parts of the notation.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Word {
    /// A rule's name where it begins.
    Begins(String),
    Name(String),
    Text(String),
    Class(Class),
    Repeat(u32, Option<u32>),
    Sign(char),
}

/// Reads all rules.
///
/// # Errors
/// What is no GBNF.
pub fn parse(text: &str) -> Result<Rules, String> {
    let mut parser = Parser { words: words(text)?.into_iter().peekable() };
    let mut rules = Rules::new();
    while let Some(word) = parser.words.next() {
        let Word::Begins(name) = word else {
            return Err(format!("expected NAME ::= where a rule begins, got {}", word.shown()));
        };
        let node = parser.either(0)?;
        if rules.insert(name.clone(), node).is_some() {
            return Err(format!("the rule {name} is there twice"));
        }
    }
    Ok(rules)
}

struct Parser {
    words: Peekable<std::vec::IntoIter<Word>>,
}

impl Parser {
    fn either(&mut self, depth: usize) -> Result<Node, String> {
        let mut parts = vec![self.sequence(depth)?];
        while self.words.next_if_eq(&Word::Sign('|')).is_some() {
            parts.push(self.sequence(depth)?);
        }
        Ok(if parts.len() == 1 { parts.swap_remove(0) } else { Node::Either(parts) })
    }

    fn sequence(&mut self, depth: usize) -> Result<Node, String> {
        if depth > DEPTH {
            return Err(format!("expected at most {DEPTH} brackets within each other"));
        }
        let (mut parts, mut in_a_row) = (Vec::new(), 0);
        let ends = |word: &Word| matches!(word, Word::Begins(_) | Word::Sign('|' | ')'));
        while let Some(word) = self.words.next_if(|word| !ends(word)) {
            in_a_row = if matches!(word, Word::Repeat(..)) { in_a_row + 1 } else { 0 };
            if in_a_row > IN_A_ROW {
                return Err(format!("expected at most {IN_A_ROW} repetitions in a row"));
            }
            let part = match word {
                Word::Name(name) => Node::Rule(name),
                Word::Text(text) => Node::Text(text),
                Word::Class(class) => Node::Class(class),
                Word::Sign('(') => {
                    let node = self.either(depth + 1)?;
                    match self.words.next() {
                        Some(Word::Sign(')')) => node,
                        Some(other) => return Err(format!("expected ), got {}", other.shown())),
                        None => return Err("expected ) before the end".to_owned()),
                    }
                }
                Word::Repeat(least, most) => {
                    let part = parts.pop().ok_or("there is nothing to repeat")?;
                    Node::Repeated { part: Box::new(part), least, most }
                }
                other => return Err(format!("expected a part of a rule, got {}", other.shown())),
            };
            parts.push(part);
        }
        Ok(if parts.len() == 1 { parts.swap_remove(0) } else { Node::Sequence(parts) })
    }
}

impl Word {
    fn shown(&self) -> String {
        match self {
            Self::Begins(name) => format!("{name} ::="),
            Self::Name(name) => name.clone(),
            Self::Text(text) => format!("{text:?}"),
            Self::Class(_) => "a class of characters".to_owned(),
            Self::Repeat(..) => "a repetition".to_owned(),
            Self::Sign(sign) => sign.to_string(),
        }
    }
}

fn words(text: &str) -> Result<Vec<Word>, String> {
    let mut found = Vec::new();
    let mut rest = text.chars().peekable();
    while let Some(sign) = rest.next() {
        match sign {
            _ if sign.is_whitespace() => {}
            '#' => while rest.next_if(|sign| *sign != '\n').is_some() {},
            '"' => found.push(Word::Text(string(&mut rest)?)),
            '[' => found.push(Word::Class(class(&mut rest)?)),
            '.' => {
                found.push(Word::Class(Class { negated: false, ranges: vec![('\0', char::MAX)] }))
            }
            '(' | ')' | '|' => found.push(Word::Sign(sign)),
            '*' => found.push(Word::Repeat(0, None)),
            '+' => found.push(Word::Repeat(1, None)),
            '?' => found.push(Word::Repeat(0, Some(1))),
            '{' => found.push(repetition(&mut rest)?),
            '<' | '!' => return Err("tokens by number or name are not supported".to_owned()),
            ':' => {
                let equals = rest.next() == Some(':') && rest.next() == Some('=');
                match found.pop() {
                    Some(Word::Name(name)) if equals => found.push(Word::Begins(name)),
                    _ => return Err("expected NAME ::= where a rule begins, got :".to_owned()),
                }
            }
            _ if is_name(sign) => {
                let mut name = sign.to_string();
                while let Some(sign) = rest.next_if(|sign| is_name(*sign)) {
                    name.push(sign);
                }
                found.push(Word::Name(name));
            }
            _ => return Err(format!("expected a part of a rule, got {sign:?}")),
        }
    }
    Ok(found)
}

fn is_name(sign: char) -> bool {
    sign.is_ascii_alphanumeric() || sign == '-' || sign == '_'
}

fn string(rest: &mut Peekable<Chars>) -> Result<String, String> {
    let mut text = String::new();
    loop {
        match rest.next() {
            Some('"') => return Ok(text),
            Some('\\') => text.push(escape(rest)?),
            Some(sign) => text.push(sign),
            None => return Err("expected \" at the end of a string".to_owned()),
        }
    }
}

fn class(rest: &mut Peekable<Chars>) -> Result<Class, String> {
    let negated = rest.next_if_eq(&'^').is_some();
    let mut ranges = Vec::new();
    let missing = || "expected ] at the end of a class of characters".to_owned();
    loop {
        let from = match rest.next().ok_or_else(missing)? {
            ']' if ranges.is_empty() => {
                return Err("expected characters between [ and ]".to_owned());
            }
            ']' => return Ok(Class { negated, ranges }),
            '\\' => escape(rest)?,
            sign => sign,
        };
        let mut to = from;
        if rest.next_if_eq(&'-').is_some() {
            // At the end it stands for itself.
            if rest.peek() == Some(&']') {
                ranges.extend([(from, from), ('-', '-')]);
                continue;
            }
            to = match rest.next().ok_or_else(missing)? {
                '\\' => escape(rest)?,
                sign => sign,
            };
        }
        if to < from {
            return Err(format!("expected first the smaller of {from:?} and {to:?} in a range"));
        }
        ranges.push((from, to));
    }
}

fn escape(rest: &mut Peekable<Chars>) -> Result<char, String> {
    let sign = rest.next().ok_or("expected a character after \\")?;
    let digits = match sign {
        'n' => return Ok('\n'),
        'r' => return Ok('\r'),
        't' => return Ok('\t'),
        '\\' | '"' | '[' | ']' | '-' | '^' | '/' | '.' => return Ok(sign),
        'x' => 2,
        'u' => 4,
        'U' => 8,
        other => return Err(format!("there is no \\{other} in GBNF")),
    };
    let hex: String = rest.by_ref().take(digits).collect();
    let code = u32::from_str_radix(&hex, 16).ok().filter(|_| hex.len() == digits);
    code.and_then(char::from_u32)
        .ok_or_else(|| format!("expected a character's code of {digits} digits, got {hex:?}"))
}

fn repetition(rest: &mut Peekable<Chars>) -> Result<Word, String> {
    let text: String = rest.by_ref().take_while(|sign| *sign != '}').collect();
    let number = |text: &str| {
        let text = text.trim();
        let known = text.parse::<u32>().ok().filter(|number| *number <= REPETITIONS);
        known
            .ok_or_else(|| format!("expected a number up to {REPETITIONS} in {{..}}, got {text:?}"))
    };
    let (least, most) = match text.split_once(',') {
        None => (number(&text)?, Some(number(&text)?)),
        Some((least, most)) => {
            let least = if least.trim().is_empty() { 0 } else { number(least)? };
            (least, if most.trim().is_empty() { None } else { Some(number(most)?) })
        }
    };
    match most {
        Some(most) if most < least => {
            Err(format!("expected first the smaller number in {{{text}}}"))
        }
        _ => Ok(Word::Repeat(least, most)),
    }
}
