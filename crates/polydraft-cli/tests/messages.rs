//! Error messages: they name the option and a remedy, without Rust terms.

use crate::common;

fn run(args: &[&str]) -> (Option<i32>, String, String) {
    let output = common::run(args);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn fails(args: &[&str], code: i32, expected: &[&str]) -> String {
    let (got, _, message) = run(args);
    assert_eq!(got, Some(code), "{args:?}: {message}");
    for part in expected {
        assert!(message.contains(part), "{args:?}: expected {part:?} in: {message}");
    }
    for rust in ["usize", "struct ", "enum ", "untagged", "panicked"] {
        assert!(!message.contains(rust), "{args:?}: {rust:?} in: {message}");
    }
    message
}

#[test]
fn unsuitable_verifier_error_lists_suitable_ones() {
    let base = ["generate", "-p", "x", "-n", "2"];
    let fails = |args: &[&str], expected: &[&str]| fails(&[&base, args].concat(), 2, expected);
    fails(
        &["--verifier", "walk:hub"],
        &["trees for walk:hub", "--tree 2,2/greedy", "--tree 2,2/hub"],
    );
    fails(
        &["--verifier", "block", "--tree", "binary"],
        &["verifiers for this tree", "traversal", "--tree paths:1,3"],
    );
    fails(
        &["--verifier", "block", "-k", "2"],
        &["verifiers for this tree", "nested-priority", "--tree paths:1,3"],
    );
    let top_k = ["--tree", "3,2,1/top-k", "--verifier", "nested-priority"];
    fails(&top_k, &["verifiers for this tree: pooled"]);
    // Without a name the best verifier for the tree is taken.
    let (code, _, message) = run(&[&base[..], &top_k[..2]].concat());
    assert_eq!(code, Some(0), "{message}");
    assert!(message.contains("using --verifier pooled"), "{message}");
    fails(&["--tree", "sequoia:0"], &["sequoia:N", "from 1 to 4096"]);
    fails(
        &["--verifier", "none", "--draft-temperature", "2"],
        &["--draft-temperature has no meaning"],
    );
}

#[test]
fn template_variables_require_json_object_and_chat() {
    let line = |json| ["generate", "-p", "x", "-n", "2", "--chat-template-kwargs", json];
    fails(&line("{}"), 2, &["--chat-template-kwargs has no meaning without --chat"]);
    for invalid in ["[1]", "{enable_thinking: false}", "no"] {
        fails(&line(invalid), 2, &["expected a JSON object, such as {\"enable_thinking\": false}"]);
    }
    let shown = ["--chat", "--show-prompt"];
    let (code, _, message) = run(&[&line("{\"enable_thinking\": false}")[..], &shown].concat());
    assert_eq!(code, Some(0), "{message}");
}

#[test]
fn chat_template_option_replaces_models_template() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("template.jinja");
    let name = file.to_str().unwrap();
    let alone = ["generate", "-p", "x", "-n", "2", "--chat-template", name];
    let line = [&alone[..], &["--chat", "--show-prompt"]].concat();
    fails(&line, 1, &["cannot read the chat template"]);
    std::fs::write(&file, "{% for m in messages %}").unwrap();
    fails(&line, 1, &["template.jinja"]);
    std::fs::write(&file, "hello").unwrap();
    fails(&alone, 2, &["--chat-template has no meaning without --chat"]);
    std::fs::write(&file, "{{ greeting }}, {{ messages[0].content }}{{ eos_token }}").unwrap();
    let (code, _, message) =
        run(&[&line[..], &["--chat-template-kwargs", "{\"greeting\": \"Hello\"}"]].concat());
    assert_eq!(code, Some(0), "{message}");
    assert!(message.contains("Hello, x<"), "{message}");
}

