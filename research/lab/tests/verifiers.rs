//! Verifiers and trees from the command line: generate, efficiency, certify, bench.

#[path = "../../../crates/polydraft-cli/tests/common/mod.rs"]
mod common;

use std::fs;
use std::path::Path;

use common::ok;
use common::{fails, json, run, text};
use serde_json::Value;

const GENERATE: [&str; 7] = ["generate", "--prompt", "pub fn new(", "-n", "30", "--seed", "1"];

#[test]
fn generate_takes_every_verifier_and_tree() {
    let cases: &[&[&str]] = &[
        &["--verifier", "token"],
        &["--verifier", "block", "--depth", "5"],
        &["--verifier", "spectr", "--paths", "3", "--depth", "3"],
        &["--verifier", "walk:importance"],
        &["--verifier", "greedy-block", "-k", "3", "-d", "3"],
        &["--verifier", "nested-priority", "--paths", "5", "--depth", "4"],
        &["--verifier", "priority-block", "--tree", "3,2,1"],
        &["--verifier", "specinfer", "--tree", "binary", "--depth", "3"],
        &["--verifier", "specinfer", "--tree", "3-ary", "--drafting", "without-replacement"],
        &["--verifier", "walk:hub", "--tree", "2,2"],
        &["--verifier", "walk:naive", "--tree", "4,2,1", "--drafting", "top-k"],
        &["--verifier", "walk:priority", "--tree", "budget:2,1.5"],
        &["--verifier", "traversal", "--tree", "sequoia:8"],
        &["--verifier", "walk:naive", "--tree", "sequoia:6", "--drafting", "top-k", "--depth", "3"],
        &["--verifier", "walk:hub", "--tree", "sequoia:6", "--drafting", "hub"],
        &["--verifier", "specinfer", "--draft-temperature", "0.6,1.2,2"],
        &["--verifier", "walk:importance", "--draft-temperature", "0.6,1.2", "--depth", "5"],
        &["--verifier", "walk:hub", "--tree", "fixed:0,0,1,1/greedy"],
        &["--verifier", "specinfer", "--tree", "sequoia:6", "--drafting", "iid"],
        &["--verifier", "nested-priority", "--tree", "sequoia:6"],
        &["--tree", "3,2,1"],
        &["--tree", "delayed:1,3,2"],
        &["--tree", "paths:3,4", "--verifier", "greedy-block"],
        &["--tree", "fixed:0,0,1,1", "--verifier", "traversal"],
        &["--depth", "8", "--stop-below", "0.2"],
        &["--stop-below", "0.3", "--tree", "3,2,2", "--verifier", "specinfer"],
        // At temperature 1 the demo target repeats itself so little that an adaptive tree rarely
        // drafts without a text to quote.
        &[
            "--draft",
            "ngram",
            "--corpus",
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../demo/corpus/lib.rs"),
        ],
        &["--draft", "ngram", "--tree", "paths:1,2"],
        &["--draft", "ngram", "--temperature", "0", "--verifier", "block"],
    ];
    // Fixed costs: if costs were measured on a busy machine, an adaptive tree might draft nothing.
    let costs = |name: &str, draft: f64| {
        let path =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("verifiers-costs-{name}.json"));
        let passes = serde_json::json!({"target": [[1, 1.0], [8, 1.3]], "draft": [[1, draft]],
            "verification": [[1, 0.0]]});
        let file = serde_json::json!({"machine": "", "threads": 1, "version": "", "models": [],
            "costs": passes});
        fs::write(&path, file.to_string()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (of_model, of_ngram) = (costs("model", 0.1), costs("ngram", 0.001));
    for args in cases {
        let costs = if args.contains(&"ngram") { &of_ngram } else { &of_model };
        let report = json(&[&GENERATE[..], args, &["--json", "--costs", costs]].concat());
        let ended = report["finish_reason"] == "end-token";
        assert!(ended || report["tokens"].as_array().unwrap().len() == 30, "{args:?}");
        assert!(report["stats"]["nodes_per_call"].as_f64().unwrap() > 0.1, "{args:?}");
        let by_draft = report["stats"]["accepted_by_draft"].as_array().unwrap();
        assert!(by_draft.iter().map(|rate| rate.as_f64().unwrap()).sum::<f64>() <= 1.0, "{args:?}");
    }
}

/// Solvers decide at nodes that are small enough for them; elsewhere a fallback rule decides, and
/// is counted.
#[test]
fn walks_with_solvers_decode() {
    let small = ["--top-k", "12", "--paths", "2", "--depth", "2"];
    for (rule, falls_back) in [
        ("max-flow", false),
        ("slackness", false),
        ("linear-program", false),
        ("global-resolution", true),
    ] {
        let verifier = format!("walk:{rule}");
        let report = json(&[&GENERATE[..], &small, &["--verifier", &verifier, "--json"]].concat());
        assert_eq!(report["tokens"].as_array().unwrap().len(), 30, "{rule}");
        let fallbacks = report["stats"]["fallbacks"].as_u64().unwrap();
        assert!(falls_back || fallbacks == 0, "{rule}: {fallbacks}");
    }
    // With the full vocabulary, the linear program exceeds its limit of variables.
    let large = ["--verifier", "walk:linear-program", "--paths", "2", "--depth", "2", "--json"];
    let report = json(&[&GENERATE[..], &large].concat());
    assert!(report["stats"]["fallbacks"].as_u64().unwrap() > 0);
}

#[test]
fn unfit_trees_are_usage_errors() {
    let cases: &[(&[&str], &[&str])] = &[
        (&["--verifier", "token", "--paths", "2"], &["single path", "2 i.i.d. paths"]),
        (
            &["--verifier", "greedy-block", "--tree", "2,2"],
            &["i.i.d. paths", "2 draws iid", "nested-priority"],
        ),
        (&["--verifier", "nested-priority", "--tree", "fixed:0,0"], &["i.i.d. draws", "traversal"]),
        (&["--tree", "1000-ary", "--depth", "3"], &["16384 nodes", "1001001000"]),
        (&["--stop-below", "2"], &["stop-below", "from 0 to 1", "got 2"]),
        (&["--tree", "delayed:1,2"], &["delayed:L1,K,L2"]),
        (&["--corpus", "x.txt"], &["--draft ngram"]),
        (&["--verifier", "spectr", "--tree", "2,2", "--drafting", "hub"], &["iid", "hub"]),
        (&["--verifier", "walk:nothing"], &["nothing", "k-seq"]),
        (&["--tree", "2;2"], &["sequoia:16"]),
        (&["--tree", "2,0", "--verifier", "specinfer"], &["draws per node", "got 0"]),
        (&["--tree", "2,2", "--paths", "2"], &["give one"]),
        (&["--tree", "2,2", "--depth", "2", "--verifier", "specinfer"], &["--depth"]),
        (&["--drafting", "iid"], &["--tree"]),
        (&["--verifier", "none", "--paths", "2"], &["--paths", "none"]),
        (
            &["--draft-temperature", "0.6,1.2", "--verifier", "nested-priority"],
            &["i.i.d.", "2 draws distinct at a node", "specinfer"],
        ),
        (
            &["--draft-temperature", "0.6,1.2", "--verifier", "specinfer", "--tree", "2,2"],
            &["distinct:2,L"],
        ),
        (&["--verifier", "specinfer", "--tree", "distinct:2,2"], &["--draft-temperature"]),
        (&["--paths", "0"], &["0"]),
    ];
    for (args, expected) in cases {
        fails(&[&GENERATE[..], args].concat(), 2, expected);
    }
    let args = ["--tree", "sequoia:4", "--verifier", "traversal", "--acceptance", "/no/such/file"];
    fails(&[&GENERATE[..], &args].concat(), 1, &["/no/such/file"]);
}

fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn efficiency_is_exact_and_reports_errors() {
    let folder = tempfile::tempdir().unwrap();
    let target = write(
        folder.path(),
        "t.json",
        r#"{"vocabulary": 2, "next": {"": [0.7, 0.3], "0": [0.2, 0.8], "1": [1, 0]}}"#,
    );
    let draft = write(
        folder.path(),
        "d.json",
        r#"{"vocabulary": 2, "next": {"": [0.4, 0.6], "1": [0.9, 0.1]}}"#,
    );
    let base = ["efficiency", "--target", &target, "--draft", &draft];
    let one = json(
        &[&base[..], &["--verifier", "token", "--paths", "1", "--depth", "1", "--json"]].concat(),
    );
    // 1 + min(0.7, 0.4) + min(0.3, 0.6)
    assert!((one["block_efficiency"].as_f64().unwrap() - 1.7).abs() < 1e-12, "{one}");
    assert_eq!((one["paths"].as_u64(), one["depth"].as_u64()), (Some(1), Some(1)));
    assert!(one["deviation"].as_f64().unwrap() < 1e-12 && one["bound"].is_null());

    let all = json(&[&base[..], &["--bound", "--json"]].concat());
    let rows = all.as_array().unwrap();
    assert!(rows.len() >= 8, "{all}");
    for row in rows {
        let bound = row["bound"].as_f64().unwrap();
        assert!(row["block_efficiency"].as_f64().unwrap() <= bound + 1e-9, "{row}");
        assert!(row["deviation"].as_f64().unwrap() < 1e-12, "{row}");
    }
    assert!(ok(&[&base[..], &["--bound"]].concat()).contains("bound"));

    // Any tree, with settings.
    for (tree, count) in [("fixed:0,0,1/hub", 4), ("fixed:0,0,1/iid", 9), ("2,1/greedy", 4)] {
        let all = json(&[&base[..], &["--tree", tree, "--json"]].concat());
        let rows = all.as_array().unwrap();
        assert_eq!(rows.len(), count, "{tree}: {all}");
        for row in rows {
            assert_eq!(
                (row["tree"].as_str().map(|own| own.contains(&tree[..3])), row["paths"].is_null()),
                (Some(true), true)
            );
            assert!(row["deviation"].as_f64().unwrap() < 1e-12, "{row}");
        }
    }
    let value_of = |set: &[&str]| {
        let row = json(&[&base[..], &["--verifier", "spectr", "--json"], set].concat());
        assert!(row["deviation"].as_f64().unwrap() < 1e-12, "{row}");
        row["block_efficiency"].as_f64().unwrap()
    };
    assert!(
        value_of(&[]) > value_of(&["--set", "rho=2"])
            && value_of(&["--set", "rho=2"]) > value_of(&["--set", "rho=9"])
    );
    fails(&[&base[..], &["--verifier", "spectr", "--set", "rho=0"]].concat(), 2, &["at least 1"]);
    fails(&[&base[..], &["--verifier", "spectr", "--set", "tau=1"]].concat(), 2, &["tau", "rho"]);
    fails(&[&base[..], &["--set", "rho=2"]].concat(), 2, &["--verifier"]);
    // Several drafts, one path each.
    let other = write(folder.path(), "o.json", r#"{"vocabulary": 2, "next": {"": [1, 0]}}"#);
    let all = json(&[&base[..], &["--draft", &other, "--depth", "3", "--json"]].concat());
    let names: Vec<_> =
        all.as_array().unwrap().iter().map(|row| row["verifier"].as_str().unwrap()).collect();
    assert_eq!(names, ["specinfer", "walk:naive"]);
    for row in all.as_array().unwrap() {
        assert!(row["deviation"].as_f64().unwrap() < 1e-12, "{row}");
        assert_eq!(row["tree"], "distinct:2,3");
    }
    fails(&[&base[..], &["--draft", &other, "--tree", "2,2"]].concat(), 2, &["2 drafts"]);
    fails(&[&base[..], &["--tree", "distinct:2,2"]].concat(), 2, &["1 drafts", "from 2"]);
    // The published form is no verifier for output, but can be measured here.
    let published = ["--verifier", "walk:global-resolution", "--set", "mode=published-walk"];
    let too_few = ["--set", "limits=[1]", "--json"];
    let row = json(&[&base[..], &published, &too_few].concat());
    assert_eq!(row["lossless"], false);
    assert!(row["fallbacks"].as_f64().unwrap() > 0.0, "{row}");
    fails(&[&base[..], &["--tree", "2,2", "--paths", "2"]].concat(), 2, &["--paths"]);
    fails(&[&base[..], &["--tree", "auto:2"]].concat(), 2, &["accepted before"]);

    fails(
        &[&base[..], &["--paths", "8", "--depth", "8"]].concat(),
        2,
        &["2 tokens", "1.845e19", "--max-trees"],
    );
    fails(&[&base[..], &["--verifier", "block"]].concat(), 2, &["single path"]);
    let wide =
        write(folder.path(), "w.json", r#"{"vocabulary": 3, "next": {"": [0.4, 0.5, 0.1]}}"#);
    fails(&["efficiency", "--target", &target, "--draft", &wide], 1, &["2 tokens", "3"]);
    let empty = write(folder.path(), "e.json", r#"{"vocabulary": 2, "next": {"0": [0.4, 0.6]}}"#);
    fails(&["efficiency", "--target", &target, "--draft", &empty], 1, &["fallback"]);
    fails(&["efficiency", "--target", "/none.json", "--draft", &draft], 1, &["/none.json"]);
}

/// Returns the exit code and the report of a certificate.
fn certify(extra: &[&str]) -> (i32, Value) {
    let common = ["--max-prompts", "1", "--first", "2", "--greedy-tokens", "24", "--json"];
    let output = run(&[&["certify"], &common[..], extra].concat());
    let report: Value = serde_json::from_str(&text(&output.stdout)).unwrap();
    (output.status.code().unwrap(), report)
}

#[test]
fn certify_passes_and_reports_too_little_data() {
    let (code, report) = certify(&["--runs", "800"]);
    assert_eq!((code, report["verdict"].as_str()), (0, Some("pass")), "{report}");
    assert_eq!(report["greedy_equal"], 1);
    let (code, report) = certify(&["--runs", "3"]);
    assert_eq!((code, report["verdict"].as_str()), (3, Some("not-enough-data")), "{report}");
    fails(&["certify", "--verifier", "none"], 2, &["drafts nothing that could be certified"]);
    fails(&["certify", "--false-alarm", "2"], 2, &["between 0 and 1"]);
    fails(&["certify", "--first", "16", "--prompt", &"word ".repeat(250)], 1, &["room"]);
}

#[test]
fn certify_finds_a_planted_fault() {
    let (code, report) = certify(&["--runs", "1500", "--plant-fault"]);
    assert_eq!((code, report["verdict"].as_str()), (1, Some("fail")), "{report}");
    assert!(report["p_value"].as_f64().unwrap() < 1e-3);
}

#[test]
fn benchmarks_measure_and_draw() {
    let folder = tempfile::tempdir().unwrap();
    let prompts = write(
        folder.path(),
        "p.jsonl",
        "{\"prompt\": \"fn main\"}\n\n{\"turns\": [\"impl \", \"later\"]}\n",
    );
    let plot = folder.path().join("plot.svg");
    let args = [
        "--prompts",
        &prompts,
        "-n",
        "12",
        "--rounds",
        "2",
        "--verifiers",
        "block,nested-priority",
    ];
    let plotted = ["--plot", plot.to_str().unwrap(), "--json"];
    let report = json(
        &[&["bench", "decode", "--paths", "2,3", "--depths", "2"], &args[..], &plotted].concat(),
    );
    // Plain decoding, block with one path, nested-priority with two and three.
    let rows = report["results"].as_array().unwrap();
    let shapes: Vec<_> =
        rows.iter().map(|r| (r["verifier"].as_str().unwrap(), r["paths"].as_u64())).collect();
    assert_eq!(
        shapes,
        [
            ("none", None),
            ("block", Some(1)),
            ("nested-priority", Some(2)),
            ("nested-priority", Some(3))
        ]
    );
    assert!(fs::read_to_string(&plot).unwrap().contains("nested-priority"));

    for (field, expected) in
        [("profile", "unknown"), ("commit", ""), ("rustc", "unknown"), ("machine", "")]
    {
        assert!(report[field].as_str().is_some_and(|value| value != expected), "{field}: {report}");
    }
    assert_eq!(report["threads"], 1);
    assert!(rows.iter().all(|row| row["block_efficiency_error"].as_f64().is_some()), "{report}");

    // With one round, no errors are shown.
    let once = ok(&[&["bench", "decode", "--depths", "2"], &args[..], &["--rounds", "1"]].concat());
    assert!(once.contains("one round") && !once.contains('±'), "{once}");

    let record = write(folder.path(), "record.json", &report.to_string());
    assert!(ok(&["bench", "decode", "--from", &record]).contains("nested-priority"));
    // Records from before commit, compiler and threads were recorded.
    let mut old = report.clone();
    for field in ["commit", "rustc", "features", "profile", "threads"] {
        assert!(old.as_object_mut().unwrap().remove(field).is_some(), "{field}");
    }
    let old = write(folder.path(), "old.json", &old.to_string());
    let again = json(&["bench", "decode", "--from", &old, "--json"]);
    assert_eq!((&again["commit"], &again["results"]), (&"unknown".into(), &report["results"]));
    fails(&["bench", "decode", "--from", &prompts], 1, &["record of bench decode"]);

    let saved = folder.path().join("acceptance.json");
    let save = ["--save", saved.to_str().unwrap(), "--json"];
    let args = [
        "bench",
        "acceptance",
        "--prompts",
        &prompts,
        "-n",
        "20",
        "--rounds",
        "1",
        "--children",
        "3",
    ];
    let report = json(&[&args[..], &save].concat());
    let rates = report["acceptance"].as_array().unwrap();
    assert!(report["commit"].is_string() && report["rustc"].is_string(), "{report}");
    assert!(rates.len() == 3 && rates[0].as_f64() > rates[2].as_f64(), "{report}");
    let tree =
        ["--verifier", "specinfer", "--tree", "sequoia:4", "--acceptance", saved.to_str().unwrap()];
    ok(&[&GENERATE[..], &tree].concat());

    let wrong = write(folder.path(), "w.jsonl", "{\"prompt\": \"a\"}\n{\"text\": 1}\n");
    fails(&["bench", "decode", "--prompts", &wrong], 1, &["line 2", "turns"]);
    fails(&["bench", "decode", "--plot", "x.pdf"], 2, &["x.pdf", "in .svg"]);
    fails(&["bench", "decode", "--temperatures", "-1"], 2, &["-1"]);
}

#[test]
fn verifiers_are_compared_on_the_same_drafts() {
    let folder = tempfile::tempdir().unwrap();
    let prompts =
        write(folder.path(), "p.jsonl", "{\"prompt\": \"fn main\"}\n{\"prompt\": \"impl \"}\n");
    let (plot, saved) = (folder.path().join("plot.svg"), folder.path().join("record.json"));
    let (plot, saved) = (plot.to_str().unwrap(), saved.to_str().unwrap());
    let bench = ["bench", "verifiers", "--prompts", &prompts, "-n", "8", "--positions", "16"];
    let requested = [
        "--verifiers",
        "nested-priority,greedy-block,spectr,block",
        "--paths",
        "1,2",
        "--depths",
        "2",
    ];
    let files = ["--tree", "2,2", "--top-p", "1,0.9", "--plot", plot, "--save", saved, "--json"];
    let report = json(&[&bench[..], &requested, &files].concat());
    let results = report["results"].as_array().unwrap();
    // Two kinds of sampling, three trees each; the tree of levels has no paths.
    assert_eq!(results.len(), 6, "{report}");
    let names = |index: usize| -> Vec<&str> {
        let rows = results[index]["verifiers"].as_array().unwrap();
        rows.iter().map(|row| row["verifier"].as_str().unwrap()).collect()
    };
    assert_eq!(names(1), ["nested-priority", "greedy-block", "spectr", "block"]);
    assert_eq!(names(2), ["nested-priority", "spectr"]);
    for result in results {
        assert!(result["positions"].as_u64() >= Some(8), "{report}");
        let rows = result["verifiers"].as_array().unwrap();
        let number = |row: &Value, field: &str| row[field].as_f64().unwrap();
        let first = number(&rows[0], "block_efficiency");
        for row in rows {
            let tokens = number(row, "block_efficiency");
            assert!((1.0..=3.0).contains(&tokens), "{report}");
            assert!((tokens - first - number(row, "difference")).abs() < 1e-9, "{report}");
            assert!(number(row, "difference_error") >= 0.0, "{report}");
        }
        let pairs = result["pairs"].as_array().unwrap();
        assert_eq!(pairs.len(), rows.len() * (rows.len() - 1) / 2);
    }
    // With one path these verifiers are equal, decision by decision.
    let one = &results[0]["verifiers"];
    for index in [1, 3] {
        let difference = one[index]["difference"].as_f64().unwrap();
        assert!(difference.abs() < 1e-9, "{report}");
    }
    // The same seed gives the same numbers, and the saved record is the one that was printed.
    let again =
        json(&[&bench[..], &requested, &["--tree", "2,2", "--top-p", "1,0.9", "--json"]].concat());
    assert_eq!(again["results"], report["results"]);
    assert_eq!(json(&["bench", "verifiers", "--from", saved, "--json"]), report);
    assert!(ok(&["bench", "verifiers", "--from", saved]).contains("less nested-priority"));
    assert!(fs::read_to_string(plot).unwrap().contains("on the same drafts"));

    // Command-line options override the configuration file; options that it excludes are an error.
    let defaults = write(folder.path(), "config.toml", "[bench.verifiers]\nsteps-of = 'block'\n");
    let typed =
        ["--depths", "2", "--verifiers", "block", "--every", "4", "--config", &defaults, "--json"];
    fails(
        &[&bench[..], &typed].concat(),
        2,
        &["--every cannot be used with steps-of", "config.toml"],
    );
    let defaults = write(folder.path(), "config.toml", "[bench.verifiers]\nevery = 2\n");
    let typed =
        ["--depths", "2", "--verifiers", "block", "--every", "4", "--config", &defaults, "--json"];
    let report = json(&[&bench[..], &typed].concat());
    assert_eq!((&report["every"], &report["steps_of"]), (&4.into(), &Value::Null), "{report}");

    let long =
        write(folder.path(), "long.jsonl", &format!("{{\"prompt\": \"{}\"}}", "word ".repeat(200)));
    let long = ["bench", "verifiers", "--prompts", &long, "--depths", "256", "--paths", "1"];
    fails(&long, 1, &["room for output and a tree paths:1,256"]);
    fails(&["bench", "verifiers", "--tree", "auto"], 2, &["auto", "accepted before"]);
    fails(
        &["bench", "verifiers", "--verifiers", "block", "--paths", "", "--tree", "2,2"],
        2,
        &["exact for", "2,2"],
    );
    fails(&["bench", "verifiers", "--paths", ""], 2, &["--tree"]);
    fails(&["bench", "verifiers", "--top-p", "2"], 2, &["top_p", "at most 1"]);
    fails(&["bench", "verifiers", "--from", &prompts], 1, &["record of bench verifiers"]);
    fails(&["bench", "verifiers", "--plot", "x.pdf"], 2, &["x.pdf", "in .svg"]);
}
