//! Files and lines that are short enough to be read.

mod common;

use common::{all_files, shown};

const LINES: usize = 500;
const COLUMNS: usize = 100;

#[test]
fn no_file_is_long() {
    let long = all_files().into_iter().filter(|(_, text)| text.lines().count() > LINES);
    let long: Vec<String> = long.map(|(path, _)| shown(&path)).collect();
    assert!(long.is_empty(), "more than {LINES} lines: {long:#?}");
}

/// Expressions of tokenizers are as they were published, on one line.
#[test]
fn no_line_is_long() {
    let mut long = Vec::new();
    for (path, text) in all_files() {
        let is_expression = |line: &str| {
            path.ends_with("tokenizer/pre.rs") && (line.contains("r\"") || line.contains("r##\""))
        };
        for (number, line) in text.lines().enumerate() {
            if line.chars().count() > COLUMNS && !is_expression(line) {
                long.push(format!("{}:{}", shown(&path), number + 1));
            }
        }
    }
    assert!(long.is_empty(), "more than {COLUMNS} columns: {long:#?}");
}
