//! Papers' tables, quality and the report, from the command line.

#[path = "../../../crates/polydraft-cli/tests/common/mod.rs"]
mod common;

use std::fs;
use std::path::Path;

use common::{fails, ok};
use serde_json::Value;

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Every paper's command measures something in a second and shows the paper's values, and its
/// record can be shown again.
#[test]
fn papers_have_tables() {
    let folder = tempfile::tempdir().unwrap();
    let mut records = Vec::new();
    for (paper, table, column) in [
        ("spectr", "efficiency", "spectr"),
        ("spechub", "acceptance", "SpecHub"),
        ("canonical", "acceptance", "importance"),
        ("global-resolution", "success", "Global Resolution, τ = 1e-3"),
        ("gbv", "methods", "greedy-block"),
        ("delayed", "means", "traversal"),
    ] {
        let file = folder.path().join(format!("{paper}.json"));
        let args = ["bench", "paper", paper, "--quick", "--seconds", "1", "--save", path(&file)];
        let printed = ok(&args);
        assert!(printed.contains("on their models"), "{printed}");
        let record: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        assert!(
            record["command"].as_str().unwrap().starts_with("polydraft-lab bench paper"),
            "{record}"
        );
        let tables = record["tables"].as_array().unwrap();
        let table = tables.iter().find(|measured| measured["name"] == table).unwrap();
        let entries = table["entries"].as_array().unwrap();
        let both = |entry: &&Value| {
            entry["theirs"].as_array().unwrap().iter().any(|theirs| !theirs.is_null())
        };
        let entry = entries.iter().filter(|entry| entry["column"] == column).find(both).unwrap();
        assert!(entry["ours"]["value"].as_f64().unwrap() > 0.0, "{entry}");
        assert_eq!(ok(&["bench", "paper", "--from", path(&file)]), printed);
        records.push(file);
    }
    let plot = folder.path().join("chart");
    ok(&["bench", "paper", "--from", path(&records[0]), "--plot", path(&plot)]);
    assert!(folder.path().join("chart-efficiency.svg").exists());
    let page = folder.path().join("page.html");
    let args =
        [vec!["report"], records.iter().map(|file| path(file)).collect(), vec!["-o", path(&page)]]
            .concat();
    ok(&args);
    let page = fs::read_to_string(page).unwrap();
    assert!(
        page.contains("theirs a, on their models")
            && page.contains("polydraft-lab bench paper gbv")
    );
    fails(&["bench", "paper", "nobody"], 2, &["spectr", "delayed"]);
    fails(&["bench", "paper"], 2, &["NAME"]);
}

/// At temperature 0 the outputs are equal; above it the difference has an interval.
#[test]
fn quality_is_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("quality.json");
    let args = [
        "bench",
        "quality",
        "--max-prompts",
        "78",
        "--samples",
        "1",
        "-n",
        "8",
        "--paths",
        "2",
        "--depth",
        "2",
    ];
    ok(&[&args[..], &["--save", path(&file)]].concat());
    let record: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let scores = record["scores"].as_array().unwrap();
    assert_eq!((scores.len(), record["checked"].as_u64()), (2, Some(78)));
    let outputs = &scores[0]["texts"];
    assert_eq!(outputs["different"], 0);
    assert_eq!(outputs["equal"].as_u64().unwrap() + outputs["ties"].as_u64().unwrap(), 78);
    // The demo pair generates Rust, at least.
    let rust =
        record["kinds"].as_array().unwrap().iter().find(|kind| kind["kind"] == "Rust").unwrap();
    assert!(rust["plain"].as_f64().unwrap() > 0.2, "{rust}");
    let ends = scores[1]["interval"].as_array().unwrap();
    let difference = scores[1]["difference"].as_f64().unwrap();
    assert!(ends[0].as_f64().unwrap() <= difference && difference <= ends[1].as_f64().unwrap());
    let page = folder.path().join("page.html");
    ok(&["report", path(&file), "-o", path(&page)]);
    assert!(fs::read_to_string(page).unwrap().contains("bench quality"));
}

/// Generated code only runs if the user names an interpreter.
#[test]
fn programs_are_run_on_demand() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("human.jsonl");
    let item = concat!(
        r#"{"prompt": "def one():\n", "test": "def check(f): assert f() == 1", "#,
        r#""entry_point": "one"}"#
    );
    fs::write(&file, format!("{item}\n{item}\n")).unwrap();
    let args = [
        "bench",
        "quality",
        "--prompts",
        path(&file),
        "-n",
        "4",
        "-t",
        "0",
        "--paths",
        "1",
        "--json",
    ];
    fails(&args, 1, &["line 1", "--run"]);
    let record: Value =
        serde_json::from_str(&ok(&[&args[..], &["--run", "grep -q 'check(one)'"]].concat()))
            .unwrap();
    assert_eq!(record["scores"][0]["plain"], 1.0);
    let record: Value =
        serde_json::from_str(&ok(&[&args[..], &["--run", "false"]].concat())).unwrap();
    assert_eq!(record["scores"][0]["plain"], 0.0);
    fails(&["bench", "quality", "--verifier", "none"], 2, &["--verifier none"]);
    fails(&["bench", "quality", "--run-seconds", "3"], 2, &["--run"]);
}

/// All p-values are in one chart; files that are not records are rejected by name.
#[test]
fn reports_of_any_records() {
    let folder = tempfile::tempdir().unwrap();
    let (records, page) = (folder.path().join("certify.json"), folder.path().join("page.html"));
    let mut all = String::new();
    for seed in ["1", "2"] {
        let runs = [
            "--max-prompts",
            "1",
            "--runs",
            "1500",
            "--first",
            "2",
            "--paths",
            "2",
            "--depth",
            "2",
        ];
        all += &ok(&[&["certify", "--json", "--seed", seed], &runs[..]].concat());
    }
    all += r#"{"what": "<script>", "list": [{"a": 1.5}]}"#;
    fs::write(&records, all).unwrap();
    ok(&["report", path(&records), "-o", path(&page), "--title", "A <title>"]);
    let html = fs::read_to_string(&page).unwrap();
    for expected in
        ["Calibration", "--seed 2", "2 of 2", "A &lt;title&gt;", "&lt;script&gt;", "does not know"]
    {
        assert!(html.contains(expected), "{expected}: {html}");
    }
    assert!(!html.contains("<script"));
    assert_eq!(ok(&["report", path(&records), "-o", "-", "--title", "A <title>"]), html);
    let wrong = folder.path().join("wrong.json");
    fs::write(&wrong, "{\"p_value\": 1}").unwrap();
    fails(&["report", path(&wrong), "-o", path(&page)], 1, &["wrong.json", "certify", "verdict"]);
    fs::write(&wrong, "no").unwrap();
    fails(&["report", path(&wrong), "-o", path(&page)], 1, &["wrong.json", "expected records"]);
    assert_eq!(fs::read_to_string(&page).unwrap(), html);
    fails(&["report", "/no/such/file", "-o", path(&page)], 1, &["/no/such/file"]);
    fails(&["report", path(&records), "-o", "/no/such/folder/page.html"], 1, &["/no/such/folder"]);
    fails(&["report"], 2, &["RECORD"]);
}
