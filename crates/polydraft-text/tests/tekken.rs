//! `tekken.json` compared with mistral-common.

use std::fs;
use std::path::{Path, PathBuf};

use polydraft::Token;
use polydraft_text::Tokenizer;
use serde_json::{Value, json};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tekken")
}

fn json_of(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Compares with expected.json; returns the number of texts.
fn agrees(folder: &Path) -> usize {
    let expected = json_of(&folder.join("expected.json"));
    let tokenizer = Tokenizer::read(folder).unwrap();
    assert_eq!(json!(tokenizer.size()), expected["size"]);
    for (id, name) in (0..).zip(expected["special"].as_array().unwrap()) {
        assert_eq!(tokenizer.token(name.as_str().unwrap()), Some(id), "{name}");
        assert!(tokenizer.is_special(id), "{name}");
    }
    let cases = expected["texts"].as_array().unwrap();
    for case in cases {
        let text = case["text"].as_str().unwrap();
        let ids: Vec<Token> = serde_json::from_value(case["ids"].clone()).unwrap();
        assert_eq!(tokenizer.encode(text).unwrap(), ids, "{text:?}");
        assert_eq!(tokenizer.encode_plain(text).unwrap(), ids[1..], "{text:?}");
        assert_eq!(tokenizer.decode(&ids).unwrap(), text);
    }
    cases.len()
}

#[test]
fn tokens_agree_with_mistral_common() {
    assert_eq!(agrees(&folder()), 40);
}

/// Compares a published file, with texts that make_tekken.py wrote next to it.
#[test]
fn tokens_of_published_file_agree_with_mistral_common() {
    if let Some(folder) = std::env::var_os("POLYDRAFT_TEKKEN") {
        assert!(agrees(Path::new(&folder)) > 2000);
    }
}

/// Writes a modified fixture into a directory of its own.
fn changed(change: impl FnOnce(&mut Value)) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let mut file = json_of(&folder().join("tekken.json"));
    change(&mut file);
    fs::write(directory.path().join("tekken.json"), file.to_string()).unwrap();
    directory
}

#[test]
fn recognises_special_tokens_in_text() {
    let tokenizer = Tokenizer::read(&folder()).unwrap();
    let ids = tokenizer.encode_plain("[INST]a[/INST]</s>").unwrap();
    assert_eq!(ids, [3, u32::from(b'a') + 24, 4, 2]);
    assert_eq!(tokenizer.decode(&ids).unwrap(), "a");
}

#[test]
fn older_files_have_default_special_tokens() {
    let old = changed(|file| drop(file.as_object_mut().unwrap().remove("special_tokens")));
    let tokenizer = Tokenizer::read(old.path()).unwrap();
    let id = |name| tokenizer.token(name);
    assert_eq!([id("<s>"), id("[IMG_BREAK]")], [Some(1), Some(12)]);
    assert_eq!([id("[TOOL_CONTENT]"), id("<SPECIAL_20>")], [Some(19), Some(20)]);
    assert_eq!(id("[THINK]"), None);
}

#[test]
fn tokenizer_json_takes_precedence_and_settings_apply() {
    let directory = changed(|_| {});
    let write = |name: &str, value: Value| {
        fs::write(directory.path().join(name), value.to_string()).unwrap();
    };
    let encoded = || Tokenizer::read(directory.path()).unwrap().encode("a").unwrap();
    assert_eq!(encoded(), [1, 121]);
    write("tokenizer_config.json", json!({"add_bos_token": false}));
    assert_eq!(encoded(), [121]);
    let model = json!({"type": "WordLevel", "vocab": {"a": 7}, "unk_token": "a"});
    write("tokenizer.json", json!({"model": model, "added_tokens": []}));
    assert_eq!(encoded(), [7]);
}

#[test]
fn errors_name_the_invalid_field() {
    let refused = |change: fn(&mut Value), expected: &str| {
        let message = Tokenizer::read(changed(change).path()).unwrap_err().to_string();
        for part in ["tekken.json", expected] {
            assert!(message.contains(part), "expected {part:?} in: {message}");
        }
    };
    refused(|file| file["config"] = json!({}), "pattern");
    refused(|file| file["config"]["pattern"] = json!("("), "config: pattern");
    refused(|file| file["config"]["default_vocab_size"] = json!(1_u64 << 40), "default_vocab_size");
    refused(|file| file["config"]["default_vocab_size"] = json!(30), "between 280 and");
    refused(
        |file| file["config"]["default_num_special_tokens"] = json!(1_u64 << 40),
        "default_num_special_tokens",
    );
    refused(
        |file| file["config"]["default_num_special_tokens"] = json!(4),
        "expected ranks below 4, got 4 (\"[/INST]\")",
    );
    refused(|file| file["special_tokens"][3]["rank"] = json!(2), "got 2 again");
    refused(|file| file["special_tokens"][3]["token_str"] = json!("</s>"), "\"</s>\" as 2 and 3");
    refused(|file| file["vocab"][300]["rank"] = json!(299), "expected rank 300, got 299");
    refused(|file| file["vocab"][300]["token_bytes"] = json!("a"), "rank 300: expected 1 to");
    refused(|file| file["vocab"][300]["token_bytes"] = json!(""), "rank 300: expected 1 to");
    refused(|file| file["vocab"][65]["token_bytes"] = json!("AA=="), "expected byte 65");
    refused(|file| file["vocab"][300] = file["vocab"][301].clone(), "expected rank 300");
    refused(
        |file| file["vocab"][300]["token_bytes"] = file["vocab"][301]["token_bytes"].clone(),
        "every token once",
    );
    refused(
        |file| file["vocab"][300]["token_bytes"] = json!("AAAA".repeat(400)),
        "1 to 1024 bytes",
    );
    refused(|file| *file = json!([]), "Mistral's format");
}
