//! A few thousand inputs, and all that ever failed.

use std::process::Command;

fn passes(args: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_polydraft-mutate")).args(args).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn thousands_of_inputs() {
    passes(&["mutate", "--count", "6000", "--seed", "2"]);
}

/// A panic, too much memory, too deep a recursion and an input without an end: each is found, and the next one is tried.
#[test]
fn planted_faults_are_found() {
    let args = ["mutate", "--count", "5", "--jobs", "1", "--only", "planted"];
    let output = Command::new(env!("CARGO_BIN_EXE_polydraft-mutate")).args(args).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for expected in
        ["5 inputs", "4 findings", "0 Planted: planted", "1 1: signal", "1 2: signal", "1 3: more than 10 s"]
    {
        assert!(said.contains(expected), "{expected}: {said}");
    }
}

#[test]
fn what_ever_failed() {
    passes(&["corpus"]);
}
