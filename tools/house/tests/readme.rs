//! The README is short, and its example is one that compiles.

mod common;

use common::root;
use regex::Regex;

const LINES: usize = 150;
const COLUMNS: usize = 100;
const NUMBERS: usize = 60;

fn readme() -> String {
    std::fs::read_to_string(root().join("README.md")).expect("README.md")
}

#[test]
fn readme_is_short() {
    let text = readme();
    assert!(text.lines().count() <= LINES, "{} lines", text.lines().count());
    for line in text.lines() {
        assert!(line.chars().count() <= COLUMNS, "more than {COLUMNS} columns: {line}");
    }
    let number = Regex::new(r"[0-9]+([.,][0-9]+)*").expect("an expression");
    let count = number.find_iter(&text).count();
    assert!(count <= NUMBERS, "{count} numbers");
}

#[test]
fn readme_has_the_example_that_compiles() {
    let file = root().join("crates/polydraft-runtime/examples/readme.rs");
    let example = std::fs::read_to_string(file).expect("the example");
    let text = readme();
    let shown = text.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next());
    let shown = shown.expect("a block of Rust in README.md");
    let indented: String = shown.lines().map(|line| format!("    {line}\n")).collect();
    assert!(example.contains(&indented), "README.md and examples/readme.rs differ:\n{shown}");
}
