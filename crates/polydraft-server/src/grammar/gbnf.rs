//! Grammars in llama.cpp's notation, GBNF, as the library's form of Lark.
//!
//! Problem: a grammar that other servers take (`root ::= "yes" | "no"`) shall mean the same here.
//! Source: llama.cpp's description of its notation.
//! Method: 1. read the rules; 2. what does not lead back to itself is a regular expression, and
//! becomes one; 3. the other rules keep their names, and the longest parts of them that are regular
//! become one terminal each.
//! Deviations: 1. a terminal takes as much as it can, as in Lark: a grammar that needs one to end
//! early, before what would continue it, allows less than llama.cpp's; 2. the end of a line ends a
//! rule only where another one begins; 3. tokens by number or name (`<[10]>`) are refused.

mod parse;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use parse::{Node, Rules, parse};

/// Parts within parts of an expression at most, rules that are written out included.
const DEPTH: usize = 256;
/// Bytes of Lark that a grammar may become: regular rules are written out where they are used.
const MOST: usize = 256 << 10;

/// Whether a grammar is in GBNF rather than in Lark.
pub(super) fn is_gbnf(text: &str) -> bool {
    text.contains("::=")
}

/// The same grammar in Lark.
///
/// # Errors
/// What is no GBNF; no rule `root`; rules that are used and not there; a grammar that is too large.
pub(super) fn lark(text: &str) -> Result<String, String> {
    let rules = parse(text)?;
    if !rules.contains_key("root") {
        return Err("expected a rule root, where the output begins".to_owned());
    }
    for (name, node) in &rules {
        if let Some(missing) = node.names().into_iter().find(|used| !rules.contains_key(*used)) {
            return Err(format!("the rule {name} uses {missing}, which is not there"));
        }
    }
    let writer = Writer { recursive: recursive(&rules), rules: &rules };
    writer.grammar()
}

/// Rules that lead back to themselves, or to one that does: those that are left when, again and
/// again, what uses no rule that is left is taken away.
fn recursive(rules: &Rules) -> BTreeSet<&str> {
    let mut users: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut waits: BTreeMap<&str, usize> = BTreeMap::new();
    for (name, node) in rules {
        let names = node.names();
        waits.insert(name, names.len());
        for used in names {
            users.entry(used).or_default().push(name);
        }
    }
    let mut free: Vec<&str> =
        waits.iter().filter(|(_, left)| **left == 0).map(|(name, _)| *name).collect();
    while let Some(name) = free.pop() {
        waits.remove(name);
        for user in users.remove(name).unwrap_or_default() {
            if let Some(left) = waits.get_mut(user) {
                *left -= 1;
                if *left == 0 {
                    free.push(user);
                }
            }
        }
    }
    waits.into_keys().collect()
}

struct Writer<'r> {
    rules: &'r Rules,
    recursive: BTreeSet<&'r str>,
}

impl Writer<'_> {
    fn grammar(&self) -> Result<String, String> {
        let mut out = String::new();
        let root = Node::Rule("root".to_owned());
        self.rule("start", &root, &mut out)?;
        for name in &self.recursive {
            self.rule(&lark_name(name), &self.rules[*name], &mut out)?;
        }
        Ok(out)
    }

    fn rule(&self, name: &str, node: &Node, out: &mut String) -> Result<(), String> {
        let body = self.lark(node)?;
        // Writing to a string does not fail.
        let _ = writeln!(out, "{name}: {body}");
        sized(out)
    }

    fn is_regular(&self, node: &Node) -> bool {
        node.names().iter().all(|name| !self.recursive.contains(name))
    }

    /// As Lark: a terminal where it is regular.
    fn lark(&self, node: &Node) -> Result<String, String> {
        if self.is_regular(node) {
            return self.terminal(std::slice::from_ref(node));
        }
        Ok(match node {
            Node::Rule(name) => lark_name(name),
            Node::Either(parts) => {
                let parts: Result<Vec<_>, _> = parts.iter().map(|part| self.lark(part)).collect();
                format!("({})", parts?.join(" | "))
            }
            Node::Sequence(parts) => {
                // Neighbours that are regular are one terminal.
                let runs = parts.chunk_by(|a, b| self.is_regular(a) && self.is_regular(b));
                let one = |run: &[Node]| match self.is_regular(&run[0]) {
                    true => self.terminal(run),
                    false => self.lark(&run[0]),
                };
                runs.map(one).collect::<Result<Vec<_>, _>>()?.join(" ")
            }
            Node::Repeated { part, least, most } => {
                let most = most.map_or(String::new(), |most| most.to_string());
                format!("({}){{{least},{most}}}", self.lark(part)?)
            }
            // These are regular.
            Node::Text(_) | Node::Class(_) => String::new(),
        })
    }

    fn terminal(&self, parts: &[Node]) -> Result<String, String> {
        let mut regex = String::new();
        for part in parts {
            self.regex(part, DEPTH, &mut regex)?;
        }
        Ok(if regex.is_empty() { "\"\"".to_owned() } else { format!("/{regex}/") })
    }

    /// As a regular expression between slashes, of at most so many parts within parts.
    fn regex(&self, node: &Node, depth: usize, out: &mut String) -> Result<(), String> {
        sized(out)?;
        let deeper = || format!("expected at most {DEPTH} parts of a grammar within each other");
        let depth = depth.checked_sub(1).ok_or_else(deeper)?;
        match node {
            Node::Text(text) => out.extend(text.chars().map(code)),
            Node::Class(class) => {
                out.push_str(if class.negated { "[^" } else { "[" });
                for &(from, to) in &class.ranges {
                    *out += &if from == to {
                        code(from)
                    } else {
                        format!("{}-{}", code(from), code(to))
                    };
                }
                out.push(']');
            }
            Node::Rule(name) => {
                out.push_str("(?:");
                self.regex(&self.rules[name], depth, out)?;
                out.push(')');
            }
            Node::Sequence(parts) => {
                for part in parts {
                    self.regex(part, depth, out)?;
                }
            }
            Node::Either(parts) => {
                out.push_str("(?:");
                for (number, part) in parts.iter().enumerate() {
                    if number > 0 {
                        out.push('|');
                    }
                    self.regex(part, depth, out)?;
                }
                out.push(')');
            }
            Node::Repeated { part, least, most } => {
                out.push_str("(?:");
                self.regex(part, depth, out)?;
                let most = most.map_or(String::new(), |most| most.to_string());
                let _ = write!(out, "){{{least},{most}}}");
            }
        }
        Ok(())
    }
}

