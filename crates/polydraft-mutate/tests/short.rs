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

#[test]
fn what_ever_failed() {
    passes(&["corpus"]);
}
