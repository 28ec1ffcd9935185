//! Grammars in llama.cpp's notation, GBNF, converted to the library's dialect of Lark.
//!
//! Problem: a grammar that other servers accept (`root ::= "yes" | "no"`) must have the same
//! meaning here.
//! Source: llama.cpp's description of its notation.
//! Method: 1. parse the rules; 2. convert rules that are not recursive to regular expressions; 3.
//! keep the names of the other rules, and convert their longest regular parts to one terminal each.
//! Deviations: 1. terminals match greedily, as in Lark: a grammar that needs a terminal to end
//! before its longest match allows less than in llama.cpp; 2. a line break ends a rule only if
//! another rule begins; 3. tokens by number or name (`<[10]>`) are rejected.

mod parse;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use parse::{Node, Rules, parse};

/// Maximum nesting of an expression, including inlined rules.
const MAX_DEPTH: usize = 256;
/// Maximum bytes of the Lark grammar: regular rules are inlined where they are used.
const MAX_LARK_BYTES: usize = 256 << 10;

/// Returns whether a grammar is in GBNF rather than in Lark.
pub(super) fn is_gbnf(text: &str) -> bool {
    text.contains("::=")
}

/// Converts a grammar to Lark.
///
/// # Errors
/// Invalid GBNF; no rule `root`; undefined rules; a grammar that is too large.
pub(super) fn lark(text: &str) -> Result<String, String> {
    let rules = parse(text)?;
    if !rules.contains_key("root") {
        return Err("expected a rule named root".to_owned());
    }
    for (name, node) in &rules {
        if let Some(missing) = node.names().into_iter().find(|used| !rules.contains_key(*used)) {
            return Err(format!("the rule {name} uses {missing}, which is not defined"));
        }
    }
    let writer = Writer { recursive: recursive(&rules), rules: &rules };
    writer.grammar()
}

