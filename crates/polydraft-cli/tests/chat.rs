//! End-to-end tests of `polydraft chat`, `generate --chat` and `inspect`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::common::fed;
use serde_json::{Value, json};

/// Copies a model fixture, and adds a chat template.
fn model(name: &str) -> tempfile::TempDir {
    let source =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../polydraft-models/tests/fixtures").join(name);
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "tokenizer.json", "model.safetensors"] {
        fs::copy(source.join(file), folder.path().join(file)).unwrap();
    }
    let template = "{{ bos_token }}{% for m in messages %}{% if m.content == 'no' %}\
                    {{ raise_exception('Never no') }}{% endif %}{{ m.role[0] + ':' + m.content + \
                    '#' }}{% endfor %}\
                    {{ 'a:' }}";
    let settings = json!({"bos_token": "<s>", "eos_token": "</s>", "chat_template": template});
    fs::write(folder.path().join("tokenizer_config.json"), settings.to_string()).unwrap();
    folder
}

fn path(folder: &tempfile::TempDir) -> &str {
    folder.path().to_str().unwrap()
}

fn run(arguments: &[&str], input: &str) -> (Output, String, String) {
    let output = fed(arguments, input.as_bytes());
    let [out, err] =
        [&output.stdout, &output.stderr].map(|b| String::from_utf8(b.clone()).unwrap());
    assert!(!err.contains("panicked"), "{err}");
    (output, out, err)
}

#[test]
fn chat_answers_equal_generate_with_rendered_prompt() {
    let (target, draft) = (model("qwen3"), model("qwen2"));
    let pair = ["--target", path(&target), "--draft", path(&draft)];
    let options = ["-n", "6", "--temperature", "0"];
    let chat = [&["chat"], &pair[..], &options[..], &["--system", "go"]].concat();
    let (output, out, err) = run(&chat, "hi\n\nand\n");
    assert!(output.status.success(), "{err}");
    let generate = |prompt: &str| {
        let (output, out, err) = run(
            &[
                &["generate"],
                &pair[..],
                &options[..],
                &["-q", "--verifier", "none", "--prompt", prompt],
            ]
            .concat(),
            "",
        );
        assert!(output.status.success(), "{err}");
        out.strip_suffix('\n').unwrap().to_owned()
    };
    // The special token is given as text, which the tokenizer recognises.
    let first = generate("<s>s:go#u:hi#a:");
    let second = generate(&format!("<s>s:go#u:hi#a:{first}#u:and#a:"));
    assert_eq!(out, format!("{first}\n{second}\n"));
    assert_eq!(err.matches(" tokens/s").count(), 2, "{err}");
    // A single message by `generate --chat`.
    let once = [
        &["generate"],
        &pair[..],
        &options[..],
        &["--chat", "--system", "go", "--prompt", "hi", "-q"],
    ]
    .concat();
    assert_eq!(run(&once, "").1, format!("{first}\n"));
}

#[test]
fn rejected_messages_and_commands_keep_conversation_usable() {
    let target = model("qwen3");
    let chat =
        ["chat", "--target", path(&target), "--verifier", "none", "-n", "4", "-t", "0", "-q"];
    let long = "x".repeat(80);
    let (output, out, err) =
        run(&chat, &format!("hi\nno\n/halp\n{long}\n/help\n/reset\nhi\n/exit\nhi\n"));
    // Without a terminal the exit code reports rejected messages.
    assert_eq!(output.status.code(), Some(1), "{err}");
    let answers: Vec<&str> = out.split_terminator('\n').collect();
    assert!(answers.len() == 2 && answers[0] == answers[1], "{out:?}");
    for part in
        ["Never no", "/halp is not a command", "context holds 64", "/reset new conversation"]
    {
        assert!(err.contains(part), "{part}: {err}");
    }
    let (output, _, err) = run(&chat[..5], "");
    assert!(output.status.success(), "{err}");
}

#[test]
fn chat_fails_without_template() {
    let target = model("qwen3");
    fs::remove_file(target.path().join("tokenizer_config.json")).unwrap();
    let plain = ["--target", path(&target), "--verifier", "none"];
    for command in [&["chat"][..], &["generate", "--chat", "--prompt", "hi"]] {
        let (output, out, err) = run(&[command, &plain].concat(), "hi\n");
        assert_eq!(output.status.code(), Some(1));
        assert!(
            out.is_empty() && err.contains("chat template") && err.contains("not trained"),
            "{err}"
        );
    }
    let (output, _, err) = run(&["generate", "--prompt", "hi", "--system", "go"], "");
    assert_eq!(output.status.code(), Some(2), "{err}");
}

#[test]
fn published_sampling_applies_to_conversations_only() {
    let target = model("qwen3");
    let published =
        json!({"do_sample": true, "temperature": 0.01, "top_k": 1, "repetition_penalty": 1.1});
    fs::write(target.path().join("generation_config.json"), published.to_string()).unwrap();
    let text = |options: &[&str]| {
        let base = [
            "generate",
            "--target",
            path(&target),
            "--verifier",
            "none",
            "-n",
            "20",
            "--ignore-end",
        ];
        let (output, out, err) = run(&[&base, options].concat(), "");
        assert!(output.status.success(), "{err}");
        (out, err)
    };
    let [greedy, warm, ignoring] =
        [&["-t", "0"][..], &[], &["--ignore-published"]].map(|options| {
            let chat = ["--chat", "--prompt", "hi", "--seed", "3"];
            text(&[&chat, options].concat())
        });
    assert_eq!(greedy.0, warm.0);
    assert_ne!(ignoring.0, warm.0);
    assert!(warm.1.contains("repetition_penalty 1.1"), "{}", warm.1);
    let plain = |seed: &str| text(&["--prompt", "hi", "--seed", seed]).0;
    assert_ne!(plain("1"), plain("2"));
}