/// The command line overrides the file; contradicting options are an error, wherever they are from.
#[test]
fn command_line_overrides_config_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.toml");
    let line = |args: &[&'static str]| {
        [&["generate", "-p", "x", "-n", "2", "--config", file.to_str().unwrap()], args].concat()
    };
    for (text, args) in [
        ("depth = 4", &["--depth", "2"][..]),
        ("verifier = 'none'", &["--verifier", "block", "--depth", "2"]),
        ("[generate]\ntree = 'binary'\nverifier = 'traversal'", &["--tree", "3,2"]),
        (
            "[generate]\ndraft = 'ngram'",
            &["--draft", concat!(env!("CARGO_MANIFEST_DIR"), "/../../demo/draft")],
        ),
    ] {
        std::fs::write(&file, text).unwrap();
        let (code, _, message) = run(&line(args));
        assert_eq!(code, Some(0), "{text}, {args:?}: {message}");
    }
    for (text, args, expected) in [
        ("depth = 4", &["--verifier", "none"][..], "--depth has no meaning with --verifier none"),
        ("verifier = 'none'", &["--paths", "2"], "--paths has no meaning with --verifier none"),
        ("depth = 4", &["--tree", "auto"], "--tree auto chooses paths and depth"),
        ("paths = 2", &["--verifier", "block"], "a single path"),
        ("draft-vocabulary = '100'", &["--draft", "ngram"], "n-grams have none"),
    ] {
        std::fs::write(&file, text).unwrap();
        let message = fails(&line(args), 2, &[expected, "config.toml"]);
        assert!(message.contains("--no-config"), "{message}");
    }
}

#[test]
fn negative_numbers_are_parsed_as_values() {
    for option in ["--depth", "--seed", "--threads", "--paths", "--logprobs"] {
        let message = fails(&["generate", "-p", "x", option, "-1"], 2, &["-1"]);
        assert!(!message.contains("unexpected argument"), "{option}: {message}");
    }
}

#[test]
fn missing_prompt_is_named_before_loading() {
    // The model does not exist, and is not looked for.
    let message = fails(&["generate", "/nowhere.gguf"], 2, &["no prompt: give --prompt TEXT"]);
    assert!(!message.contains("nowhere"), "{message}");
}

#[test]
fn minus_one_is_no_token_limit() {
    let unlimited = ["generate", "-p", "fn", "--seed", "1", "--json", "--max-tokens"];
    let generate = |limit| run(&[&unlimited[..], &[limit]].concat()).1;
    let tokens =
        |json: String| serde_json::from_str::<serde_json::Value>(&json).unwrap()["tokens"].clone();
    assert_eq!(tokens(generate("-1")), tokens(generate("0")));
    fails(&["serve", "--max-tokens", "-2"], 2, &["--max-tokens", "-1 for no limit"]);
    let top_k = |k: &str| run(&[&unlimited[..], &["4", "--top-k", k]].concat()).1;
    assert_eq!(tokens(top_k("-1")), tokens(top_k("1000000")));
}

/// Clap's suggestion, by likeness of names, would contradict it.
#[test]
fn advice_for_another_programs_option_is_the_only_one() {
    for (option, expected) in [("-c", "--context N"), ("--ctx-size", "--context N")] {
        let message = fails(&["serve", "x", option, "4096"], 2, &["instead of", expected]);
        assert!(!message.contains("tip:"), "{message}");
    }
}

