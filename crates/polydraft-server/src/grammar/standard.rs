//! JSON schemas in the words that grammars are made from.
//!
//! Problem: schemas of other languages' libraries have regular expressions in the dialect of
//! ECMAScript, bounds of their number types, and references of every kind.
//! Method: 1. references become pointers into the definitions ([`localise`]). 2. In a pattern,
//! escapes are rewritten; conditions ahead at its start become patterns of their own, all of which
//! must match. 3. Bounds of numbers beyond fifteen digits become fifteen digits.
//! Source: ECMA-262, section 22.2.1, for the dialect.
//! Complexity: linear in the schema.
//! Deviations: numbers beyond fifteen digits, which such a schema allows, are not written.

use serde_json::{Map, Value, json};

use super::parts::visit_parts;
use super::references::localise;
use super::schema::MAX_INTEGER;
use super::shapes::{check_schema, check_shapes};

/// Pattern that zod 4 adds to the format `duration`. Everything of that format matches it.
const ZOD_DURATION: &str = concat!(
    r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?",
    r"(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$"
);

/// Schema with references, patterns and bounds as grammars take them.
///
/// # Errors
/// A reference or a pattern that has no equal, with its place in the schema.
pub(super) fn standardise(schema: Value) -> Result<Value, String> {
    let mut schema = localise(schema)?;
    walk(&mut schema, &mut String::from("#"))?;
    Ok(schema)
}

fn walk(schema: &mut Value, path: &mut String) -> Result<(), String> {
    // Of `items` this may be a list, whose elements are visited as well.
    if !schema.is_array() {
        check_schema(schema, path)?;
    }
    let Value::Object(schema) = schema else { return Ok(()) };
    check_shapes(schema, path)?;
    bound_numbers(schema).map_err(|problem| format!("{path}: {problem}"))?;
    replace_pattern(schema, path)?;
    visit_parts(schema, path, &mut walk)
}

fn bound_numbers(schema: &mut Map<String, Value>) -> Result<(), String> {
    for (keyword, bound) in [
        ("minimum", -MAX_INTEGER),
        ("exclusiveMinimum", -MAX_INTEGER),
        ("maximum", MAX_INTEGER),
        ("exclusiveMaximum", MAX_INTEGER),
    ] {
        let given = schema.get(keyword).and_then(Value::as_f64);
        let is_beyond = given.is_some_and(|given| given.abs() > MAX_INTEGER as f64);
        if !is_beyond {
            continue;
        }
        if given.is_some_and(|given| given.is_sign_negative() != (bound < 0)) {
            return Err(format!(
                "{keyword}: numbers of more than fifteen digits are not supported"
            ));
        }
        schema.insert(keyword.to_owned(), json!(bound));
    }
    Ok(())
}

fn replace_pattern(schema: &mut Map<String, Value>, path: &str) -> Result<(), String> {
    let Some(Value::String(pattern)) = schema.get("pattern") else { return Ok(()) };
    if pattern == ZOD_DURATION && schema.get("format").is_some_and(|format| format == "duration") {
        schema.shift_remove("pattern");
        return Ok(());
    }
    let mut parts = split(pattern).map_err(|problem| format!("{path}/pattern: {problem}"))?;
    let last = parts.pop().unwrap_or_default();
    schema.insert("pattern".to_owned(), last.into());
    if !parts.is_empty() {
        let all = schema.entry("allOf").or_insert_with(|| json!([]));
        if let Value::Array(all) = all {
            all.extend(parts.into_iter().map(|part| json!({ "pattern": part })));
        }
    }
    Ok(())
}

/// Patterns in the dialect of Rust's regular expressions, all of which match what an ECMAScript one
/// matches.
///
/// # Errors
/// A pattern that is none, or has parts that patterns without memory cannot have.
fn split(pattern: &str) -> Result<Vec<String>, String> {
    let pattern = translated(pattern);
    let mut parts = Vec::new();
    let mut rest = pattern.clone();
    if let Some(mut after) = pattern.strip_prefix('^') {
        while let Some((condition, tail)) = after.strip_prefix("(?=").and_then(closed) {
            parts.push(format!("^(?:{condition})"));
            after = tail;
        }
        if !parts.is_empty() && has_alternatives(after) {
            return Err(format!("{pattern:?}: put the alternatives after (?=..) in brackets"));
        }
        rest = format!("^{after}");
    }
    parts.push(rest);
    for part in &parts {
        check(part).map_err(|problem| format!("{pattern:?}: {problem}"))?;
    }
    Ok(parts)
}

fn check(pattern: &str) -> Result<(), String> {
    const AHEAD: &str = "(?=..) is supported after ^ at the start only; \
                         (?!..), (?<=..) and (?<!..) are not: list what is allowed instead";
    let parsed = regex_syntax::parse(pattern).map_err(|error| match error {
        regex_syntax::Error::Parse(error) => match error.kind() {
            regex_syntax::ast::ErrorKind::UnsupportedLookAround => AHEAD.to_owned(),
            kind => kind.to_string(),
        },
        regex_syntax::Error::Translate(error) => error.kind().to_string(),
        _ => "not a regular expression".to_owned(),
    })?;
    match parsed.properties().look_set().contains_word() {
        true => Err("\\b and \\B are not supported: write the characters around words".to_owned()),
        false => Ok(()),
    }
}

