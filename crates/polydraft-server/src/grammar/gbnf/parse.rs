//! Parser of GBNF.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::Peekable;
use std::str::Chars;

/// Rules by name.
pub type Rules = BTreeMap<String, Node>;

/// Maximum nesting of brackets.
const MAX_DEPTH: usize = 64;
/// Maximum consecutive repetition operators without brackets.
const MAX_CONSECUTIVE_REPETITIONS: usize = 4;
/// Maximum count of a repetition, as in llama.cpp.
const MAX_REPETITIONS: u32 = 2000;

/// A rule's body, or a part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    Literal(String),
    Class(Class),
    Rule(String),
    Sequence(Vec<Node>),
    Alternatives(Vec<Node>),
    Repeated { part: Box<Node>, min: u32, max: Option<u32> },
}

/// Class of characters, as ranges from first to last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Class {
    pub negated: bool,
    pub ranges: Vec<(char, char)>,
}

impl Node {
    /// Names of the rules that the node uses.
    pub fn names(&self) -> BTreeSet<&str> {
        let (mut names, mut pending) = (BTreeSet::new(), vec![self]);
        while let Some(node) = pending.pop() {
            match node {
                Self::Rule(name) => drop(names.insert(&**name)),
                Self::Sequence(parts) | Self::Alternatives(parts) => pending.extend(parts),
                Self::Repeated { part, .. } => pending.push(part),
                Self::Literal(_) | Self::Class(_) => {}
            }
        }
        names
    }
}

/// Lexemes of the notation.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Lexeme {
    /// Name of a rule followed by `::=`.
    RuleStart(String),
    Name(String),
    Literal(String),
    Class(Class),
    Repeat(u32, Option<u32>),
    Sign(char),
}

/// Parses all rules.
///
/// # Errors
/// Invalid GBNF.
pub fn parse(text: &str) -> Result<Rules, String> {
    let mut parser = Parser { lexemes: lexemes(text)?.into_iter().peekable() };
    let mut rules = Rules::new();
    while let Some(lexeme) = parser.lexemes.next() {
        let Lexeme::RuleStart(name) = lexeme else {
            return Err(format!(
                "expected NAME ::= at the start of a rule, got {}",
                lexeme.describe()
            ));
        };
        let node = parser.alternatives(0)?;
        if rules.insert(name.clone(), node).is_some() {
            return Err(format!("the rule {name} is defined twice"));
        }
    }
    Ok(rules)
}

struct Parser {
    lexemes: Peekable<std::vec::IntoIter<Lexeme>>,
}

impl Parser {
    fn alternatives(&mut self, depth: usize) -> Result<Node, String> {
        let mut parts = vec![self.sequence(depth)?];
        while self.lexemes.next_if_eq(&Lexeme::Sign('|')).is_some() {
            parts.push(self.sequence(depth)?);
        }
        Ok(if parts.len() == 1 { parts.swap_remove(0) } else { Node::Alternatives(parts) })
    }

    fn sequence(&mut self, depth: usize) -> Result<Node, String> {
        if depth > MAX_DEPTH {
            return Err(format!("expected at most {MAX_DEPTH} levels of brackets"));
        }
        let (mut parts, mut consecutive) = (Vec::new(), 0);
        let ends =
            |lexeme: &Lexeme| matches!(lexeme, Lexeme::RuleStart(_) | Lexeme::Sign('|' | ')'));
        while let Some(lexeme) = self.lexemes.next_if(|lexeme| !ends(lexeme)) {
            consecutive = if matches!(lexeme, Lexeme::Repeat(..)) { consecutive + 1 } else { 0 };
            if consecutive > MAX_CONSECUTIVE_REPETITIONS {
                return Err(format!(
                    "expected at most {MAX_CONSECUTIVE_REPETITIONS} repetitions in a row"
                ));
            }
            let part = match lexeme {
                Lexeme::Name(name) => Node::Rule(name),
                Lexeme::Literal(text) => Node::Literal(text),
                Lexeme::Class(class) => Node::Class(class),
                Lexeme::Sign('(') => {
                    let node = self.alternatives(depth + 1)?;
                    match self.lexemes.next() {
                        Some(Lexeme::Sign(')')) => node,
                        Some(other) => return Err(format!("expected ), got {}", other.describe())),
                        None => return Err("expected ) before the end".to_owned()),
                    }
                }
                Lexeme::Repeat(min, max) => {
                    let part = parts.pop().ok_or("nothing to repeat")?;
                    Node::Repeated { part: Box::new(part), min, max }
                }
                other => {
                    return Err(format!("expected a part of a rule, got {}", other.describe()));
                }
            };
            parts.push(part);
        }
        Ok(if parts.len() == 1 { parts.swap_remove(0) } else { Node::Sequence(parts) })
    }
}

