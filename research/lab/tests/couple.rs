//! `polydraft-lab couple`, as users run it.

#[path = "../../../crates/polydraft-cli/tests/common/mod.rs"]
mod common;

use std::path::Path;
use std::process::Output;

use common::fed;
use serde_json::Value;

const PAIR: &str = r#"{"target": [0.5, 0.3, 0.2], "draft": [0.2, 0.3, 0.5]}"#;

fn couple(input: &str, arguments: &[&str]) -> Output {
    fed(&[&["couple"], arguments].concat(), input.as_bytes())
}

fn json(input: &str, arguments: &[&str]) -> Value {
    let output = couple(input, &[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Exit code and standard error.
fn failure(input: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let output = couple(input, arguments);
    assert!(output.stdout.is_empty());
    (output.status.code(), String::from_utf8(output.stderr).expect("UTF-8"))
}

fn close(value: &Value, expected: f64) {
    let got = value.as_f64().expect("a number");
    assert!((got - expected).abs() < 1e-12, "{got} {expected}");
}

#[test]
fn one_rule() {
    let report = json(PAIR, &["--rule", "priority", "--drafts", "2", "--given", "2, 1"]);
    let mut keys: Vec<_> =
        report.as_object().expect("an object").keys().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(
        keys,
        [
            "acceptance",
            "distribution",
            "drafting",
            "drafts",
            "optimal",
            "rule",
            "status",
            "time_us",
            "two_drafts_suffice"
        ]
    );
    // H = {2}: 1 + 0.2 − 0.25; H = {1, 2}: 1 + 0.5 − 0.64.
    close(&report["acceptance"], 0.86);
    close(&report["optimal"], 0.86);
    let probs = report["distribution"].as_array().expect("a list");
    close(&Value::from(probs.iter().filter_map(Value::as_f64).sum::<f64>()), 1.0);
    assert_eq!(
        (&report["rule"], &report["drafting"], &report["drafts"]),
        (&"priority".into(), &"iid".into(), &2.into())
    );
    assert_eq!(report["status"], "exact");
}

#[test]
fn distribution_over_all_drafts_is_the_target() {
    let q = [0.2, 0.3, 0.5];
    let mut emitted = [0.0; 3];
    for a in 0..3 {
        for b in 0..3 {
            let report = json(PAIR, &["--rule", "k-seq", "--given", &format!("{a},{b}")]);
            for (emitted, p) in emitted.iter_mut().zip(report["distribution"].as_array().expect(
                "a \
                list",
            )) {
                *emitted += q[a] * q[b] * p.as_f64().expect("a number");
            }
        }
    }
    for (got, expected) in emitted.iter().zip([0.5, 0.3, 0.2]) {
        assert!((got - expected).abs() < 1e-12);
    }
}

#[test]
fn all_rules() {
    let reports = json(PAIR, &[]);
    let reports = reports.as_array().expect("a list");
    for name in polydraft::RuleKind::NAMES.iter().chain(polydraft_reference::ReferenceKind::NAMES) {
        assert!(reports.iter().any(|report| report["rule"] == *name), "{name}");
    }
    for report in reports {
        let (acceptance, optimal) = (report["acceptance"].as_f64(), report["optimal"].as_f64());
        assert!(acceptance.expect("a number") <= optimal.expect("a number") + 1e-12, "{report}");
    }
    let table = String::from_utf8(couple(PAIR, &[]).stdout).expect("UTF-8");
    assert!(table.contains("acceptance") && table.lines().count() == reports.len() + 1, "{table}");
    let distinct =
        json(r#"{"target": [0.5, 0.5], "draft": [[1, 0], [0, 1]]}"#, &["--rule", "recursive"]);
    assert_eq!(distinct["drafting"], "distinct");
    close(&distinct["acceptance"], 1.0);
}

#[test]
fn settings() {
    let with = |setting| {
        json(PAIR, &["--rule", "importance", "--drafts", "2", "--set", setting])["acceptance"]
            .clone()
    };
    close(&with("alphabet=null"), 0.86);
    assert!(with("alphabet=1").as_f64() <= Some(0.5));
    let (code, message) = failure(PAIR, &["--rule", "importance", "--set", "size=3"]);
    assert!(code == Some(2) && message.contains("truncation"), "{message}");
    let (code, message) = failure(PAIR, &["--rule", "importance", "--set", "truncation=21"]);
    assert!(code == Some(2) && message.contains("from 1 to 20"), "{message}");
}

#[test]
fn reference_solvers() {
    for name in ["linear-program", "max-flow", "slackness"] {
        for (drafting, expected) in
            [("iid", 0.86), ("without-replacement", 1.0), ("greedy", 0.9), ("hub", 0.9)]
        {
            let report = json(PAIR, &["--rule", name, "--drafting", drafting]);
            close(&report["optimal"], report["acceptance"].as_f64().expect("a number"));
            let got = report["acceptance"].as_f64().expect("a number");
            assert!(drafting != "iid" || (got - expected).abs() < 1e-12, "{report}");
        }
    }
    let published = ["--rule", "global-resolution", "--set", "tau=1e-4", "--set", "mode=published"];
    let report = json(PAIR, &published);
    close(&report["off_by_at_most"]["distribution"], 1.5e-3);
    close(&report["off_by_at_most"]["acceptance"], 1e-3);
    let off = report["acceptance"].as_f64().expect("a number") - 0.86;
    assert!(off.abs() <= 1e-3 && off != 0.0, "{off}");
    let report = json(PAIR, &["--rule", "global-resolution", "--set", "tau=1e-4"]);
    assert!(report.get("fallback").is_none() && report.get("off_by_at_most").is_none());

    // A truncation to one token is not enough for any system here.
    let small = ["--rule", "global-resolution", "--set", "limits=[1]"];
    let report = json(PAIR, &small);
    close(&report["acceptance"], 0.86);
    assert_eq!(report["fallback"]["rule"], "priority");
    assert!(
        report["fallback"]["reason"].as_str().expect("text").contains("limit is 1"),
        "{report}"
    );
    let text = String::from_utf8(couple(PAIR, &small).stdout).expect("UTF-8");
    assert!(text.contains("fallback    priority, since its"), "{text}");
    let (code, message) = failure(PAIR, &[&small[..], &["--set", "mode=published"]].concat());
    assert!(code == Some(1) && message.contains("limit is 1"), "{message}");
    let (code, message) = failure(PAIR, &["--rule", "max-flow", "--set", "max_variables=3"]);
    assert!(
        code == Some(1) && message.contains("9 variables") && message.contains("would fit"),
        "{message}"
    );
    for (setting, expected) in
        [("tau=2", "below 1"), ("tau=small", "expected f64"), ("epsilon=1", "tau")]
    {
        let (code, message) = failure(PAIR, &["--rule", "global-resolution", "--set", setting]);
        assert!(code == Some(2) && message.contains(expected), "{setting}: {message}");
    }
    let (code, message) = failure(PAIR, &["--rule", "globalresolution"]);
    assert!(
        code == Some(2) && message.contains("max-flow") && message.contains("priority"),
        "{message}"
    );
}

#[test]
fn usage_errors() {
    for (arguments, expected) in [
        (&["--rule", "best"][..], "priority"),
        (&["--rule", "priority", "--drafting", "hub"], "iid"),
        (&["--rule", "single", "--drafts", "2"], "1 draft"),
        (&["--rule", "priority", "--given", "1"], "2"),
        (&["--rule", "priority", "--given", "1,3"], "below 3"),
        (&["--rule", "hub", "--given", "0,1"], "never drawn"),
        (&["--rule", "priority", "--drafting", "distinct", "--drafts", "2"], "distributions"),
        (&["--given", "1,2"], "--rule"),
        (&["--drafts", "0"], "0"),
    ] {
        let (code, message) = failure(PAIR, arguments);
        assert!(code == Some(2) && message.contains(expected), "{arguments:?}: {message}");
    }
}

#[test]
fn rejects_invalid_distributions() {
    for (input, expected) in [
        (r#"{"target": [0.5, 0.6], "draft": [1, 0]}"#, "1.1"),
        (r#"{"target": [0.5, -0.5, 1], "draft": [1, 0, 0]}"#, "entry 1"),
        (r#"{"target": [0.5, 0.5], "draft": [1, 0, 0]}"#, "2 and 3"),
        (r#"{"target": [], "draft": []}"#, "target"),
        (r#"{"target": [1]}"#, "draft"),
        (r#"{"target": [0.5, 0.4999], "draft": [1, 0]}"#, "--normalize"),
        ("[1, 2]", "JSON"),
    ] {
        let (code, message) = failure(input, &[]);
        assert!(code == Some(1) && message.contains(expected), "{input}: {message}");
    }
    let nearly = r#"{"target": [0.5, 0.4999], "draft": [1, 0]}"#;
    assert!(couple(nearly, &["--normalize"]).status.success());
    let (code, message) = failure(r#"{"target": [0.5, 0.49], "draft": [1, 0]}"#, &["--normalize"]);
    assert!(code == Some(1) && message.contains("0.99"), "{message}");
}

/// A .npy file as NumPy writes it.
fn npy(path: &Path, kind: &str, shape: &str, data: &[u8]) {
    let mut header = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}");
    while (10 + header.len() + 1) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    let length = u16::try_from(header.len()).expect("a short header").to_le_bytes();
    std::fs::write(path, [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes(), data].concat())
        .expect("written");
}

#[test]
fn arrays() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let vocabulary = 50_000;
    let weights = |power: f64| -> Vec<f64> {
        let weights: Vec<f64> = (1..=vocabulary).map(|rank| f64::from(rank).powf(-power)).collect();
        let sum: f64 = weights.iter().sum();
        weights.iter().map(|weight| weight / sum).collect()
    };
    let (p, q) = (weights(1.2), weights(1.0));
    let bytes =
        |probs: &[f64]| probs.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
    let singles = |probs: &[f64]| {
        probs.iter().flat_map(|value| (*value as f32).to_le_bytes()).collect::<Vec<_>>()
    };

    npy(&at("p.npy"), "<f8", "(50000,)", &bytes(&p));
    npy(&at("q.npy"), "<f4", "(50000,)", &singles(&q));
    npy(&at("pair.npy"), "<f8", "(2, 50000)", &[bytes(&p), bytes(&q)].concat());
    let view = |data| {
        safetensors::tensor::TensorView::new(safetensors::Dtype::F64, vec![50_000], data)
            .expect("a view")
    };
    let (p_bytes, q_bytes) = (bytes(&p), bytes(&q));
    let tensors = [("target", view(&p_bytes)), ("draft", view(&q_bytes))];
    safetensors::serialize_to_file(tensors, None, &at("pair.safetensors")).expect("written");

    let path = |name: &str| at(name).display().to_string();
    let (p_file, q_file) = (path("p.npy"), path("q.npy"));
    let two_files =
        ["--target", &p_file, "--draft", &q_file, "--rule", "priority", "--drafts", "4"];
    let acceptances = [
        json("", &two_files)["acceptance"].clone(),
        json("", &[&path("pair.npy"), "--rule", "priority", "--drafts", "4"])["acceptance"].clone(),
        json("", &[&path("pair.safetensors"), "--rule", "priority", "--drafts", "4"])["acceptance"]
            .clone(),
    ];
    let exact = json(
        "",
        &[&path("pair.npy"), "--rule", "priority", "--drafts", "4", "--set", "form=exact"],
    );
    for acceptance in acceptances {
        let loss =
            exact["optimal"].as_f64().expect("a number") - acceptance.as_f64().expect("a number");
        assert!(loss.abs() < 1e-6, "{loss}");
    }

    npy(&at("nan.npy"), "<f8", "(3,)", &bytes(&[0.5, f64::NAN, 0.5]));
    npy(&at("short.npy"), "<f8", "(4,)", &bytes(&[0.5, 0.5]));
    npy(&at("whole.npy"), "<i8", "(2,)", &bytes(&[0.5, 0.5]));
    std::fs::write(at("not.npy"), "no").expect("written");
    for (name, expected) in [
        ("nan.npy", "entry 1"),
        ("short.npy", "needs 4 values"),
        ("whole.npy", "float"),
        ("not.npy", ".npy"),
    ] {
        let file = path(name);
        let (code, message) = failure("", &["--target", &file, "--draft", &file]);
        assert!(code == Some(1) && message.contains(expected), "{name}: {message}");
    }
    assert_eq!(failure("", &[&path("missing.json")]).0, Some(1));
}
