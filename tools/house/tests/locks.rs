//! The workspaces beside the main one lock the same versions: what is compiled for one serves all.

mod common;

use std::collections::BTreeMap;

/// The versions of every package in a lock file.
fn versions(file: &str) -> BTreeMap<String, Vec<String>> {
    let text = std::fs::read_to_string(common::root().join(file)).unwrap();
    let mut versions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in text.split("[[package]]").skip(1) {
        let field = |name: &str| {
            let value = package.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            value.trim_matches('"').to_owned()
        };
        versions.entry(field("name = ")).or_default().push(field("version = "));
    }
    versions
}

/// Returns the part of a version that decides compatibility.
fn series(version: &str) -> &str {
    let parts = if version.starts_with("0.") { 2 } else { 1 };
    version.match_indices('.').nth(parts - 1).map_or(version, |(end, _)| &version[..end])
}

#[test]
fn workspaces_share_their_versions() {
    let main = versions("Cargo.lock");
    let mut differing = Vec::new();
    for file in ["bindings/python/Cargo.lock", "fuzz/Cargo.lock", "research/Cargo.lock"] {
        for (name, own) in versions(file) {
            let Some(others) = main.get(&name) else { continue };
            for version in own.iter().filter(|version| !others.contains(version)) {
                if others.iter().any(|other| series(other) == series(version)) {
                    differing.push(format!("{file}: {name} {version}, elsewhere {others:?}"));
                }
            }
        }
    }
    let advice = "copy Cargo.lock there; cargo keeps what that workspace has beside it";
    assert!(differing.is_empty(), "{advice}: {differing:#?}");
}
