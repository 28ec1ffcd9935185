//! End-to-end tests of `polydraft generate`: output, exit codes, messages.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::common::{program, text};
use serde_json::Value;

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo")
}

fn command(args: &[&str]) -> Command {
    program(&[&["generate"], args].concat())
}

fn run(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

fn ok(args: &[&str]) -> (String, String) {
    let output = run(args);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{args:?}: {err}");
    (out, err)
}

/// Runs a command that must fail with this code, and a message that contains all of `expected`.
fn fails(args: &[&str], code: i32, expected: &[&str]) {
    let output = run(args);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {message}");
    assert!(!message.contains("panicked") && message.starts_with("error:"), "{args:?}: {message}");
    for part in expected {
        assert!(message.contains(part), "{args:?}: expected {part:?} in: {message}");
    }
    assert!(output.stdout.is_empty(), "{args:?}: output besides the error");
}

/// Copies the demo draft, which is small and loads quickly, and modifies it.
fn copy(change: impl FnOnce(&Path)) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(demo().join("draft")).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    change(folder.path());
    folder
}

#[test]
fn seeds_reproduce_outputs() {
    let output = |seed| ok(&["--prompt", "pub fn ", "-n", "60", "--seed", seed]).0;
    assert_eq!(output("1"), output("1"));
    assert_ne!(output("1"), output("2"));
    // Adaptive drafts of an output without a seed depend on learned costs.
    let (out, err) = ok(&["--prompt", "pub fn ", "-n", "40", "--depth", "3"]);
    let seed = err.split("seed ").nth(1).unwrap().lines().next().unwrap();
    let again = ok(&["--prompt", "pub fn ", "-n", "40", "--depth", "3", "--seed", seed]);
    assert_eq!(out, again.0);
}

/// A model alone, in each type: its default draft hangs on the type, and without a seed on the
/// length of the output.
#[test]
fn seeded_outputs_begin_longer_ones() {
    let model = demo().join("target");
    let output = |kind: &str, limit: &str| {
        let options =
            ["--dtype", kind, "--seed", "7", "--json", "--prompt", "pub fn ", "-n", limit];
        let (out, _) = ok(&[&[model.to_str().unwrap()], &options[..]].concat());
        let json: Value = serde_json::from_str(&out).unwrap();
        serde_json::from_value::<Vec<u32>>(json["tokens"].clone()).unwrap()
    };
    for kind in ["f32", "bf16", "q8_0"] {
        let longest = output(kind, "400");
        for limit in ["1", "9", "60"] {
            let shorter = output(kind, limit);
            assert!(longest.starts_with(&shorter), "{kind} {limit}: {shorter:?} {longest:?}");
        }
    }
}

/// The stored costs of a cache folder, with the file of each.
fn stored_costs(cache: &Path) -> Vec<(PathBuf, Value)> {
    let files = fs::read_dir(cache.join("polydraft/costs")).into_iter().flatten();
    let read = |file: std::io::Result<fs::DirEntry>| {
        let path = file.unwrap().path();
        let record = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        (path, record)
    };
    files.map(read).collect()
}

/// Generates with a cache folder; returns the output's text, tokens and target passes.
fn with_cache(cache: &Path, args: &[&str]) -> [Value; 3] {
    let args = [&["--prompt", "pub fn ", "--json"], args].concat();
    let output = command(&args).env("XDG_CACHE_HOME", cache).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let mut json: Value = serde_json::from_slice(&output.stdout).unwrap();
    ["/text", "/tokens", "/stats/target_calls"].map(|field| json.pointer_mut(field).unwrap().take())
}

/// Every output without a seed is learned from, however short it is; one with a seed never.
#[test]
fn learns_costs_without_a_seed_only() {
    let cache = tempfile::tempdir().unwrap();
    with_cache(cache.path(), &["-n", "40", "--seed", "1"]);
    assert_eq!(stored_costs(cache.path()), []);
    for tokens in ["3", "9", "40"] {
        with_cache(cache.path(), &["-n", tokens]);
        let [(_, record)] = &stored_costs(cache.path())[..] else { panic!("one file") };
        let seconds = |output: &str| record["costs"][output][0]["seconds"].as_f64().unwrap();
        assert!(seconds("draft") < seconds("target"), "{record}");
        let timed = record["costs"]["learned"]["plain_steps"].as_u64().unwrap();
        assert_eq!(timed >= 4, tokens != "3", "{tokens}: {record}");
    }
}