#[test]
fn inspect_reports_experts_and_special_layers() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../polydraft-models/tests/fixtures");
    for (name, expected) in [
        (
            "qwen2-moe",
            &["4 in each of 1 layers, 2 of them for a token, and a shared", " active"][..],
        ),
        ("deepseek-v3", &["6 in each of 1 layers"]),
        ("../heads/mtp-glm", &["MTP", "a multi-token prediction layer: --draft mtp"]),
        ("gemma3-nested", &["Gemma3ForConditionalGeneration, its text part"]),
        ("gemma4", &["(2 key-value heads, 1 in layers", "the last 2 layers use the KV", " active"]),
        ("gemma4-nested", &["Gemma4ForConditionalGeneration, its text", "the last layer uses"]),
        ("gemma4-moe/model.gguf", &["gemma4", "4 in each of 2 layers, 2 of them for a token\n"]),
        ("gpt-oss/model.gguf", &["gpt-oss", "4 in each of 2 layers, 2 of them for a token\n"]),
    ] {
        let path = folder.join(name);
        let (output, out, err) = run(&["inspect", path.to_str().unwrap()], "");
        assert!(output.status.success(), "{err}");
        for part in expected {
            assert!(out.contains(part), "{name}: {out}");
        }
    }
    let path = folder.join("mixtral");
    let (_, out, _) = run(&["inspect", path.to_str().unwrap(), "--json"], "");
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        report["experts"],
        serde_json::json!({"count": 4, "used": 2, "shared": false, "layers": 2})
    );
    let [all, active] = ["parameters", "active_parameters"].map(|n| report[n].as_u64().unwrap());
    assert_eq!(all - active, 2 * 4 * 3 * 32 * 32 / 2);
}

#[test]
fn inspect_reports_properties_and_draft_compatibility() {
    let (target, draft) = (model("gemma2"), model("qwen2"));
    let (output, out, err) = run(&["inspect", path(&target), path(&draft)], "");
    assert!(output.status.success(), "{err}");
    for part in [
        "Gemma2ForCausalLM",
        "64 tokens",
        "window of 5",
        "tokenizer_config.json",
        "per 1,000 tokens",
        "it can draft",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    let (_, out, _) = run(&["inspect", path(&draft), "--json"], "");
    let json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&json["embedding_rows"], &json["tokens"]), (&json!(80), &json!(62)));
    assert_eq!(json["weights"].as_array().unwrap().len(), 10);
    assert_eq!(json["weights"][0]["dtype"], "f32");
    let demo: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo/draft");
    let (output, out, _) = run(&["inspect", path(&target), demo.to_str().unwrap()], "");
    assert!(output.status.success() && out.contains("% of tokens in both"), "{out}");
    for (arguments, code, part) in [
        (&["inspect"][..], 2, "MODEL"),
        (&["inspect", "/no/such"], 1, "nothing there"),
        (&["inspect", "/no/such", "--jsn"], 2, "--json"),
    ] {
        let (output, _, err) = run(arguments, "");
        assert_eq!(output.status.code(), Some(code), "{err}");
        assert!(err.contains(part), "{err}");
    }
}

#[test]
fn generates_with_every_dtype() {
    let target = model("llama");
    let base = [
        "generate",
        "--target",
        path(&target),
        "--verifier",
        "none",
        "--prompt",
        "hi",
        "-n",
        "5",
        "-t",
        "0",
        "-q",
    ];
    let [wide, narrow] =
        ["f32", "bf16"].map(|dtype| run(&[&base[..], &["--dtype", dtype]].concat(), "").1);
    // The fixture is stored in bf16, so both are exact.
    assert_eq!(wide, narrow);
    for dtype in ["f16", "q8_0", "q4_k"] {
        assert!(run(&[&base[..], &["--dtype", dtype]].concat(), "").0.status.success(), "{dtype}");
    }
}

#[test]
fn chat_works_with_demo_pair() {
    let (output, out, err) =
        run(&["chat", "-n", "8", "-t", "0"], "Returns the length\nAnd the name\n");
    assert!(output.status.success(), "{err}");
    assert!(err.contains("--seed ") && err.matches(" tokens/s").count() == 2, "{err}");
    let once = ["generate", "--prompt", "/// Returns the length\n", "-n", "8", "-t", "0", "-q"];
    assert!(out.starts_with(&run(&once, "").1), "{out}");
}

#[test]
fn chat_rejects_invalid_utf8_and_continues() {
    let target = model("qwen3");
    let chat =
        ["chat", "--target", path(&target), "--verifier", "none", "-n", "4", "-t", "0", "-q"];
    let output = fed(&chat, b"hi\n\xff\xfe\nhi\0\n/reset\nhi\n");
    let [out, err] =
        [&output.stdout, &output.stderr].map(|b| String::from_utf8(b.clone()).unwrap());
    let answers: Vec<&str> = out.split_terminator('\n').collect();
    assert!(answers.len() == 2 && answers[0] == answers[1], "{out:?} {err}");
    assert!(err.contains("UTF-8") && err.contains("zero byte"), "{err}");
    assert_eq!(output.status.code(), Some(1));
}