/// Rules that reach a cycle: those left after repeatedly removing rules that use no remaining rule.
fn recursive(rules: &Rules) -> BTreeSet<&str> {
    let mut users: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut pending: BTreeMap<&str, usize> = BTreeMap::new();
    for (name, node) in rules {
        let names = node.names();
        pending.insert(name, names.len());
        for used in names {
            users.entry(used).or_default().push(name);
        }
    }
    let mut ready: Vec<&str> =
        pending.iter().filter(|(_, remaining)| **remaining == 0).map(|(name, _)| *name).collect();
    while let Some(name) = ready.pop() {
        pending.remove(name);
        for user in users.remove(name).unwrap_or_default() {
            if let Some(remaining) = pending.get_mut(user) {
                *remaining -= 1;
                if *remaining == 0 {
                    ready.push(user);
                }
            }
        }
    }
    pending.into_keys().collect()
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
        check_size(out)
    }

    fn is_regular(&self, node: &Node) -> bool {
        node.names().iter().all(|name| !self.recursive.contains(name))
    }

    /// Converts a node to Lark; a regular node becomes a terminal.
    fn lark(&self, node: &Node) -> Result<String, String> {
        if self.is_regular(node) {
            return self.terminal(std::slice::from_ref(node));
        }
        Ok(match node {
            Node::Rule(name) => lark_name(name),
            Node::Alternatives(parts) => {
                let parts: Result<Vec<_>, _> = parts.iter().map(|part| self.lark(part)).collect();
                format!("({})", parts?.join(" | "))
            }
            Node::Sequence(parts) => {
                // Adjacent regular parts become one terminal.
                let runs = parts.chunk_by(|a, b| self.is_regular(a) && self.is_regular(b));
                let one = |run: &[Node]| match self.is_regular(&run[0]) {
                    true => self.terminal(run),
                    false => self.lark(&run[0]),
                };
                runs.map(one).collect::<Result<Vec<_>, _>>()?.join(" ")
            }
            Node::Repeated { part, min, max } => {
                let max = max.map_or(String::new(), |max| max.to_string());
                format!("({}){{{min},{max}}}", self.lark(part)?)
            }
            // Regular, handled above.
            Node::Literal(_) | Node::Class(_) => String::new(),
        })
    }

    fn terminal(&self, parts: &[Node]) -> Result<String, String> {
        let mut regex = String::new();
        for part in parts {
            self.regex(part, MAX_DEPTH, &mut regex)?;
        }
        Ok(if regex.is_empty() { "\"\"".to_owned() } else { format!("/{regex}/") })
    }

    /// Appends a node as a regular expression, nested at most `depth` deep.
    fn regex(&self, node: &Node, depth: usize, out: &mut String) -> Result<(), String> {
        check_size(out)?;
        let deeper = || format!("expected at most {MAX_DEPTH} levels of nesting");
        let depth = depth.checked_sub(1).ok_or_else(deeper)?;
        match node {
            Node::Literal(text) => out.extend(text.chars().map(regex_char)),
            Node::Class(class) => {
                out.push_str(if class.negated { "[^" } else { "[" });
                for &(from, to) in &class.ranges {
                    *out += &if from == to {
                        regex_char(from)
                    } else {
                        format!("{}-{}", regex_char(from), regex_char(to))
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
            Node::Alternatives(parts) => {
                out.push_str("(?:");
                for (number, part) in parts.iter().enumerate() {
                    if number > 0 {
                        out.push('|');
                    }
                    self.regex(part, depth, out)?;
                }
                out.push(')');
            }
            Node::Repeated { part, min, max } => {
                out.push_str("(?:");
                self.regex(part, depth, out)?;
                let max = max.map_or(String::new(), |max| max.to_string());
                let _ = write!(out, "){{{min},{max}}}");
            }
        }
        Ok(())
    }
}

fn check_size(text: &str) -> Result<(), String> {
    match text.len() > MAX_LARK_BYTES {
        true => {
            Err(format!("the grammar is too large: over {MAX_LARK_BYTES} bytes after inlining"))
        }
        false => Ok(()),
    }
}

/// A character in a regular expression.
fn regex_char(character: char) -> String {
    match character.is_ascii_alphanumeric() {
        true => character.to_string(),
        false => format!("\\x{{{:X}}}", u32::from(character)),
    }
}

/// Name of a rule in Lark: lower case, with escapes that keep names distinct.
fn lark_name(name: &str) -> String {
    let mut lark = "rule_".to_owned();
    for character in name.chars() {
        match character {
            'a'..='z' | '0'..='9' => lark.push(character),
            _ => {
                let _ = write!(lark, "_{}_", u32::from(character));
            }
        }
    }
    lark
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_regular_grammars_as_one_regex() {
        let to_lark = |text: &str| lark(text).unwrap();
        assert_eq!(to_lark(r#"root ::= "a"{5,5}"#), "start: /(?:(?:a){5,5})/\n");
        assert_eq!(
            to_lark("root ::= yes | \"no\"\nyes ::= \"y\" [es]*"),
            "start: /(?:(?:(?:y(?:[es]){0,})|no))/\n"
        );
        assert_eq!(to_lark(r"root ::= [^\x00-\x1F]"), "start: /(?:[^\\x{0}-\\x{1F}])/\n");
    }

    #[test]
    fn keeps_names_of_recursive_rules() {
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
    fn rejects_invalid_grammars() {
        for (text, problem) in [
            ("root ::= this is (not valid GBNF", "expected )"),
            ("start ::= \"a\"", "a rule named root"),
            ("root ::= other", "uses other, which is not defined"),
            ("root ::= \"a", "expected \" at the end of a string"),
            ("root ::= <[10]>", "tokens by number or name"),
            ("root ::= [a", "expected ]"),
            ("root ::= \"a\"{3,2}", "{3,2}"),
            ("root ::= \"a\"{x}", "expected a number"),
            ("root ::= \"a\"\nroot ::= \"b\"", "defined twice"),
            ("root ::= *", "nothing to repeat"),
            ("root ::= \"\\q\"", "\\q"),
            ("root ::= )", "expected"),
        ] {
            let got = lark(text).expect_err(text);
            assert!(got.contains(problem), "{text}: {got}");
        }
    }

    /// Grammars of any depth and number of rules are converted or rejected, fast and in little
    /// memory.
    #[test]
    fn rejects_deep_grammars() {
        let chain = |last: &str| {
            let mut text = "root ::= r0\n".to_owned();
            for number in 0..4000 {
                let _ = writeln!(text, "r{number} ::= r{}", number + 1);
            }
            text + "r4000 ::= " + last
        };
        assert!(lark(&chain("\"a\"")).expect_err("too deep").contains("levels of nesting"));
        let ring = lark(&chain("\"a\" r0?")).expect("a grammar");
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

    /// Inlining regular rules may double the size at each step.
    #[test]
    fn rejects_grammars_that_grow_too_large() {
        let mut text = "root ::= r0\n".to_owned();
        for number in 0..40 {
            let _ = writeln!(text, "r{number} ::= r{0} r{0}", number + 1);
        }
        text += "r40 ::= \"a\"";
        assert!(lark(&text).expect_err("too large").contains("too large"));
    }
}
