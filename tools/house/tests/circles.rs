//! No two files of a crate use each other, however long the way around.
//!
//! A file uses another if it names the other's module in a path that begins with `crate`, `super`
//! or `self`. That a file declares its parts with `mod`, and hands on what they have with
//! `pub use`, is no use of them: a part that takes something from the file it belongs to, and is
//! taken from by it, is a circle.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use common::{root, shown};
use regex::Regex;

type Module = Vec<String>;

/// The module of a file below `src`.
fn module(file: &Path, src: &Path) -> Module {
    let path = file.strip_prefix(src).expect("below src").with_extension("");
    let mut module: Module = path.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if module.last().is_some_and(|last| last == "lib" || last == "main" || last == "mod") {
        module.pop();
    }
    module
}

/// Code without comments, tests and what is only handed on.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let text: String = lines.flat_map(|line| [line, "\n"]).collect();
    let handed_on = Regex::new(r"pub(\([a-z]+\))? use [^;]*;").expect("an expression");
    handed_on.replace_all(&text, "").into_owned()
}

/// The paths of `use` items with their braces opened, and all other paths.
fn paths(code: &str) -> BTreeSet<Vec<String>> {
    let mut found = BTreeSet::new();
    let uses = Regex::new(r"\buse ((?:crate|super|self)[^;]*);").expect("an expression");
    for item in uses.captures_iter(code) {
        open(&item[1].split_whitespace().collect::<String>(), &mut Vec::new(), &mut found);
    }
    let others = Regex::new(r"\b((?:crate|super|self)(?:::[A-Za-z_][A-Za-z0-9_]*)+)")
        .expect("an expression");
    for path in others.captures_iter(code) {
        found.insert(path[1].split("::").map(str::to_owned).collect());
    }
    found
}

fn open(tree: &str, before: &mut Vec<String>, found: &mut BTreeSet<Vec<String>>) {
    let depth = before.len();
    let (head, rest) =
        tree.split_once("::{").map_or((tree, None), |(head, rest)| (head, Some(rest)));
    before.extend(head.split("::").filter(|part| !part.is_empty()).map(str::to_owned));
    match rest.and_then(|rest| rest.strip_suffix('}')) {
        None => {
            found.insert(before.clone());
        }
        Some(inner) => {
            let (mut level, mut start) = (0i32, 0);
            for (at, sign) in inner.char_indices().chain([(inner.len(), ',')]) {
                match sign {
                    '{' => level += 1,
                    '}' => level -= 1,
                    ',' if level == 0 => {
                        if start < at {
                            open(&inner[start..at], before, found);
                        }
                        start = at + 1;
                    }
                    _ => {}
                }
            }
        }
    }
    before.truncate(depth);
}

/// Which file a path leads to, from the file of `from`: the longest beginning that is a module.
fn target<'m>(
    from: &Module,
    path: &[String],
    files: &'m BTreeMap<Module, PathBuf>,
    homes: &BTreeMap<(Module, String), Module>,
) -> Option<&'m Module> {
    let mut at: Module = Vec::new();
    let mut parts = path.iter().peekable();
    match parts.next()?.as_str() {
        "crate" => {}
        "self" => at.clone_from(from),
        _ => {
            at.clone_from(from);
            at.pop();
            while parts.next_if(|part| *part == "super").is_some() {
                at.pop();
            }
        }
    }
    for part in parts {
        at.push(part.clone());
        if !files.contains_key(&at) {
            at.pop();
            // What a module hands on is where it is from.
            if let Some(home) = homes.get(&(at.clone(), part.clone())) {
                at.clone_from(home);
            }
            break;
        }
    }
    files.get_key_value(&at).map(|(module, _)| module)
}

