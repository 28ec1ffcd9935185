//! The README is short, its example is one that compiles, and the map of the data names files.

mod common;

use common::root;
use regex::Regex;

const LINES: usize = 150;
const COLUMNS: usize = 100;

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
}

#[test]
fn readme_has_the_example_that_compiles() {
    let file = root().join("crates/polydraft-runtime/examples/readme.rs");
    let example = std::fs::read_to_string(file).expect("the example");
    let text = readme();
    let shown = text.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next());
    let shown = shown.expect("a block of Rust in README.md");
    // The example adds only a header.
    let (_, program) = example.split_once("\n\n").expect("a header");
    assert_eq!(program, shown, "README.md and examples/readme.rs differ");
    // The crate that it uses is named as a dependency, with a path that exists.
    let dependency = Regex::new(r#"`([a-z-]+) = \{ path = "../polydraft/([^"]*)" \}`"#);
    let dependency = dependency.expect("an expression").captures(&text).expect("a dependency");
    let [name, folder] = dependency.extract().1;
    assert!(root().join(folder).join("Cargo.toml").exists(), "{folder}");
    let crates = Regex::new(r"\b(polydraft[a-z_]*)::").expect("an expression");
    for used in crates.captures_iter(shown) {
        assert_eq!(used[1].replace('_', "-"), name);
    }
}

#[test]
fn map_of_the_data_names_existing_files() {
    let text = std::fs::read_to_string(root().join("docs/design.md")).expect("docs/design.md");
    let map = text.split("## The path of the data").nth(1).expect("the map");
    let map = map.split("\n## ").next().expect("its section");
    let name = Regex::new(r"`([a-z-]+/[a-z_/-]+/|[a-z-]+/[a-z_/-]+\.rs)`").expect("an expression");
    let names: Vec<&str> = name.captures_iter(map).map(|found| found.extract::<1>().1[0]).collect();
    assert!(names.len() > 20, "{} files", names.len());
    for name in names {
        let is_there = ["crates", "."].iter().any(|place| root().join(place).join(name).exists());
        assert!(is_there, "docs/design.md: no {name}");
    }
    assert_eq!(map.lines().filter(|line| line.starts_with(char::is_numeric)).count(), 8);
}
