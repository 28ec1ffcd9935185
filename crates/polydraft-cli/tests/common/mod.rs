//! The program, run as a user would.
#![allow(dead_code)] // each test file uses its part

use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// The program with a cache of its own, nobody's own defaults and nothing to read.
pub fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_polydraft"));
    command
        .env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"))
        .env("XDG_CONFIG_HOME", "/nonexistent");
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub fn run(args: &[&str]) -> Output {
    program(args).output().unwrap()
}

/// Runs it with this to read.
pub fn fed(args: &[&str], input: &[u8]) -> Output {
    let mut child = program(args).stdin(Stdio::piped()).spawn().unwrap();
    // It may have stopped reading, having found a mistake.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
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
