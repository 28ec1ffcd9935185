//! The program, run as a user would.
#![allow(dead_code)] // each test file uses its part

use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// Runs it with a cache of its own and nothing to read.
pub fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_polydraft"))
        .env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"))
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// What a command prints that must succeed.
pub fn ok(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

pub fn json(args: &[&str]) -> Value {
    serde_json::from_str(&ok(args)).unwrap()
}

/// Runs a command that must fail with this code and a message that contains all of `expected`.
pub fn fails(args: &[&str], code: i32, expected: &[&str]) {
    let output = run(args);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {message}");
    assert!(!message.contains("panicked"), "{args:?}: {message}");
    // What is said on the way comes before it.
    assert!(message.lines().any(|line| line.starts_with("error:")), "{args:?}: {message}");
    for part in expected {
        assert!(message.contains(part), "{args:?}: expected {part:?} in: {message}");
    }
}