fn sized(text: &str) -> Result<(), String> {
    match text.len() > MOST {
        true => Err(format!("the grammar is too large: over {MOST} bytes once written out")),
        false => Ok(()),
    }
}

/// A character in a regular expression.
fn code(sign: char) -> String {
    match sign.is_ascii_alphanumeric() {
        true => sign.to_string(),
        false => format!("\\x{{{:X}}}", u32::from(sign)),
    }
}

/// A rule's name as Lark has it: in small letters, which the escapes keep apart.
fn lark_name(name: &str) -> String {
    let mut lark = "rule_".to_owned();
    for sign in name.chars() {
        match sign {
            'a'..='z' | '0'..='9' => lark.push(sign),
            _ => {
                let _ = write!(lark, "_{}_", u32::from(sign));
            }
        }
    }
    lark
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regular_grammars_become_one_expression() {
        let of = |text: &str| lark(text).unwrap();
        assert_eq!(of(r#"root ::= "a"{5,5}"#), "start: /(?:(?:a){5,5})/\n");
        assert_eq!(
            of("root ::= yes | \"no\"\nyes ::= \"y\" [es]*"),
            "start: /(?:(?:(?:y(?:[es]){0,})|no))/\n"
        );
        assert_eq!(of(r"root ::= [^\x00-\x1F]"), "start: /(?:[^\\x{0}-\\x{1F}])/\n");
    }

    #[test]
    fn rules_that_lead_back_keep_their_names() {
        let text = "root ::= Pair?\nPair ::= \"(\" ws Pair? \")\" ws\nws ::= [ \\n]* # blanks";
        let pair = "rule__80_air";
        assert_eq!(
            lark(text).unwrap(),
            format!(
                "start: rule_root\n{pair}: /\\x{{28}}(?:(?:[\\x{{20}}\\x{{A}}]){{0,}})/ \
                 ({pair}){{0,1}} /\\x{{29}}(?:(?:[\\x{{20}}\\x{{A}}]){{0,}})/\n\
                 rule_root: ({pair}){{0,1}}\n"
            )
        );
    }

    #[test]
    fn wrong_grammars_are_refused() {
        for (text, problem) in [
            ("root ::= this is (not valid GBNF", "expected )"),
            ("start ::= \"a\"", "a rule root"),
            ("root ::= other", "uses other, which is not there"),
            ("root ::= \"a", "expected \" at the end of a string"),
            ("root ::= <[10]>", "tokens by number or name"),
            ("root ::= [a", "expected ]"),
            ("root ::= \"a\"{3,2}", "{3,2}"),
            ("root ::= \"a\"{x}", "expected a number"),
            ("root ::= \"a\"\nroot ::= \"b\"", "there twice"),
            ("root ::= *", "nothing to repeat"),
            ("root ::= \"\\q\"", "\\q"),
            ("root ::= )", "expected"),
        ] {
            let got = lark(text).expect_err(text);
            assert!(got.contains(problem), "{text}: {got}");
        }
    }

    /// However deep it is, and however many rules lead to each other, a grammar is refused or
    /// written, in a moment and in little memory.
    #[test]
    fn deep_grammars_are_refused() {
        let rules = |last: &str| {
            let mut text = "root ::= r0\n".to_owned();
            for number in 0..4000 {
                let _ = writeln!(text, "r{number} ::= r{}", number + 1);
            }
            text + "r4000 ::= " + last
        };
        assert!(lark(&rules("\"a\"")).expect_err("too deep").contains("within each other"));
        let ring = lark(&rules("\"a\" r0?")).expect("a grammar");
        assert_eq!(ring.lines().count(), 4003);
        for text in [
            format!("root ::= \"a\"{}", "?".repeat(60_000)),
            format!("root ::= {}\"a\"", "(".repeat(60_000)),
            format!("root ::= {}\"a\"{}", "(".repeat(60), "*+?)".repeat(60)),
            format!("root ::= {}root | \"a\"{}", "(".repeat(60), "????)".repeat(60)),
        ] {
            let _ = lark(&text);
        }
        assert!(lark("root ::= \"a\"?????").is_err());
    }

    /// Regular rules are written out where they are used, which may double at each step.
    #[test]
    fn grammars_that_grow_are_refused() {
        let mut text = "root ::= r0\n".to_owned();
        for number in 0..40 {
            let _ = writeln!(text, "r{number} ::= r{0} r{0}", number + 1);
        }
        text += "r40 ::= \"a\"";
        assert!(lark(&text).expect_err("too large").contains("too large"));
    }
}