impl Lexeme {
    fn describe(&self) -> String {
        match self {
            Self::RuleStart(name) => format!("{name} ::="),
            Self::Name(name) => name.clone(),
            Self::Literal(text) => format!("{text:?}"),
            Self::Class(_) => "a class of characters".to_owned(),
            Self::Repeat(..) => "a repetition".to_owned(),
            Self::Sign(character) => character.to_string(),
        }
    }
}

fn lexemes(text: &str) -> Result<Vec<Lexeme>, String> {
    let mut lexed = Vec::new();
    let mut rest = text.chars().peekable();
    while let Some(character) = rest.next() {
        match character {
            _ if character.is_whitespace() => {}
            '#' => while rest.next_if(|character| *character != '\n').is_some() {},
            '"' => lexed.push(Lexeme::Literal(string(&mut rest)?)),
            '[' => lexed.push(Lexeme::Class(class(&mut rest)?)),
            '.' => {
                lexed.push(Lexeme::Class(Class { negated: false, ranges: vec![('\0', char::MAX)] }))
            }
            '(' | ')' | '|' => lexed.push(Lexeme::Sign(character)),
            '*' => lexed.push(Lexeme::Repeat(0, None)),
            '+' => lexed.push(Lexeme::Repeat(1, None)),
            '?' => lexed.push(Lexeme::Repeat(0, Some(1))),
            '{' => lexed.push(repetition(&mut rest)?),
            '<' | '!' => return Err("tokens by number or name are not supported".to_owned()),
            ':' => {
                let equals = rest.next() == Some(':') && rest.next() == Some('=');
                match lexed.pop() {
                    Some(Lexeme::Name(name)) if equals => lexed.push(Lexeme::RuleStart(name)),
                    _ => return Err("expected NAME ::= at the start of a rule, got :".to_owned()),
                }
            }
            _ if is_name_char(character) => {
                let mut name = character.to_string();
                while let Some(character) = rest.next_if(|character| is_name_char(*character)) {
                    name.push(character);
                }
                lexed.push(Lexeme::Name(name));
            }
            _ => return Err(format!("expected a part of a rule, got {character:?}")),
        }
    }
    Ok(lexed)
}

fn is_name_char(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '-' || character == '_'
}

fn string(rest: &mut Peekable<Chars>) -> Result<String, String> {
    let mut text = String::new();
    loop {
        match rest.next() {
            Some('"') => return Ok(text),
            Some('\\') => text.push(escape(rest)?),
            Some(character) => text.push(character),
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
            character => character,
        };
        let mut to = from;
        if rest.next_if_eq(&'-').is_some() {
            // At the end of a class, `-` is literal.
            if rest.peek() == Some(&']') {
                ranges.extend([(from, from), ('-', '-')]);
                continue;
            }
            to = match rest.next().ok_or_else(missing)? {
                '\\' => escape(rest)?,
                character => character,
            };
        }
        if to < from {
            return Err(format!("expected a range in ascending order, got {from:?} to {to:?}"));
        }
        ranges.push((from, to));
    }
}

fn escape(rest: &mut Peekable<Chars>) -> Result<char, String> {
    let character = rest.next().ok_or("expected a character after \\")?;
    let digits = match character {
        'n' => return Ok('\n'),
        'r' => return Ok('\r'),
        't' => return Ok('\t'),
        '\\' | '"' | '[' | ']' | '-' | '^' | '/' | '.' => return Ok(character),
        'x' => 2,
        'u' => 4,
        'U' => 8,
        other => return Err(format!("unknown escape \\{other} in GBNF")),
    };
    let hex: String = rest.by_ref().take(digits).collect();
    let code = u32::from_str_radix(&hex, 16).ok().filter(|_| hex.len() == digits);
    code.and_then(char::from_u32)
        .ok_or_else(|| format!("expected a character's code of {digits} digits, got {hex:?}"))
}

fn repetition(rest: &mut Peekable<Chars>) -> Result<Lexeme, String> {
    let text: String = rest.by_ref().take_while(|character| *character != '}').collect();
    let number = |text: &str| {
        let text = text.trim();
        let known = text.parse::<u32>().ok().filter(|number| *number <= MAX_REPETITIONS);
        known.ok_or_else(|| {
            format!("expected a number up to {MAX_REPETITIONS} in {{..}}, got {text:?}")
        })
    };
    let (min, max) = match text.split_once(',') {
        None => (number(&text)?, Some(number(&text)?)),
        Some((min, max)) => {
            let min = if min.trim().is_empty() { 0 } else { number(min)? };
            (min, if max.trim().is_empty() { None } else { Some(number(max)?) })
        }
    };
    match max {
        Some(max) if max < min => Err(format!("expected the smaller number first in {{{text}}}")),
        _ => Ok(Lexeme::Repeat(min, max)),
    }
}