/// Where the names come from that modules hand on.
fn homes(
    sources: &BTreeMap<Module, String>,
    files: &BTreeMap<Module, PathBuf>,
) -> BTreeMap<(Module, String), Module> {
    let handed_on = Regex::new(r"pub(?:\([a-z]+\))? use ([^;]*);").expect("an expression");
    let mut homes = BTreeMap::new();
    for (module, text) in sources {
        for item in handed_on.captures_iter(text) {
            let mut found = BTreeSet::new();
            let tree: String = item[1].split_whitespace().collect();
            open(&tree, &mut Vec::new(), &mut found);
            for path in found {
                let Some((name, of)) = path.split_last() else { continue };
                let mut home = match of.first().map(String::as_str) {
                    Some("crate") => Vec::new(),
                    Some("super") => module[..module.len().saturating_sub(1)].to_vec(),
                    _ => module.clone(),
                };
                let skip = usize::from(matches!(
                    of.first().map(String::as_str),
                    Some("crate" | "super" | "self")
                ));
                home.extend(of[skip..].iter().cloned());
                if files.contains_key(&home) {
                    homes.insert((module.clone(), name.clone()), home);
                }
            }
        }
    }
    homes
}

/// Files that can be come back to, with what they use.
fn circles(uses: &BTreeMap<Module, BTreeSet<Module>>) -> Vec<Vec<Module>> {
    let reach = |from: &Module| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from.clone()]);
        while let Some(module) = open.pop() {
            for next in uses.get(&module).into_iter().flatten() {
                if seen.insert(next.clone()) {
                    open.push(next.clone());
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&Module, BTreeSet<Module>> =
        uses.keys().map(|module| (module, reach(module))).collect();
    let mut circles = BTreeSet::new();
    for (module, seen) in &reached {
        if seen.contains(*module) {
            let back = |other: &&Module| reached.get(other).is_some_and(|r| r.contains(*module));
            let circle: Vec<Module> = seen.iter().filter(back).cloned().collect();
            circles.insert(circle);
        }
    }
    circles.into_iter().collect()
}

/// The folders of all crates: the product's, research's, and the wheel's.
fn crates() -> Vec<PathBuf> {
    let folders = ["crates", "research", "bindings"].map(|folder| root().join(folder));
    let inside = folders.iter().flat_map(|folder| std::fs::read_dir(folder).expect("a folder"));
    let inside = inside.flatten().map(|entry| entry.path());
    inside.filter(|folder| folder.join("Cargo.toml").exists()).collect()
}

#[test]
fn no_files_use_each_other() {
    let mut wrong = Vec::new();
    for krate in crates() {
        let src = krate.join("src");
        let folder = shown(&krate);
        let all = common::rust_files(&format!("{folder}/src"));
        let sources: BTreeMap<Module, String> =
            all.iter().map(|(path, text)| (module(path, &src), text.clone())).collect();
        let files: BTreeMap<Module, PathBuf> =
            all.into_iter().map(|(path, _)| (module(&path, &src), path)).collect();
        let homes = homes(&sources, &files);
        let mut uses: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
        for (module, text) in &sources {
            if module.last().is_some_and(|last| last == "tests") {
                continue;
            }
            let used = paths(&code(text));
            let used = used.iter().filter_map(|path| target(module, path, &files, &homes));
            // The crate's own file hands on and documents.
            let used = used.filter(|other| *other != module && !other.is_empty());
            uses.insert(module.clone(), used.cloned().collect());
        }
        for circle in circles(&uses) {
            let names: Vec<String> = circle.iter().map(|module| module.join("::")).collect();
            wrong.push(format!("{folder}: {}", names.join(", ")));
        }
    }
    assert!(wrong.is_empty(), "files that use each other: {wrong:#?}");
}

#[test]
fn circles_are_found() {
    let module = |name: &str| vec![name.to_owned()];
    let uses = |pairs: &[(&str, &str)]| {
        let mut uses: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
        for (from, to) in pairs {
            uses.entry(module(from)).or_default().insert(module(to));
            uses.entry(module(to)).or_default();
        }
        uses
    };
    assert!(circles(&uses(&[("a", "b"), ("b", "c"), ("a", "c")])).is_empty());
    let found = circles(&uses(&[("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")]));
    assert_eq!(found, [[module("a"), module("b"), module("c")]]);
    let mut found = BTreeSet::new();
    open("crate::{a::{B,c::D},e}", &mut Vec::new(), &mut found);
    assert_eq!(found.len(), 3);
}
