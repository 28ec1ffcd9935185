//! End-to-end tests of `--draft self`.

use crate::common;

use crate::common::run;
use serde_json::Value;

fn ok(args: &[&str]) -> (String, String) {
    let output = run(args);
    let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(output.status.success(), "{args:?}: {err}");
    (out, err)
}

const GENERATE: [&str; 9] =
    ["generate", "--prompt", "pub fn ", "-n", "40", "--temperature", "0", "--seed", "1"];
const TREE: [&str; 2] = ["--tree", "paths:2,3"];

#[test]
fn self_draft_keeps_output_and_is_reported() {
    for (options, name) in [
        (&["--draft", "self"][..], "self:q5_1"),
        (&["--draft", "self:q4_0"], "self:q4_0"),
        (&["--draft", "self", "--draft-dtype", "q8_0"], "self:q8_0"),
        (&["--draft", "self", "--dtype", "q8_0"], "self:q4_1"),
    ] {
        let (out, err) = ok(&[&GENERATE[..], &TREE, options].concat());
        let dtype: &[&str] = if options.contains(&"--dtype") { &["--dtype", "q8_0"] } else { &[] };
        let plain = ok(&[&GENERATE[..], &["--verifier", "none"], dtype].concat()).0;
        assert_eq!(out, plain, "{options:?}");
        let kind = name.strip_prefix("self:").unwrap();
        let messages = format!(
            "note: quantised self-draft: drafting with the target's own weights in {kind}, which \
             take "
        );
        assert!(err.starts_with(&messages) && err.contains("MB more"), "{err}");
        let (_, err) = ok(&[&GENERATE[..], &TREE, options, &["-v"]].concat());
        assert!(err.contains(&format!("; drafts by {name}")), "{err}");
        let json: Value =
            serde_json::from_str(&ok(&[&GENERATE[..], &TREE, options, &["--json"]].concat()).0)
                .unwrap();
        assert_eq!(json["draft"], name);
        assert!(json["stats"]["block_efficiency"].as_f64().unwrap() > 2.0, "{json}");
    }
    // A default draft is not reported.
    let json: Value = serde_json::from_str(&ok(&[&GENERATE[..], &["--json"]].concat()).0).unwrap();
    assert!(json["draft"].is_null());
}

/// Without --draft the default is a self-draft if it is expected to pay within the output, else
/// n-grams; with a seed the output's length does not count.
#[test]
fn default_draft_is_self_or_ngram() {
    let target = concat!(env!("CARGO_MANIFEST_DIR"), "/../../demo/target");
    let short = ["generate", "--prompt", "pub fn ", "--temperature", "0"];
    for (options, name, messages) in [
        (&["-n", "200"][..], "self:q5_1", "the target's own weights in q5_1, which take "),
        (&["-n", "8"], "ngram", "drafting with n-grams of the sequence itself"),
        (&["-n", "8", "--seed", "1"], "self:q5_1", "the target's own weights in q5_1, which take "),
        (&["-n", "200", "--dtype", "q8_0"], "ngram", "drafting with n-grams of the sequence"),
        (&["-n", "200", "--dtype", "q4_0"], "ngram", "drafting with n-grams of the sequence"),
    ] {
        let plain = [&short[..], &["--verifier", "none", "--target", target], options].concat();
        let complete = [&short[..], &TREE, &["--target", target], options].concat();
        let (out, err) = ok(&complete);
        assert_eq!(out, ok(&plain).0, "{options:?}");
        assert!(err.contains(messages), "{err}");
        let json: Value =
            serde_json::from_str(&ok(&[&complete[..], &["--json"]].concat()).0).unwrap();
        assert_eq!(json["draft"], name);
    }
}

#[test]
fn draft_dtype_changes_the_draft() {
    // With the same seed, another draft gives another output of the same distribution.
    let output = |options: &[&str]| {
        ok(&[&["generate", "--prompt", "pub fn ", "-n", "120", "--seed", "1"][..], &TREE, options]
            .concat())
        .0
    };
    assert_eq!(output(&["--draft-dtype", "f32"]), output(&[]));
    assert_ne!(output(&["--draft-dtype", "q4_0"]), output(&[]));
}

