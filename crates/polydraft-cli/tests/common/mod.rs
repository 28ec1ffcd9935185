//! Helpers that run the program.
#![allow(dead_code)] // each test file uses some of them

use std::io::{Read, Write};
use std::process::{Child, Command, Output, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

/// Prepares the program with a separate cache, no configuration and empty input.
pub fn program(args: &[&str]) -> Command {
    // The laboratory's tests share this file.
    let program =
        option_env!("CARGO_BIN_EXE_polydraft").or(option_env!("CARGO_BIN_EXE_polydraft-lab"));
    let mut command = Command::new(program.unwrap());
    command
        .env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"))
        .env("XDG_CONFIG_HOME", "/nonexistent");
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub fn run(args: &[&str]) -> Output {
    end(program(args).spawn().unwrap())
}

/// Runs the program with this input.
pub fn fed(args: &[&str], input: &[u8]) -> Output {
    let mut child = program(args).stdin(Stdio::piped()).spawn().unwrap();
    // The program may have stopped reading because of an error.
    let _ = child.stdin.take().unwrap().write_all(input);
    end(child)
}

/// Reads a pipe in the background: a program does not end while its output waits.
fn drain(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.map(|mut pipe| pipe.read_to_end(&mut bytes).unwrap());
        bytes
    })
}

/// Returns the output of a program that must end soon.
pub fn end(mut child: Child) -> Output {
    let (stdout, stderr) = (drain(child.stdout.take()), drain(child.stderr.take()));
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            panic!("the program does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    Output { status, stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() }
}

/// Sends a signal, such as -INT.
#[cfg(unix)]
pub fn interrupt(child: &Child, signal: &str) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the output of a command that must succeed.
pub fn ok(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

pub fn json(args: &[&str]) -> Value {
    serde_json::from_str(&ok(args)).unwrap()
}

/// Runs a command that must fail with this code and a message that contains all of `expected`;
/// returns the message.
pub fn fails(args: &[&str], code: i32, expected: &[&str]) -> String {
    let output = run(args);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {message}");
    assert!(!message.contains("panicked"), "{args:?}: {message}");
    // Notes may precede the error.
    assert!(message.lines().any(|line| line.starts_with("error:")), "{args:?}: {message}");
    for part in expected {
        assert!(message.contains(part), "{args:?}: expected {part:?} in: {message}");
    }
    message
}