/// With a seed neither drafts nor output depend on what earlier outputs taught; without one the
/// drafts do.
#[test]
fn seeded_outputs_do_not_depend_on_stored_costs() {
    let (empty, filled) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let seeded = |cache: &Path| with_cache(cache, &["-n", "60", "--seed", "7"]);
    let expected = seeded(empty.path());
    assert!(expected[2].as_u64().unwrap() < 50, "nothing was drafted: {expected:?}");
    with_cache(filled.path(), &["-n", "40"]);
    for (target, draft, all_plain) in [(1.0, 1e6, true), (1e-6, 1e-9, false)] {
        let [(path, record)] = &mut stored_costs(filled.path())[..] else { panic!("one file") };
        for (passes, factor) in [("target", target), ("draft", draft)] {
            for pass in record["costs"][passes].as_array_mut().unwrap().iter_mut().skip(1) {
                pass["seconds"] = factor.into();
            }
            // Whatever the length of the context.
            for pass in record["costs"][passes].as_array_mut().unwrap() {
                pass["longer"] = 0.0.into();
            }
            record["costs"][passes][0]["seconds"] = f64::min(factor, 1.0).into();
        }
        record["costs"]["first"] = draft.into();
        record["costs"]["rejected"] = 0.5.into();
        record["costs"]["learned"]["plain_steps"] = 400.into();
        fs::write(path, serde_json::to_vec(record).unwrap()).unwrap();
        assert_eq!(seeded(filled.path()), expected);
        let [_, _, passes] = with_cache(filled.path(), &["-n", "60", "--ignore-end"]);
        assert_eq!(passes == 60, all_plain, "{passes}");
    }
}

#[test]
fn json_has_documented_fields() {
    let args = ["--prompt", "impl ", "-n", "50", "--json", "--depth", "3", "--seed", "4"];
    let (out, err) = ok(&[&args[..], &["--logprobs", "2"]].concat());
    assert!(err.is_empty(), "{err}");
    let json: Value = serde_json::from_str(&out).unwrap();
    assert!(json["text"].is_string());
    assert_eq!(json["tokens"].as_array().unwrap().len(), 50);
    assert_eq!(json["finish_reason"], "max-tokens");
    assert_eq!(json["seed"], 4);
    let stats = &json["stats"];
    let calls = stats["target_calls"].as_f64().unwrap();
    assert!((stats["block_efficiency"].as_f64().unwrap() - 50.0 / calls).abs() < 1e-9);
    let accepted = stats["accepted_by_position"].as_array().unwrap();
    assert_eq!(accepted.len(), 3);
    assert!(accepted.iter().all(|a| (0.0..=1.0).contains(&a.as_f64().unwrap())));
    let time = |part: &str| stats["time_ms"][part].as_f64().unwrap();
    assert!(time("draft") + time("target") + time("verify") <= time("total"));
    assert!(stats["tokens_per_second"].as_f64().unwrap() > 0.0);
    for (score, token) in json["logprobs"].as_array().unwrap().iter().zip(0..50) {
        assert_eq!(score["token"], json["tokens"][token]);
        let most = score["top"][0]["logprob"].as_f64().unwrap();
        assert!(score["logprob"].as_f64().unwrap() <= most && score["top"][1].is_object());
    }
    // The output is the same without --json.
    let plain = ok(&["--prompt", "impl ", "-n", "50", "--depth", "3", "--seed", "4"]).0;
    assert_eq!(plain, format!("{}\n", json["text"].as_str().unwrap()));
}

#[test]
fn plain_decoding_needs_no_draft() {
    let target = demo().join("target");
    let args = [
        "--target",
        target.to_str().unwrap(),
        "--verifier",
        "none",
        "--prompt",
        "fn",
        "-n",
        "9",
        "--json",
    ];
    let json: Value = serde_json::from_str(&ok(&args).0).unwrap();
    // An equivalent option.
    let none = [&args[..2], &["--draft", "none"], &args[4..]].concat();
    let same: Value = serde_json::from_str(&ok(&none).0).unwrap();
    assert_eq!(same["stats"]["target_calls"], 9);
    fails(&[&none[..], &["--paths", "3"]].concat(), 2, &["--paths", "--draft none"]);
    assert_eq!(json["stats"]["target_calls"], 9);
    assert_eq!(json["stats"]["block_efficiency"], 1.0);
}

