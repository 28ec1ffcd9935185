//! `--draft self` as its users meet it.

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
fn it_drafts_and_is_named() {
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
        let said = format!(
            "note: quantised self-draft: the target's own weights in {kind} draft for it, "
        );
        assert!(err.starts_with(&said) && err.contains("MB more"), "{err}");
        let (_, err) = ok(&[&GENERATE[..], &TREE, options, &["-v"]].concat());
        assert!(err.contains(&format!("; drafts by {name}")), "{err}");
        let json: Value =
            serde_json::from_str(&ok(&[&GENERATE[..], &TREE, options, &["--json"]].concat()).0)
                .unwrap();
        assert_eq!(json["draft"], name);
        assert!(json["stats"]["block_efficiency"].as_f64().unwrap() > 2.0, "{json}");
    }
    // What is not named is not named.
    let json: Value = serde_json::from_str(&ok(&[&GENERATE[..], &["--json"]].concat()).0).unwrap();
    assert!(json["draft"].is_null());
}

/// Where nothing is named the target's own copy drafts, if that is smaller; else what costs
/// nothing.
#[test]
fn something_drafts_where_nothing_is_named() {
    let target = concat!(env!("CARGO_MANIFEST_DIR"), "/../../demo/target");
    for (options, name, said) in [
        (&[][..], "self:q5_1", "the target's own weights in q5_1 draft for it, "),
        (&["--dtype", "q8_0"], "self:q4_1", "the target's own weights in q4_1 draft for it, "),
        (&["--dtype", "q4_0"], "ngram", "n-grams of the sequence itself draft for it"),
    ] {
        let plain = [&GENERATE[..], &["--verifier", "none", "--target", target], options].concat();
        let whole = [&GENERATE[..], &TREE, &["--target", target], options].concat();
        let (out, err) = ok(&whole);
        assert_eq!(out, ok(&plain).0, "{options:?}");
        assert!(err.contains(said), "{err}");
        let json: Value = serde_json::from_str(&ok(&[&whole[..], &["--json"]].concat()).0).unwrap();
        assert_eq!(json["draft"], name);
    }
}

#[test]
fn a_draft_may_be_held_in_another_type() {
    // With one seed, another draft draws another text of the same distribution.
    let of = |options: &[&str]| {
        ok(&[&["generate", "--prompt", "pub fn ", "-n", "120", "--seed", "1"][..], &TREE, options]
            .concat())
        .0
    };
    assert_eq!(of(&["--draft-dtype", "f32"]), of(&[]));
    assert_ne!(of(&["--draft-dtype", "q4_0"]), of(&[]));
}

/// Whether a copy helps depends on how its target is held.
#[test]
fn inspect_asks_how_the_target_is_held() {
    let target = concat!(env!("CARGO_MANIFEST_DIR"), "/../../demo/target");
    let report =
        |dtype: &str| common::json(&["inspect", target, "self", "--dtype", dtype, "--json"]);
    assert_eq!(report("f32")["draft"]["fits"], true);
    assert_eq!(report("q4_0")["draft"]["fits"], false);
}

#[test]
fn what_makes_no_sense_is_refused() {
    for (options, expected) in [
        (&["--draft", "self", "--dtype", "q4_0"][..], "it would not be faster"),
        (&["--draft", "self:q8_0", "--dtype", "q8_0"], "it would not be faster"),
        (&["--draft", "self:q9"], "expected one of f32"),
        (&["--draft", "self:file"], "would be the target again"),
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
fn inspect_says_what_it_takes() {
    let target = concat!(env!("CARGO_MANIFEST_DIR"), "/../../demo/target");
    let (out, _) = ok(&["inspect", target, "self"]);
    assert!(
        out.contains("self:q5_1") && out.contains("yes, it can draft: the same parameters in "),
        "{out}"
    );
    let json: Value =
        serde_json::from_str(&ok(&["inspect", target, "self:q8_0", "--json"]).0).unwrap();
    let draft = &json["draft"];
    assert_eq!(
        (&draft["directory"], &draft["fits"]),
        (&Value::from("self:q8_0"), &Value::from(true))
    );
    let (copy, whole) =
        (draft["copy_bytes"].as_f64().unwrap(), draft["parameters"].as_f64().unwrap());
    assert!(copy > whole && copy < 1.2 * whole, "{draft}");
}

/// A copy is made once: the next start says no more of it, and writes the same.
#[test]
fn a_copy_is_kept_for_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let copies = folder.path().join("copies");
    let sampled = ["generate", "--prompt", "pub fn ", "-n", "40", "--seed", "1", "--draft", "self"];
    let generate = |copies: &str| ok(&[&sampled[..], &TREE, &["--copies", copies]].concat());
    let (text, said) = generate(copies.to_str().unwrap());
    let files: Vec<_> =
        std::fs::read_dir(&copies).unwrap().map(|file| file.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    assert!(
        said.contains(&format!("note: cached for the next start: {}", files[0].display())),
        "{said}"
    );
    let (again, said) = generate(copies.to_str().unwrap());
    assert!(again == text && !said.contains("cached for"), "{again}, not {text}; {said}");
    let (made, said) = generate("none");
    assert!(made == text && !said.contains("cached for"), "{made}, not {text}; {said}");
    // What is damaged is made anew, and kept.
    let whole = std::fs::read(&files[0]).unwrap();
    std::fs::write(&files[0], &whole[..whole.len() / 2]).unwrap();
    let (again, said) = generate(copies.to_str().unwrap());
    assert!(
        again == text && said.contains("note: cached for the next start"),
        "{again}, not {text}; {said}"
    );
    assert_eq!(std::fs::metadata(&files[0]).unwrap().len(), whole.len() as u64);
    // Where nothing can be written, the text is there all the same.
    let (unkept, said) = generate("/dev/null/copies");
    assert!(
        unkept == text && said.contains("cannot write /dev/null/copies/"),
        "{unkept}, not {text}; {said}"
    );
}
