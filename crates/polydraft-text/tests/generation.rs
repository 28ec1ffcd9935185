//! Published generation settings, and incomplete model directories.

use std::fs;
use std::path::Path;

use polydraft_text::{Language, Published};
use serde_json::{Value, json};

fn write_json(directory: &Path, name: &str, value: &Value) {
    fs::write(directory.join(name), value.to_string()).unwrap();
}

/// Creates a directory with a tokenizer of three words.
fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let tokenizer = json!({
        "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "</s>": 2}, "unk_token": "a"}
    });
    write_json(directory.path(), "tokenizer.json", &tokenizer);
    directory
}

#[test]
fn generation_config_overrides_end_tokens() {
    let directory = directory();
    let read = || Language::read(directory.path(), 3, &[1]).unwrap();
    assert_eq!(read().end_tokens, [1]);
    write_json(directory.path(), "generation_config.json", &json!({"eos_token_id": [0]}));
    assert_eq!(read().end_tokens, [0]);
    assert_eq!(read().answer_end_tokens(), [0]);
    let settings = json!({"eos_token": "</s>", "chat_template": "x"});
    write_json(directory.path(), "tokenizer_config.json", &settings);
    assert_eq!(read().answer_end_tokens(), [0, 2]);
    write_json(directory.path(), "generation_config.json", &json!({"eos_token_id": "two"}));
    let message = Published::read(directory.path()).unwrap_err().to_string();
    assert!(message.contains("generation_config.json: eos_token_id"), "{message}");
}

/// With `do_sample` what is left out is neutral; without it nothing is published.
#[test]
fn completes_partial_sampling_settings() {
    let directory = directory();
    let sampling = |settings: Value| {
        write_json(directory.path(), "generation_config.json", &settings);
        Published::read(directory.path()).unwrap().sampling
    };
    for (settings, temperature, top_k, top_p) in [
        (json!({"temperature": 0.5, "top_k": 5, "top_p": 0.5}), None, None, None),
        (json!({"do_sample": false, "top_p": 0.0}), None, None, None),
        (json!({"do_sample": true}), Some(1.0), None, None),
        (json!({"do_sample": true, "top_k": -1}), Some(1.0), None, None),
        (json!({"do_sample": true, "top_k": 20}), Some(1.0), Some(20), None),
        (json!({"do_sample": true, "temperature": 0.6}), Some(0.6), None, None),
        (json!({"do_sample": true, "top_p": 0.9}), Some(1.0), None, Some(0.9)),
        // Only the likeliest token remains.
        (json!({"do_sample": true, "top_p": 0.0}), Some(1.0), Some(1), None),
    ] {
        let found = sampling(settings.clone());
        assert_eq!((found.temperature, found.top_k, found.top_p), (temperature, top_k, top_p));
        assert!(found.unsupported.is_empty(), "{settings}: {found:?}");
    }
    for (name, value) in [("top_p", 1.5), ("min_p", -0.1), ("temperature", -1.0), ("top_h", 0.4)] {
        let found = sampling(json!({"do_sample": true, name: value}));
        assert_eq!(found.unsupported, [format!("{name} {value}")]);
        assert_eq!((found.temperature, found.top_p, found.min_p), (Some(1.0), None, None));
    }
}

#[test]
fn lists_unsupported_settings() {
    let directory = directory();
    let sampling = |settings: Value| {
        write_json(directory.path(), "generation_config.json", &settings);
        Published::read(directory.path()).unwrap().sampling
    };
    let neutral = json!({"do_sample": true, "typical_p": 1.0, "num_beams": 1, "bad_words_ids": [],
        "eta_cutoff": 0});
    assert!(sampling(neutral).unsupported.is_empty());
    let all = json!({
        "do_sample": true, "typical_p": 0.9, "epsilon_cutoff": 0.01, "eta_cutoff": 0.02,
            "num_beams": 4,
        "min_new_tokens": 3, "bad_words_ids": [[5]], "suppress_tokens": [1],
            "begin_suppress_tokens": [2],
        "sequence_bias": [[[1], 2.0]], "repetition_penalty": 1.1
    });
    assert_eq!(
        sampling(all).unsupported,
        [
            "typical_p 0.9",
            "epsilon_cutoff 0.01",
            "eta_cutoff 0.02",
            "repetition_penalty 1.1",
            "num_beams 4",
            "min_new_tokens 3",
            "bad_words_ids [[5]]",
            "suppress_tokens [1]",
            "begin_suppress_tokens [2]",
            "sequence_bias [[[1],2.0]]"
        ]
    );
}

/// Dangling links, as left by an interrupted download or a moved cache.
#[test]
#[cfg(unix)]
fn reports_dangling_links() {
    for file in [
        "generation_config.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "chat_template.jinja",
    ] {
        let directory = directory();
        let read = || Language::read(directory.path(), 3, &[1]);
        assert!(read().is_ok());
        let link = directory.path().join(file);
        std::os::unix::fs::symlink(directory.path().join("blobs/0123"), &link).unwrap();
        let message = read().unwrap_err().to_string();
        assert!(message.contains("cannot read") && message.contains(file), "{message}");
    }
    for file in ["tokenizer.json", "vocab.json"] {
        let directory = directory();
        fs::remove_file(directory.path().join("tokenizer.json")).unwrap();
        fs::write(directory.path().join("merges.txt"), "").unwrap();
        std::os::unix::fs::symlink(
            directory.path().join("blobs/0123"),
            directory.path().join(file),
        )
        .unwrap();
        let message = Language::read(directory.path(), 3, &[1]).unwrap_err().to_string();
        assert!(message.contains(file), "{message}");
    }
}

#[test]
fn encode_chat_fails_without_template() {
    let language = Language::read(directory().path(), 3, &[]).unwrap();
    let message = language.encode_chat(&[]).unwrap_err().to_string();
    assert!(message.contains(&language.name) && message.contains("chat template"), "{message}");
}