#[test]
fn reads_prompt_from_option_file_or_stdin() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompt.txt");
    fs::write(&file, "fn é").unwrap();
    let arguments = ["-n", "20", "--seed", "3", "-q", "--depth", "3"];
    let expected = ok(&[&["--prompt", "fn é"], &arguments[..]].concat()).0;
    let path = file.to_str().unwrap();
    assert_eq!(ok(&[&["--prompt-file", path], &arguments[..]].concat()).0, expected);
    for extra in [&[][..], &["--prompt-file", "-"]] {
        let mut piped = command(&[extra, &arguments[..]].concat());
        let output = piped.stdin(fs::File::open(&file).unwrap()).output().unwrap();
        assert_eq!(text(&output.stdout), expected);
    }
    let (echoed, _) = ok(&[&["--prompt", "fn é", "--echo"], &arguments[..]].concat());
    assert_eq!(echoed, format!("fn é{expected}"));
    // In any working directory.
    let elsewhere = command(&[&["--prompt", "fn é"], &arguments[..]].concat())
        .current_dir("/")
        .output()
        .unwrap();
    assert_eq!(text(&elsewhere.stdout), expected);

    fs::write(&file, [b'a', 0xff, b'b']).unwrap();
    fails(&["--prompt-file", path], 1, &["not UTF-8", "byte 1"]);
    fails(&["--prompt-file", "/no/such/file"], 1, &["/no/such/file", "No such file"]);
    fails(&["--prompt", "a", "--prompt-file", path], 2, &["cannot be used with"]);
    // Empty prompt: the tokenizer's first token is enough to start from.
    ok(&[&["--prompt", ""], &arguments[..]].concat());
}

#[test]
fn stop_string_ends_output() {
    let full =
        ok(&["--prompt", "/// Returns the", "-n", "120", "--depth", "3", "--seed", "5", "-q"]).0;
    let stop = &full[10..13];
    let args = [
        "--prompt",
        "/// Returns the",
        "-n",
        "120",
        "--depth",
        "3",
        "--seed",
        "5",
        "--stop",
        stop,
        "--json",
    ];
    let json: Value = serde_json::from_str(&ok(&args).0).unwrap();
    assert_eq!(json["finish_reason"], "stop-string");
    assert_eq!(json["text"].as_str().unwrap(), &full[..full.find(stop).unwrap()]);
}

#[test]
fn output_ends_at_context_limit() {
    let json: Value = serde_json::from_str(
        &ok(&["--prompt", "let x = 1;", "-n", "0", "--ignore-end", "--json", "--seed", "1"]).0,
    )
    .unwrap();
    assert_eq!(json["finish_reason"], "context");
    let count =
        json["tokens"].as_array().unwrap().len() + json["prompt_tokens"].as_u64().unwrap() as usize;
    assert_eq!(count, 512);
    fails(&["--prompt", &"word ".repeat(600)], 1, &["prompt has", "context holds 512"]);
}

#[test]
fn show_drafts_marks_origin_with_and_without_colour() {
    let args = ["--prompt", "impl ", "-n", "30", "--seed", "2", "--depth", "3", "--show-drafts"];
    let (marked, legend) = ok(&args);
    assert!(!marked.contains('\u{1b}') && !legend.contains('\u{1b}'));
    assert!(legend.contains("accepted draft · [correction] · {bonus}"), "{legend}");
    let (coloured, _) = ok(&[&args[..], &["--color", "always"]].concat());
    assert!(coloured.contains("\u{1b}["));
    let quiet =
        command(&[&args[..], &["--color", "auto"]].concat()).env("NO_COLOR", "1").output().unwrap();
    assert_eq!(text(&quiet.stdout), marked);
    let (plain, _) = ok(&args[..8]);
    let mut stripped = coloured;
    while let Some(start) = stripped.find('\u{1b}') {
        let end = start + stripped[start..].find('m').unwrap();
        stripped.replace_range(start..=end, "");
    }
    assert_eq!(stripped, plain);
}

#[test]
fn invalid_option_values_are_usage_errors() {
    let cases: &[(&[&str], &str)] = &[
        (&["--temperature", "-1"], "-1"),
        (&["--temperature", "NaN"], "temperature"),
        (&["--top-p", "0"], "top"),
        (&["--top-p", "1.5"], "1.5"),
        (&["--top-k", "0"], "top"),
        (&["--min-p", "-0.1"], "min"),
        (&["--draft-top-p", "2"], "2"),
        (&["--depth", "0"], "depth"),
        (&["--depth", "many"], "many"),
        (&["--verifier", "tokne"], "tokne"),
        (&["--dtype", "int3"], "f32, f16, bf16, q8_0, q8_0-f32, q4_0, q4_1, q5_1, q4_k"),
        (&["--no-such-option"], "--no-such-option"),
        (&["--max-tokens", "-5"], "-5"),
    ];
    for (args, expected) in cases {
        fails(&[&["--prompt", "x"], *args].concat(), 2, &[expected]);
    }
}

