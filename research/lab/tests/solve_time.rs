//! `polydraft-lab bench solve-time`, as users run it: small.

#[path = "../../../crates/polydraft-cli/tests/common/mod.rs"]
mod common;

use std::process::Output;

use serde_json::Value;

fn solve_time(arguments: &[&str]) -> Output {
    common::run(&[&["bench", "solve-time"], arguments].concat())
}

fn failure(arguments: &[&str]) -> (Option<i32>, String) {
    let output = solve_time(arguments);
    assert!(output.stdout.is_empty());
    (output.status.code(), String::from_utf8(output.stderr).expect("UTF-8"))
}

#[test]
fn tables_record_and_charts() {
    let folder = tempfile::tempdir().expect("a folder");
    let chart = folder.path().join("chart").display().to_string();
    let small = ["--positions", "2", "--synthetic", "1", "--rows", "10:2,V:4", "--budget", "0.2"];
    let output = solve_time(&[&small[..], &["--json", "--plot", &chart]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(
        report["commit"].is_string()
            && report["rustc"].as_str().is_some_and(|v| v.starts_with("rustc"))
    );
    let datasets = report["datasets"].as_array().expect("a list");
    assert_eq!(datasets.len(), 2);
    assert_eq!(
        (&datasets[0]["vocabulary"], &datasets[1]["vocabulary"]),
        (&4096.into(), &128_256.into())
    );
    for dataset in datasets {
        let rows = dataset["rows"].as_array().expect("a list");
        assert_eq!((&rows[0]["row"], &rows[1]["row"]), (&"(10, 2)".into(), &"(V, 4)".into()));
        for row in rows {
            let cells = row["cells"].as_array().expect("a list");
            assert_eq!(cells.len(), 7);
            // `priority` always has an answer, and it is the optimum.
            for cell in &cells[5..] {
                assert_eq!((&cell["success"], &cell["lower_bound"]), (&1.0.into(), &false.into()));
                let loss = row["optimum"].as_f64().expect("a number")
                    - cell["acceptance"].as_f64().expect("a number");
                assert!(loss.abs() < 1e-6 && cell["milliseconds"].as_f64() > Some(0.0), "{cell}");
            }
        }
        let cell = |row: usize, column: usize| &rows[row]["cells"][column];
        for exact in 0..3 {
            let loss = cell(0, exact)["acceptance"].as_f64().expect("a number")
                - rows[0]["optimum"].as_f64().expect("one");
            assert!(loss.abs() < 1e-9);
            // Too many sets of four of these tokens to enumerate.
            assert!(cell(1, exact)["too_large"].as_str().expect("a reason").contains("variables"));
            assert_eq!(cell(1, exact)["milliseconds"], Value::Null);
        }
        assert_eq!(dataset["within"].as_array().expect("a list").len(), 3 * 7);
    }
    for name in ["pair", "synthetic"] {
        let file = |extension: &str| {
            std::fs::read(format!("{chart}-{name}.{extension}")).expect("a chart")
        };
        assert!(String::from_utf8(file("svg")).expect("UTF-8").contains("(V, 4)"));
    }

    let output = solve_time(&[
        "--positions",
        "1",
        "--synthetic",
        "0",
        "--rows",
        "10:2,100:2",
        "--budget",
        "0.2",
    ]);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    for expected in
        ["milliseconds per token", "(100, 2)", "best acceptance within", "priority, the faster"]
    {
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn mistakes() {
    for (arguments, code, expected) in [
        (&["--rows", "10x2"][..], 2, "K:N"),
        (&["--rows", "0:2"], 2, "at least 1"),
        (&["--rows", "10:100"], 2, "from 1 to 64"),
        (&["--budget", "0"], 2, "above 0"),
        (&["--budget", "long"], 2, "invalid float literal"),
        (&["--positions", "0", "--synthetic", "0"], 2, "nothing to measure"),
        (&["--plot", "/nowhere/chart"], 2, "/nowhere"),
        (&["--prompts", "/nowhere/prompts"], 1, "/nowhere/prompts"),
    ] {
        let (got, message) = failure(arguments);
        assert!(
            got == Some(code) && message.contains(expected),
            "{arguments:?}: {got:?} {message}"
        );
    }
}
