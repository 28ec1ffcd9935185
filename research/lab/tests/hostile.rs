//! Malformed input, and interruptions by the user.

#[path = "../../../crates/polydraft-cli/tests/common/mod.rs"]
mod common;

use std::fs;
use std::time::{Duration, Instant};

use common::{end, fails, interrupt, program, text};

#[test]
#[cfg(target_os = "linux")]
fn devices_are_no_files() {
    for path in ["/dev/zero", "/dev/urandom"] {
        fails(&["couple", path], 1, &[path, "expected a regular file"]);
        let pair = ["efficiency", "--target", path, "--draft", path];
        fails(&pair, 1, &[path, "expected a regular file"]);
    }
}

#[test]
fn names_invalid_files_with_the_problem() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.json");
    let path = file.to_str().unwrap();
    fs::write(&file, r#"{"target": 1, "draft": [1]}"#).unwrap();
    fails(&["couple", path], 1, &[path, "expected a sequence"]);
    fs::write(&file, r#"{"vocabulary": "x", "next": {}}"#).unwrap();
    fails(&["efficiency", "--target", path, "--draft", path], 1, &[path, "expected usize"]);
}

#[test]
#[cfg(unix)]
fn interrupted_measurement_keeps_its_results() {
    let folder = tempfile::tempdir().unwrap();
    let prompts = folder.path().join("prompts.jsonl");
    fs::write(&prompts, "{\"prompt\": \"fn\"}\n").unwrap();
    let prompts = prompts.to_str().unwrap();
    let too_few = ["--prompts", prompts, "-n", "4", "--rounds", "1000000", "--json"];
    let decode =
        [&["bench", "decode", "--verifiers", "block", "--depths", "2"], &too_few[..]].concat();
    let save = folder.path().join("saved.json");
    let acceptance =
        [&["bench", "acceptance", "--save", save.to_str().unwrap()], &too_few[..]].concat();
    let drafting =
        vec!["bench", "drafting", "--prompts", prompts, "--positions", "100000", "--json"];
    for (args, field, done) in [
        (decode, "results", "rounds"),
        (acceptance, "acceptance", "rounds"),
        (drafting, "rows", "positions"),
    ] {
        // The time until a first result depends on the load of the machine.
        let interrupted = |seconds| {
            let child = program(&args).spawn().unwrap();
            std::thread::sleep(Duration::from_secs(seconds));
            interrupt(&child, "-INT");
            let output = end(child);
            assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
            (!output.stdout.is_empty()).then_some(output)
        };
        let output = [2, 4, 8, 16].into_iter().find_map(interrupted).expect("something measured");
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(json[field].as_array().is_some_and(|all| !all.is_empty()), "{json}");
        assert!(json[done].as_u64().unwrap() > 0);
    }
    // While outputs are being checked, there is no result to print.
    let child = program(&["bench", "decode", "-n", "400"]).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(2));
    interrupt(&child, "-INT");
    let output = end(child);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{message}");
    assert!(output.stdout.is_empty() && message.contains("nothing was timed"), "{message}");
    assert!(fs::read_to_string(save).unwrap().contains("acceptance"));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing temporary is left");
}

#[test]
fn checks_output_folder_before_measuring() {
    let start = Instant::now();
    fails(
        &["bench", "acceptance", "--save", "/no/such/folder/a.json"],
        1,
        &["cannot write /no/such/folder/a.json"],
    );
    assert!(start.elapsed() < Duration::from_secs(5));
}