#[test]
fn errors_name_invalid_model() {
    let target = demo().join("target");
    let try_draft = |path: &Path, expected: &[&str]| {
        let args = [
            "--target",
            target.to_str().unwrap(),
            "--draft",
            path.to_str().unwrap(),
            "--prompt",
            "x",
        ];
        fails(&args, 1, expected);
    };
    try_draft(Path::new("/no/such/model"), &["draft", "/no/such/model"]);
    try_draft(tempfile::tempdir().unwrap().path(), &["config.json"]);
    try_draft(&target.join("config.json"), &["got another file"]);
    let spoilt = copy(|d| fs::remove_file(d.join("model.safetensors")).unwrap());
    try_draft(spoilt.path(), &["model.safetensors"]);
    let spoilt = copy(|d| {
        let file = fs::OpenOptions::new().write(true).open(d.join("model.safetensors")).unwrap();
        file.set_len(1000).unwrap();
    });
    try_draft(spoilt.path(), &["model.safetensors", "1000 bytes"]);
    // Another vocabulary, without a token in common.
    let spoilt = copy(|d| {
        let path = d.join("tokenizer.json");
        let mut json: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let renamed = (0..4096).map(|id| (format!("zq{id}"), id.into())).collect();
        json["model"]["vocab"] = Value::Object(renamed);
        json["added_tokens"] = Value::Array(Vec::new());
        json["model"]["merges"] = Value::Array(Vec::new());
        fs::write(&path, json.to_string()).unwrap();
    });
    try_draft(spoilt.path(), &["4096 tokens", "zq0", "only 0 % of the smaller vocabulary"]);
    // An invalid demo path is reported, not replaced.
    let output =
        command(&["--prompt", "x"]).env("POLYDRAFT_DEMO", "/no/such/demo").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("/no/such/demo/target"));
}

#[test]
fn closed_output_is_no_error() {
    for extra in [&[][..], &["--json"]] {
        let args = [&["--prompt", "fn main", "-n", "400", "--ignore-end", "-q"], extra].concat();
        let mut child = command(&args).spawn().unwrap();
        let mut reader = BufReader::new(child.stdout.take().unwrap());
        if extra.is_empty() {
            reader.read_until(b' ', &mut Vec::new()).unwrap();
        }
        drop(reader);
        let mut message = String::new();
        child.stderr.take().unwrap().read_to_string(&mut message).unwrap();
        assert!(child.wait().unwrap().success(), "{message}");
        assert!(message.is_empty(), "{message}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn memory_stays_below_limit() {
    let args = ["--prompt", "fn main", "-n", "0", "--ignore-end", "-q"];
    let mut child = command(&args).stdout(Stdio::null()).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    while child.try_wait().unwrap().is_none() {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kilobytes = line.and_then(|l| l.trim().strip_suffix(" kB")?.trim().parse().ok());
        peak = peak.max(kilobytes.unwrap_or(0));
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(peak > 20_000 && peak < 300_000, "{peak} kB resident");
}

#[test]
fn help_has_examples_and_defaults() {
    let (help, _) = ok(&["--help"]);
    for part in ["Examples:", "--prompt-file", "--verifier", "--draft-temperature", "[default: 1]"]
    {
        assert!(help.contains(part), "{part}");
    }
}

#[test]
fn last_occurrence_of_option_applies() {
    let json: Value = serde_json::from_str(
        &ok(&[
            "--prompt", "fn", "-n", "9", "--prompt", "impl ", "-n", "3", "--json", "--seed", "1",
            "--depth", "2",
        ])
        .0,
    )
    .unwrap();
    assert_eq!(json["tokens"].as_array().unwrap().len(), 3);
    let alone: Value = serde_json::from_str(
        &ok(&["--prompt", "impl ", "-n", "3", "--json", "--seed", "1", "--depth", "2"]).0,
    )
    .unwrap();
    assert_eq!(json["text"], alone["text"]);
}

#[test]
fn accepts_text_values_with_hyphen() {
    let (out, _) = ok(&["-p", "- item", "--stop", "---", "--echo", "-n", "4", "-q", "--seed", "1"]);
    assert!(out.starts_with("- item"), "{out}");
    // Stop strings accumulate.
    ok(&["-p", "--verbose", "--stop", "--", "--stop", "-", "-n", "4", "-q"]);
}

#[test]
fn notes_unused_options() {
    let (_, err) = ok(&["-p", "fn", "-n", "4", "--verifier", "none", "--draft", "/no/such/model"]);
    assert!(err.contains("--draft is not used"), "{err}");
    let (_, err) = ok(&["-p", "fn", "-n", "4", "--threads", "1024"]);
    assert!(err.contains("--threads 1024 is reduced to that"), "{err}");
}

#[test]
fn error_prints_no_output() {
    fails(&["--prompt", &"word ".repeat(600), "--echo"], 1, &["prompt has"]);
}
