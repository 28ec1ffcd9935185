//! Runs a few thousand inputs, and all inputs that have ever failed.

use std::process::{Command, Stdio};

fn passes(args: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_polydraft-mutate")).args(args).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}\n{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn thousands_of_inputs() {
    passes(&["mutate", "--count", "6000", "--seed", "2"]);
}

/// Each planted fault is reported and the next input is run: a panic, too much memory (one large or
/// many small allocations), deep recursion, endless waiting and endless computation.
#[test]
fn planted_faults_are_found() {
    let args = [
        "mutate", "--count", "7", "--jobs", "1", "--only", "planted", "--cpu", "1", "--wall", "12",
    ];
    let output = Command::new(env!("CARGO_BIN_EXE_polydraft-mutate")).args(args).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    for expected in [
        "7 inputs",
        "6 findings",
        "0 Planted: planted",
        "1 1: signal",
        "1 2: signal",
        "1 3: more than 12 s, waiting",
        "1 4: more than 1 CPU seconds",
        "1 5: signal",
    ] {
        assert!(printed.contains(expected), "{expected}: {printed}");
    }
}

/// Workers that were killed leave no files either.
#[test]
#[cfg(target_os = "linux")]
fn leaves_no_files_behind() {
    let left = |process: u32| {
        let prefix = format!("polydraft-mutate-{process}-");
        let all = ["/dev/shm", "/tmp"]
            .map(|offset| std::fs::read_dir(offset).into_iter().flatten().flatten());
        all.into_iter()
            .flatten()
            .filter(|e| e.file_name().to_string_lossy().starts_with(&prefix))
            .count()
    };
    let start = |count: &str| {
        let args =
            ["mutate", "--count", count, "--jobs", "2", "--only", "planted", "--first", "100"];
        Command::new(env!("CARGO_BIN_EXE_polydraft-mutate"))
            .args(args)
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut killed = start("100000000");
    while left(killed.id()) < 2 {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert_eq!(left(killed.id()), 2, "it had no time to tidy up");
    let mut next = start("4");
    assert!(next.wait().unwrap().success());
    assert_eq!((left(killed.id()), left(next.id())), (0, 0));
}

#[test]
fn inputs_that_failed_before_pass() {
    passes(&["corpus"]);
}