/// Pattern with the escapes and classes of Rust's dialect.
fn translated(pattern: &str) -> String {
    let mut written = String::with_capacity(pattern.len());
    let mut is_class = false;
    let mut letters = pattern.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => match letters.next() {
                // Of words' borders there.
                Some(other @ ('<' | '>')) => written.push(other),
                Some(other) => written.extend(['\\', other]),
                None => written.push('\\'),
            },
            // A class within a class there.
            '[' if is_class => written.push_str("\\["),
            '[' => {
                is_class = true;
                written.push('[');
                let is_negated = letters.next_if_eq(&'^').is_some();
                // Of everything, or of nothing.
                if letters.next_if_eq(&']').is_some() {
                    is_class = false;
                    written.push_str(if is_negated { r"\s\S]" } else { "a&&b]" });
                } else if is_negated {
                    written.push('^');
                }
            }
            ']' => {
                is_class = false;
                written.push(']');
            }
            // Differences and intersections of classes there.
            '-' | '&' | '~' if is_class && letters.peek() == Some(&letter) => {
                letters.next();
                written.extend([letter, '\\', letter]);
            }
            letter => written.push(letter),
        }
    }
    written
}

/// Text up to the bracket that closes a group, and what follows it.
fn closed(text: &str) -> Option<(&str, &str)> {
    let at = outside(text).find(|(_, letter, depth)| *letter == ')' && *depth == 0)?.0;
    Some((&text[..at], &text[at + 1..]))
}

fn has_alternatives(text: &str) -> bool {
    outside(text).any(|(_, letter, depth)| letter == '|' && depth == 0)
}

/// Characters of a pattern outside classes and escapes: place, character, depth of brackets before
/// it.
fn outside(text: &str) -> impl Iterator<Item = (usize, char, usize)> {
    let (mut is_escaped, mut is_class, mut depth) = (false, false, 0_usize);
    text.char_indices().filter_map(move |(at, letter)| {
        let before = depth;
        match letter {
            _ if is_escaped => {
                is_escaped = false;
                return None;
            }
            '\\' => {
                is_escaped = true;
                return None;
            }
            ']' => is_class = false,
            _ if is_class => return None,
            '[' => is_class = true,
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        Some((at, letter, before))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_ahead_become_patterns() {
        assert_eq!(split("^ab$"), Ok(vec!["^ab$".to_owned()]));
        let password = split(r"^(?=.*[A-Z)])(?=.*\d).{8,}$").unwrap();
        assert_eq!(password, [r"^(?:.*[A-Z)])", r"^(?:.*\d)", "^.{8,}$"]);
        for pattern in ["^(?=a)b|c", "^(?!a)b", "a(?=b)", "(?=.*a)b", r"^\bword", r"(a)\1", "(a"] {
            assert!(split(pattern).is_err(), "{pattern}");
        }
    }

    #[test]
    fn patterns_are_in_the_dialect_of_the_library() {
        for (pattern, expected) in [
            (r"^\<b\>$", "^<b>$"),
            (r"[[a]", r"[\[a]"),
            (r"[a&&b]", r"[a&\&b]"),
            (r"[+--]", r"[+-\-]"),
            (r"[^]", r"[\s\S]"),
            (r"\[[a", r"\[[a"),
        ] {
            assert_eq!(translated(pattern), expected);
        }
    }

    #[test]
    fn names_the_place_of_a_pattern() {
        let schema = json!({ "properties": { "a": { "anyOf": [{ "pattern": "^(?!x)" }] } } });
        let problem = standardise(schema).unwrap_err();
        assert!(
            problem.starts_with("#/properties/a/anyOf/0/pattern: \"^(?!x)\": (?=..)"),
            "{problem}"
        );
    }

    #[test]
    fn bounds_of_number_types_are_those_of_fifteen_digits() {
        let schema = json!({ "type": "number", "minimum": -3.4e38, "maximum": 3.4e38 });
        let done = standardise(schema).unwrap();
        assert_eq!(done["minimum"], json!(-999_999_999_999_999_i64));
        assert_eq!(done["maximum"], json!(999_999_999_999_999_i64));
        let beyond = json!({ "properties": { "a": { "minimum": 9_007_199_254_740_993_i64 } } });
        assert!(standardise(beyond).unwrap_err().starts_with("#/properties/a: minimum: numbers"));
    }

    #[test]
    fn the_pattern_that_zod_adds_to_durations_is_left_out() {
        let schema = json!({ "type": "string", "format": "duration", "pattern": ZOD_DURATION });
        assert!(standardise(schema).unwrap().get("pattern").is_none());
    }
}