#[test]
fn invalid_value_errors_name_expectation() {
    let (not_integer, too_large) = ("invalid digit", "number too large");
    for (option, value, expected) in [
        ("--seed", "1e3", "expected an integer from 0 to 2^64 - 1"),
        ("--seed", "-1", "expected an integer from 0"),
        ("--seed", "18446744073709551616", "expected an integer from 0"),
        ("--paths", "99999999999999999999999", too_large),
        ("--top-k", "-2", not_integer),
        ("--draft-layers", "a", not_integer),
        ("--temperature", "abc", "invalid float literal"),
        ("--stop", "", "a value is required"),
    ] {
        fails(&["generate", "-p", "x", option, value], 2, &[option, value, expected]);
    }
    if cfg!(feature = "server") {
        fails(&["serve", "--host", "no such host"], 2, &["--host", "such as 127.0.0.1"]);
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.toml");
    std::fs::write(&file, "max-tokens = 3.5").unwrap();
    let line = ["generate", "-p", "x", "--config", file.to_str().unwrap()];
    fails(&line, 2, &["line 1", "--max-tokens", "expected a number of tokens"]);
}

#[test]
fn inspect_compares_draft_with_target() {
    let demo = |name: &str| format!("{}/../../demo/{name}", env!("CARGO_MANIFEST_DIR"));
    let (target, draft, head) = (demo("target"), demo("draft"), demo("smollm2-head"));
    for (model, other, expected) in [
        (&target, draft.as_str(), "10.4 times fewer"),
        (&draft, &target, "no fewer: it will not be faster"),
        (&target, "ngram", "needs no model"),
    ] {
        let (code, out, message) = run(&["inspect", model, other]);
        assert!(code == Some(0) && out.contains(expected), "{other}: {out}{message}");
    }
    fails(&["inspect", &head], 2, &["is a draft head", "polydraft inspect TARGET"]);
}

#[test]
fn notes_name_only_options_of_the_command() {
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../../demo/README.md");
    let (_, _, message) = run(&["score", demo, "--draft", "ngram"]);
    assert!(
        message.contains("--draft is not used") && !message.contains("--verifier"),
        "{message}"
    );
}

/// Numbers are printed with no more digits than were given.
#[test]
fn errors_print_numbers_in_short_form() {
    for (option, value) in [
        ("--temperature", "1e300"),
        ("--temperature", "1e-300"),
        ("--draft-temperature", "1e300"),
        ("--top-p", "1e300"),
        ("--min-p", "1e300"),
        ("--stop-below", "1e300"),
        ("--tree", "budget:2,1e300"),
    ] {
        let (_, number) = value.rsplit_once(',').unwrap_or(("", value));
        fails(&["generate", "-p", "x", option, value], 2, &[&format!("got {number}\n")]);
    }
    let message = fails(
        &["generate", "-p", "x", "--tree", "binary", "--depth", "200"],
        2,
        &["got 3.2e60 in 200 levels"],
    );
    assert!(message.len() < 200, "{message}");
}

#[test]
fn unknown_draft_error_lists_alternatives() {
    for name in ["slef", "ngrams"] {
        fails(
            &["generate", "-p", "x", "--draft", name],
            1,
            &[name, "self:TYPE", "ngram", "or none"],
        );
    }
    fails(&["generate", "-p", "x", "--tree", "auto", "--depth", "3"], 2, &["--tree auto:3"]);
    fails(&["generate", "-p", "x", "--tree", "sequoia:99999999"], 2, &["from 1 to 4096"]);
    fails(
        &["generate", "-p", "x", "--verifier", "block", "--tree", "sequoia:8"],
        2,
        &["verifiers for this tree"],
    );
}

#[test]
fn rejects_llama_cpp_options_without_backend() {
    for option in [
        ["--rpc", "10.0.0.2:50052"],
        ["--context", "100"],
        ["--cache-tokens", "1000"],
        ["--flash-attention", "off"],
        ["--gpu-layers", "0"],
        ["--main-gpu", "0"],
        ["--split", "layer"],
        ["--batch-threads", "1"],
    ] {
        fails(&[&["generate", "-p", "x"], &option[..]].concat(), 2, &[option[0], "llama"]);
    }
}

#[test]
fn errors_name_invalid_file_and_field() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.json");
    let path = file.to_str().unwrap();
    let write = |text: &str| std::fs::write(&file, text).unwrap();
    let acceptance = ["generate", "-p", "x", "--tree", "sequoia:4", "--acceptance", path];
    write(r#"{"acceptance": [0.9, 0.9]}"#);
    fails(&acceptance, 1, &["at most 1 together", "got 1.8"]);
    write(r#"{"acceptance": "x"}"#);
    fails(&acceptance, 1, &[path, "expected a sequence"]);
    write("7");
    fails(&acceptance, 1, &["expected an object"]);
    // The cause is reported once.
    let message = fails(
        &["generate", "-p", "x", "--draft", "ngram", "--corpus", "/no/such"],
        1,
        &["No such file"],
    );
    assert_eq!(message.matches("No such file").count(), 1, "{message}");
}

#[test]
fn inspect_rejects_inconsistent_models() {
    let folder = tempfile::tempdir().unwrap();
    let demo = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo/draft");
    for entry in std::fs::read_dir(demo).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    let config = folder.path().join("config.json");
    let consistent = std::fs::read_to_string(&config).unwrap();
    let model = folder.path().to_str().unwrap();
    assert_eq!(run(&["inspect", model]).0, Some(0));
    let mut inconsistent: serde_json::Value = serde_json::from_str(&consistent).unwrap();
    let layers = inconsistent["num_hidden_layers"].as_u64().unwrap();
    inconsistent["num_hidden_layers"] = (layers + 3).into();
    std::fs::write(&config, inconsistent.to_string()).unwrap();
    fails(
        &["inspect", model],
        1,
        &["config.json", &format!("num_hidden_layers: expected {layers}")],
    );
    std::fs::write(&config, &consistent).unwrap();
    std::fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    std::fs::write(folder.path().join("model.safetensors.index.json"), r#"{"weight_map": {}}"#)
        .unwrap();
    let none = format!("expected the tensors of {layers} layers, got none");
    fails(&["inspect", model], 1, &[&none]);
    std::fs::write(&config, consistent.replace("\"eos_token_id\": 0", "\"eos_token_id\": \"x\""))
        .unwrap();
    fails(&["inspect", model], 1, &["eos_token_id", "a token id or a list of token ids"]);
}

#[test]
fn certify_skips_distribution_at_temperature_0() {
    let args = [
        "certify",
        "--temperature",
        "0",
        "--max-prompts",
        "1",
        "--runs",
        "3",
        "--greedy-tokens",
        "4",
    ];
    let (code, out, err) = run(&args);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("not tested") && out.contains("pass:"), "{out}");
}

#[test]
fn help_groups_options_by_heading() {
    let (_, help, _) = run(&["certify", "--help"]);
    let (general, sampling) = help.split_once("Sampling:").unwrap();
    assert!(
        general.contains("--json") && general.contains("--runs") && !sampling.contains("--json"),
        "{help}"
    );
    let (_, version, _) = run(&["--version"]);
    assert!(version.starts_with("polydraft "));
}

/// An audit that fails has another exit code than a fault of the server.
#[test]
fn failed_audits_exit_with_2_and_a_reason() {
    fails(&["audit"], 2, &["<URL>"]);
    fails(&["audit", "x", "--error-rate", "2"], 2, &["expected a number between 0 and 1"]);
    fails(&["audit", "x", "--reference", "y", "--target", "z"], 2, &["cannot be used with"]);
    let nobody = ["audit", "http://127.0.0.1:9", "--model", "x"];
    fails(&nobody, 2, &["http://127.0.0.1:9/", "is the server running"]);
    fails(
        &[&nobody[..], &["--check", "gredy"]].concat(),
        2,
        &["unknown check \"gredy\"", "greedy, "],
    );
    fails(&["audit", "x", "--save", "/nowhere/at/all"], 2, &["/nowhere/at/all"]);
    fails(&["audit", "x", "--target", "/nowhere"], 2, &["cannot be served"]);
    let (code, list, _) = run(&["audit", "--list"]);
    assert!(code == Some(0) && list.contains("temperature-1 "), "{list}");
}