/// A self-draft is useful only for some weight types of the target.
#[test]
fn inspect_considers_dtype_of_target() {
    let target = concat!(env!("CARGO_MANIFEST_DIR"), "/../../demo/target");
    let report =
        |dtype: &str| common::json(&["inspect", target, "self", "--dtype", dtype, "--json"]);
    assert_eq!(report("f32")["draft"]["fits"], true);
    assert_eq!(report("q4_0")["draft"]["fits"], false);
}

#[test]
fn rejects_useless_self_drafts() {
    for (options, expected) in [
        (&["--draft", "self", "--dtype", "q4_0"][..], "it would not be faster"),
        (&["--draft", "self:q8_0", "--dtype", "q8_0"], "it would not be faster"),
        (&["--draft", "self:q9"], "expected one of f16"),
        (&["--draft", "self:file"], "would be the target itself"),
        (&["--draft", "self:q8_0", "--draft-dtype", "q4_0"], "contradict each other"),
        (&["--draft", "ngram", "--draft-dtype", "q4_0"], "n-grams have none"),
    ] {
        let output = run(&[&GENERATE[..], options].concat());
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{options:?}: {message}");
        assert!(message.contains(expected), "{options:?}: {message}");
    }
}

#[test]
fn inspect_reports_size_of_self_draft() {
    let target = concat!(env!("CARGO_MANIFEST_DIR"), "/../../demo/target");
    let (out, _) = ok(&["inspect", target, "self"]);
    assert!(
        out.contains("self:q5_1")
            && out.contains("yes, it can draft: a quantised copy of the weights, "),
        "{out}"
    );
    let json: Value =
        serde_json::from_str(&ok(&["inspect", target, "self:q8_0", "--json"]).0).unwrap();
    let draft = &json["draft"];
    assert_eq!(
        (&draft["directory"], &draft["fits"]),
        (&Value::from("self:q8_0"), &Value::from(true))
    );
    let (copy, complete) =
        (draft["copy_bytes"].as_f64().unwrap(), draft["parameters"].as_f64().unwrap());
    assert!(copy > complete && copy < 1.2 * complete, "{draft}");
}

/// The copy is written once: the next start does not report it again, and gives the same output.
#[test]
fn caches_quantised_copy_for_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let copies = folder.path().join("copies");
    let sampled = ["generate", "--prompt", "pub fn ", "-n", "40", "--seed", "1", "--draft", "self"];
    let generate = |copies: &str| ok(&[&sampled[..], &TREE, &["--copies", copies]].concat());
    let (text, messages) = generate(copies.to_str().unwrap());
    let files: Vec<_> =
        std::fs::read_dir(&copies).unwrap().map(|file| file.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    assert!(
        messages.contains(&format!("note: cached for the next start: {}", files[0].display())),
        "{messages}"
    );
    let (again, messages) = generate(copies.to_str().unwrap());
    assert!(again == text && !messages.contains("cached for"), "{again}, not {text}; {messages}");
    let (made, messages) = generate("none");
    assert!(made == text && !messages.contains("cached for"), "{made}, not {text}; {messages}");
    // A damaged copy is replaced.
    let complete = std::fs::read(&files[0]).unwrap();
    std::fs::write(&files[0], &complete[..complete.len() / 2]).unwrap();
    let (again, messages) = generate(copies.to_str().unwrap());
    assert!(
        again == text && messages.contains("note: cached for the next start"),
        "{again}, not {text}; {messages}"
    );
    assert_eq!(std::fs::metadata(&files[0]).unwrap().len(), complete.len() as u64);
    // If the cache cannot be written, the output is unaffected.
    let (uncached, messages) = generate("/dev/null/copies");
    assert!(
        uncached == text && messages.contains("cannot write /dev/null/copies/"),
        "{uncached}, not {text}; {messages}"
    );
}
