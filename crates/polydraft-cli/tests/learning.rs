//! End-to-end tests of `--learn`: n-gram tables trained on the target's output.

use std::fs;
use std::path::Path;

use crate::common::{fails, ok};
use serde_json::Value;

/// Returns the number of learned tokens from the second line of a table.
fn learned(table: &Path) -> u64 {
    let bytes = fs::read(table).unwrap();
    let line = bytes.split(|byte| *byte == b'\n').nth(1).unwrap();
    serde_json::from_slice::<Value>(line).unwrap()["learned"].as_u64().unwrap()
}

#[test]
fn learning_improves_drafts_and_keeps_output() {
    let folder = tempfile::tempdir().unwrap();
    let table = folder.path().join("use.ngrams");
    let name = table.to_str().unwrap();
    let common = ["generate", "--prompt", "pub fn ", "-n", "40", "-t", "0", "--quiet"];
    let plain = ok(&[&common[..], &["--verifier", "none"]].concat());
    for round in 1..=3 {
        let text = ok(&[&common[..], &["--learn", name, "--tree", "paths:1,3"]].concat());
        assert_eq!((text, learned(&table)), (plain.clone(), 40 * round));
    }
    // In the third round drafts come from the first.
    let json = |args: &[&str]| -> Value {
        serde_json::from_str(&ok(&[&common[..], &["--json", "--tree", "paths:1,3"], args].concat()))
            .unwrap()
    };
    let calls = |report: &Value| report["stats"]["target_calls"].as_u64().unwrap();
    let (by_use, before) = (calls(&json(&["--draft", name])), calls(&json(&["--draft", "ngram"])));
    assert!(by_use <= 20 && by_use < before, "{by_use} {before}");
    assert_eq!(learned(&table), 120, "a table used as a draft is not trained");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    let target = concat!(env!("CARGO_MANIFEST_DIR"), "/../../demo/target");
    assert!(ok(&["inspect", target, name]).contains("n-grams of 120 generated tokens"));
    fails(&["inspect", name], 2, &["together with its target"]);
}

#[test]
fn rejects_other_files_and_conflicting_options() {
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("notes.txt");
    fs::write(&other, "not a table").unwrap();
    let name = other.to_str().unwrap();
    fn with<'a>(args: &[&'a str]) -> Vec<&'a str> {
        [&["generate", "-p", "x", "-n", "2"], args].concat()
    }
    fails(&with(&["--learn", name]), 1, &["notes.txt", "polydraft learn"]);
    assert_eq!(fs::read(&other).unwrap(), b"not a table");
    fails(&with(&["--learn", "/no/such/folder/a.ngrams"]), 1, &["cannot store", "/no/such/folder"]);
    let table = folder.path().join("a.ngrams");
    let name = table.to_str().unwrap();
    for draft in ["self", name] {
        fails(&with(&["--learn", name, "--draft", draft]), 2, &["--learn FILE", "no --draft"]);
    }
    ok(&with(&["--learn", name, "--draft", "ngram"]));
    fails(&with(&["--learn", name, "--corpus", name]), 2, &["no second table"]);
    // Without drafts nothing is learned.
    let before = learned(&table);
    ok(&with(&["--learn", name, "--verifier", "none"]));
    assert_eq!(learned(&table), before);
}

/// The table is saved when the server stops.
#[cfg(all(feature = "server", unix))]
#[test]
fn server_learns_from_requests() {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpStream;

    let folder = tempfile::tempdir().unwrap();
    let table = folder.path().join("use.ngrams");
    let args = ["serve", "--port", "0", "--learn", table.to_str().unwrap()];
    let mut child = crate::common::program(&args).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let at = lines.by_ref().map_while(Result::ok).find_map(|line| {
        let (_, rest) = line.split_once("http://")?;
        Some(rest.split('/').next()?.to_owned())
    });
    let at = at.expect("an address");
    for seed in 0..3 {
        let body = format!(r#"{{"prompt": "pub fn ", "max_tokens": 20, "seed": {seed}}}"#);
        let mut stream = TcpStream::connect(&at).unwrap();
        write!(
            stream,
            "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("\"completion_tokens\":20"), "{answer}");
    }
    crate::common::interrupt(&child, "-TERM");
    // Reads the remaining messages, so that the server does not block.
    lines.for_each(drop);
    assert!(child.wait().unwrap().success());
    assert_eq!(learned(&table), 60);
}

#[cfg(feature = "server")]
#[test]
fn rejects_one_table_for_two_models() {
    let twice = ["--model", "a=x,learn=t.ngrams", "--model", "b=y,learn=t.ngrams"];
    fails(&[&["serve"], &twice[..]].concat(), 2, &["two models that learn t.ngrams"]);
    fails(&["serve", "--learn", "t.ngrams", "--model", "a=x"], 2, &["--learn", "--model"]);
    fails(&["serve", "--model", "a=x,lern=t"], 2, &[",learn=FILE", "lern=t"]);
}
