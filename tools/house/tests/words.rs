//! Words of the house that no public document or message uses: the field has its own.
//!
//! Looked at are doc comments and string literals of the crates and of the wheel; not tests, not
//! plain comments, and not derivations, which have their letters and names.

mod common;

use common::{all_files, shown};
use regex::Regex;

/// What is not said, and what is said instead.
const WORDS: [(&str, &str); 13] = [
    (r"\blaws?\b", "distribution"),
    (r"\b(un)?sureness\b|\bunsure\b", "confidence"),
    (r"\bchance\b", "rng"),
    (r"\bclocks\b|\braces?\b", "shared randomness, Gumbel coupling"),
    (r"\bkeys and values\b", "KV cache"),
    (r"\bown cop(y|ies)\b", "quantised self-draft"),
    (r"\bcards?\b", "GPU"),
    (r"\bprocessors?\b", "CPU"),
    (r"\bbehind\b", "after"),
    (r"\bbelieves?\b|\breckon\w*", "estimates"),
    (r"\bheld\b", "stored as"),
    (r"\bdealt\b|\bstretch(es)?\b", "subsampled, segment"),
    (r"\btexts\b", "sequences, requests, output"),
];

/// Where a word is right: another sense of it, or a name that stays.
const RIGHT: [&str; 12] = [
    r"by chance",
    r"[Ll]ogits[ -]processors?",
    r"(template|post|pre)[- ]?processors?",
    r"Zipf's law",
    // Names in files, options and formats.
    r#""texts"|--texts|\btexts:|`texts`|text\.\*|\{texts\}|\{held\}|\{clocks\}"#,
    // The metadata of a GGUF file.
    r"(?i)queries, keys and values|key_value",
    r"`[^`]*`",
    r"\{[a-z_]+(:[^}]*)?\}",
    r"let clocks",
    r"data races?",
    r"^texts$",
    r"unknown (CPU|processor)",
];

/// Doc comments and strings of a file, by line; nothing from its tests.
fn said(text: &str) -> Vec<(usize, String)> {
    let string = Regex::new(r#""((?:\\.|[^"\\])*)""#).expect("an expression");
    let (mut said, mut is_code) = (Vec::new(), false);
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with("#[cfg(test)]") {
            break;
        }
        if let Some(doc) = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) {
            // An example is code.
            if doc.trim_start().starts_with("```") {
                is_code = !is_code;
            } else if !is_code {
                said.push((number + 1, doc.to_owned()));
            }
            continue;
        }
        is_code = false;
        if !line.starts_with("//") {
            said.extend(string.captures_iter(line).map(|found| (number + 1, found[1].to_owned())));
        }
    }
    said
}

#[test]
fn documents_and_messages_speak_the_fields_language() {
    let right: Vec<Regex> =
        RIGHT.iter().map(|text| Regex::new(text).expect("an expression")).collect();
    let words: Vec<(Regex, &str)> = WORDS
        .iter()
        .map(|(word, instead)| {
            (Regex::new(&format!("(?i){word}")).expect("an expression"), *instead)
        })
        .collect();
    let mut wrong = Vec::new();
    for (path, text) in all_files() {
        let name = shown(&path);
        let is_source = name.contains("/src/") && !name.starts_with("tools/");
        if !is_source || name.ends_with("tests.rs") || name.contains("/tests/") {
            continue;
        }
        for (line, said) in said(&text) {
            let rest =
                right.iter().fold(said, |said, right| right.replace_all(&said, "").into_owned());
            for (word, instead) in &words {
                if let Some(found) = word.find(&rest) {
                    let found = found.as_str();
                    wrong.push(format!("{name}:{line}: {found:?}, say {instead}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} words: {wrong:#?}", wrong.len());
}

#[test]
fn words_are_found_where_they_are_said() {
    let text = "/// The law.\n//! ```\n//! let law = 1;\n//! ```\nfail(\"a \\\"card\\\"\"); // \
        behind\n\
                #[cfg(test)]\n/// A law of tests.";
    let found: Vec<usize> = said(text).into_iter().map(|(line, _)| line).collect();
    assert_eq!(found, [1, 5]);
}
