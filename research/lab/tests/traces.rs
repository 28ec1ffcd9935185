//! `polydraft-lab trace` and `polydraft-lab replay`, on the demo pair.

#[path = "../../../crates/polydraft-cli/tests/common/mod.rs"]
mod common;

use std::fs;
use std::path::Path;

use common::{fails, json, run, text};

/// Two short prompts.
fn prompts(folder: &Path) -> String {
    let file = folder.join("prompts.jsonl");
    fs::write(&file, "{\"prompt\": \"fn main() {\"}\n{\"prompt\": \"impl Iterator for\"}\n")
        .unwrap();
    file.to_str().unwrap().to_owned()
}

/// Equal drafts give bitwise equal results, for the tree itself and for subsamples of more paths.
#[test]
fn replay_is_bench_verifiers_on_the_same_drafts() {
    let folder = tempfile::tempdir().unwrap();
    let (prompts, trace) = (prompts(folder.path()), folder.path().join("trace"));
    let trace = trace.to_str().unwrap();
    let same = ["--prompts", &prompts, "-n", "12", "--every", "6", "-t", "0.9", "--seed", "3"];
    let recorded = json(
        &[&["trace", trace, "--mass", "1", "--tree", "paths:6,3", "--json"], &same[..]].concat(),
    );
    assert_eq!((&recorded["prompts"], &recorded["positions"]), (&2.into(), &8.into()));
    for (paths, drafts) in [("6", "1"), ("2", "3")] {
        let tree = format!("paths:{paths},3");
        let live = [
            "bench",
            "verifiers",
            "-k",
            paths,
            "-d",
            "3",
            "--drafts",
            drafts,
            "--positions",
            "8",
            "--json",
        ];
        let live = json(&[&live, &same[..]].concat());
        let replayed = json(&["replay", trace, "--tree", &tree, "--json"]);
        for field in ["prompts", "results"] {
            assert_eq!(live[field], replayed[field], "{tree}");
        }
        assert_eq!(live["results"][0]["verifiers"].as_array().unwrap().len(), 9);
    }
    // The output is a record of 'bench verifiers'.
    let record = folder.path().join("record.json");
    let plot = folder.path().join("chart.svg");
    let (record, plot) = (record.to_str().unwrap(), plot.to_str().unwrap());
    let shown = run(&[
        "replay",
        trace,
        "--save",
        record,
        "--plot",
        plot,
        "--tree",
        "stop-below:0.4,paths:3,2",
    ]);
    assert!(shown.status.success(), "{}", text(&shown.stderr));
    assert!(
        text(&shown.stdout).contains("distributions exact")
            && fs::read_to_string(plot).unwrap().contains("<svg")
    );
    let again = run(&["bench", "verifiers", "--from", record]);
    assert_eq!(text(&again.stdout), text(&shown.stdout));
}

#[test]
fn rejects_invalid_options() {
    let folder = tempfile::tempdir().unwrap();
    let (prompts, trace) = (prompts(folder.path()), folder.path().join("trace"));
    let trace = trace.to_str().unwrap();
    let small =
        ["--prompts", &prompts, "-n", "4", "--every", "4", "--outputs", "1", "--mass", "0.9"];
    json(&[&["trace", trace, "--tree", "paths:2,2", "--json"], &small[..]].concat());
    let shard = format!("{trace}/prompt-000001.safetensors.gz");
    json(&["replay", &shard, "--verifiers", "block", "--json"]);

    fails(&[&["trace", trace], &small[..]].concat(), 2, &["holds a trace", "--append"]);
    fails(
        &[&["trace", trace, "--append"], &small[..]].concat(),
        1,
        &["tree", "paths", "one set of settings"],
    );
    fails(&[&["trace", "x", "--tree", "auto"], &small[..]].concat(), 2, &["auto"]);
    fails(&["trace", "x", "--mass", "0"], 2, &["--mass"]);
    fails(&["replay", trace, "--tree", "paths:3,2"], 2, &["paths:3,2", "up to 2"]);
    fails(&["replay", trace, "--tree", "2,2", "--verifiers", "block"], 2, &["2,2"]);
    fails(&["replay", trace, "--verifiers", "blok"], 2, &["blok"]);
    fails(&["replay", "/no/such/trace"], 1, &["/no/such/trace", "trace.json"]);
    fails(&["replay", &prompts], 1, &[&prompts, "trace.json"]);
    fails(&["replay", trace, &shard], 1, &[&shard, "a recording that is there once"]);
    let (none, file) = (folder.path().join("none"), folder.path().join("prompts.jsonl"));
    fails(&["trace", none.to_str().unwrap(), "--append"], 2, &["no trace to go on with"]);
    fails(&["trace", file.to_str().unwrap()], 2, &["expected a folder"]);

    // All prompts are already recorded: they are skipped and nothing is added.
    let before = fs::read(format!("{trace}/index.jsonl")).unwrap();
    let again = json(
        &[&["trace", trace, "--tree", "paths:2,2", "--append", "--json"], &small[..]].concat(),
    );
    assert_eq!((&again["prompts"], &again["before"]), (&0.into(), &2.into()));
    assert_eq!(fs::read(format!("{trace}/index.jsonl")).unwrap(), before);
    let mut damaged = fs::read(&shard).unwrap();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 4;
    fs::write(&shard, damaged).unwrap();
    fails(&["replay", trace], 1, &["prompt-000001.safetensors.gz", "checksum"]);
}
