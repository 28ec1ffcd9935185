//! End-to-end tests of draft heads and draft vocabularies.

use crate::common;

use std::path::{Path, PathBuf};
use std::process::Output;

fn head(name: &str) -> String {
    folder("../polydraft-models/tests/heads").join(name).to_string_lossy().into_owned()
}

fn folder(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn run(args: &[&str]) -> Output {
    common::run(
        &[&["generate", "--prompt", "to be", "--temperature", "0", "-n", "20"], args].concat(),
    )
}

fn ok(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn fails(args: &[&str], expected: &str) {
    let output = run(args);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && message.starts_with("error:"), "{args:?}: {message}");
    assert!(message.contains(expected), "{args:?}: expected {expected:?} in: {message}");
}

#[test]
fn head_drafts_keep_greedy_output() {
    let target = head("target");
    let plain = ok(&["--target", &target, "--verifier", "none"]);
    for name in ["original", "speculators", "eagle1"] {
        let draft = head(name);
        assert_eq!(ok(&["--target", &target, "--draft", &draft]), plain, "{name}");
        let more = [
            "--target",
            &target,
            "--draft",
            &draft,
            "--draft-vocabulary",
            "30",
            "-k",
            "3",
            "-d",
            "4",
        ];
        assert_eq!(ok(&more), plain, "{name}");
    }
    let specforge = head("specforge");
    assert_eq!(ok(&["--target", &target, "--draft", &specforge, "--draft-layers", "0,2,6"]), plain);
}

#[test]
fn draft_vocabulary_keeps_greedy_output() {
    let plain = ok(&["--verifier", "none"]);
    assert_eq!(ok(&["--draft-vocabulary", "500"]), plain);
    let list = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(list.path(), "[5, 3, 900, 17]").unwrap();
    assert_eq!(ok(&["--draft-vocabulary", &list.path().to_string_lossy()]), plain);
    std::fs::write(list.path(), "[5, 5000]").unwrap();
    fails(
        &["--draft-vocabulary", &list.path().to_string_lossy()],
        "expected tokens below 4096, got 5000",
    );
    fails(&["--draft-vocabulary", "0"], "expected at least 1, got 0");
    fails(&["--draft", "ngram", "--draft-vocabulary", "9"], "for drafts with weights");
    fails(&["--draft-layers", "1,2"], "--draft-layers is for draft heads");
}

#[test]
fn rejects_head_of_another_target() {
    fails(&["--draft", &head("specforge")], "vocab_size: expected the target's 4096, got 64");
    let target = folder("../../demo/target").to_string_lossy().into_owned();
    fails(&["--target", &target, "--draft", &head("nowhere")], "expected a model directory");
}

#[test]
fn inspect_reports_head_and_compatibility() {
    let inspect = |target: &str, draft: &str| common::ok(&["inspect", target, draft]);
    for (name, kind) in [("original", "EAGLE-3"), ("speculators", "EAGLE-3"), ("eagle1", "EAGLE-1")]
    {
        let report = inspect(&head("target"), &head(name));
        assert!(report.contains("it can draft: a head of") && report.contains(kind), "{report}");
    }
    let demo = folder("../../demo/target").to_string_lossy().into_owned();
    let report = inspect(&demo, &head("specforge"));
    assert!(
        report.contains("no: ")
            && report.contains("vocab_size: expected the target's 4096, got 64"),
        "{report}"
    );
}

/// A model's own MTP layer, from a directory and from a file: the output equals that of plain
/// decoding, with one chain and with several paths.
#[test]
fn mtp_layer_drafts_keep_greedy_output() {
    for name in ["mtp-glm", "mtp-deepseek", "mtp-glm/model.gguf"] {
        let target = head(name);
        let text = |more: &[&str]| {
            let target = ["--target", &target, "--backend", "native", "--dtype", "f32"];
            ok(&[&target[..], more].concat())
        };
        let plain = text(&["--verifier", "none"]);
        for paths in ["1", "4"] {
            let drafted = text(&["--draft", "mtp", "-k", paths, "-d", "3"]);
            assert_eq!(drafted, plain, "{name}, {paths} paths");
        }
        let restricted = ["--draft", "mtp", "--draft-vocabulary", "30", "--draft-dtype", "f32"];
        assert_eq!(text(&restricted), plain, "{name}, few tokens");
    }
    fails(
        &["--target", &head("target"), "--draft", "mtp"],
        "n-grams, a smaller model or a draft head",
    );
    let layers = ["--draft", "mtp", "--draft-layers", "1,2"];
    let target = head("mtp-glm");
    fails(&[&["--target", &target][..], &layers].concat(), "--draft-layers is for draft heads");
}
