//! Compares tokenizers with llama.cpp (`fixtures/make.py`).

#![cfg(feature = "tokenizers")]

use crate::support;

use std::path::{Path, PathBuf};

use crate::support::Writer;
use polydraft_gguf::{Gguf, TokenizerDescription, TokenizerKind};
use serde_json::Value;
use tokenizers::Tokenizer;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn ids(tokenizer: &Tokenizer, text: &str, add_special: bool) -> Vec<u32> {
    tokenizer.encode_fast(text, add_special).unwrap().get_ids().to_vec()
}

/// Compares the tokens of all strings of a fixture, for each variant of the description.
fn compare(gguf: &Gguf, json: &str, apply: impl Fn(&mut TokenizerDescription, &Value)) {
    let fixture: Value = serde_json::from_slice(&std::fs::read(fixture(json)).unwrap()).unwrap();
    let strings: Vec<&str> =
        fixture["texts"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
    assert!(strings.len() > 40);
    for variant in fixture["variants"].as_array().unwrap() {
        let changes = &variant["changes"];
        let mut description = TokenizerDescription::read(gguf.metadata()).unwrap();
        apply(&mut description, changes);
        let special = description.tokenizer().unwrap();
        let mut plain = special.clone();
        plain.set_encode_special_tokens(true);
        for (number, text) in strings.iter().enumerate() {
            let list = |lists: &Value| {
                lists[number]
                    .as_array()
                    .map(|ids| ids.iter().map(|id| id.as_u64().unwrap() as u32).collect())
            };
            let expected: Vec<u32> = list(&variant["whole"]).unwrap();
            assert_eq!(ids(&special, text, true), expected, "{changes} {text:?}");
            // The fixture omits lists that are equal.
            let expected = list(&variant["plain"]).unwrap_or_else(|| ids(&special, text, false));
            assert_eq!(ids(&plain, text, false), expected, "{changes}, plain, {text:?}");
        }
    }
}

/// Changes the pre-tokenizer of a description.
fn with_pre(description: &mut TokenizerDescription, changes: &Value) {
    let name = changes["tokenizer.ggml.pre"].as_str().unwrap();
    let writer =
        Writer::default().str("tokenizer.ggml.model", "gpt2").str("tokenizer.ggml.pre", name);
    let writer =
        writer.strings("tokenizer.ggml.tokens", &["a"]).strings("tokenizer.ggml.merges", &[]);
    let other = Gguf::from_bytes("other", writer.finish()).unwrap();
    description.kind = TokenizerDescription::read(other.metadata()).unwrap().kind;
}

#[test]
fn byte_level_matches_llama_cpp_for_every_pre_tokenizer() {
    let gguf = Gguf::open(&fixture("byte_level.gguf")).unwrap();
    compare(&gguf, "byte_level.json", with_pre);
}

#[test]
fn sentence_piece_matches_llama_cpp() {
    let gguf = Gguf::open(&fixture("sentence_piece.gguf")).unwrap();
    compare(&gguf, "sentence_piece.json", |description, changes| {
        if let Some(prefix) = changes["tokenizer.ggml.add_space_prefix"].as_bool() {
            description.add_space_prefix = prefix;
            description.add_end = changes["tokenizer.ggml.add_eos_token"].as_bool().unwrap();
        }
    });
}

/// Compares with the transformers tokenizer from which the file was made.
#[test]
fn gemma4_matches_transformers() {
    let gguf = Gguf::open(&fixture("merged.gguf")).unwrap();
    compare(&gguf, "merged.json", |_, _| {});
    let d = TokenizerDescription::read(gguf.metadata()).unwrap();
    assert_eq!(d.kind, TokenizerKind::Merged);
    assert_eq!((d.special.begin, d.special.end, d.special.unknown), (Some(2), Some(1), Some(3)));
    assert!(d.add_begin && !d.add_end && !d.add_space_prefix);
    let ends: Vec<&str> = d.end_tokens.iter().map(|id| &*d.tokens[*id as usize]).collect();
    assert_eq!(ends, ["<eos>", "<turn|>"]);
}

#[test]
fn decoding_restores_text() {
    for name in ["byte_level.gguf", "sentence_piece.gguf", "merged.gguf"] {
        let gguf = Gguf::open(&fixture(name)).unwrap();
        let description = TokenizerDescription::read(gguf.metadata()).unwrap();
        let tokenizer = description.tokenizer().unwrap();
        let back = |text: &str| tokenizer.decode(&ids(&tokenizer, text, true), true).unwrap();
        for text in
            ["", "a", "two words", " one before", "two  inside", "üöé 日本 🙂", "\n\t\r", "x\u{0}y"]
        {
            assert_eq!(back(text), text, "{name}");
        }
        // After an added token, SentencePiece inserts its space again, as in llama.cpp.
        let space = description.kind == TokenizerKind::SentencePiece;
        assert_eq!(back("a----b"), if space { "a---- b" } else { "a----b" });
    }
}

#[test]
fn reads_special_tokens() {
    let gguf = Gguf::open(&fixture("byte_level.gguf")).unwrap();
    let d = TokenizerDescription::read(gguf.metadata()).unwrap();
    assert_eq!(
        (d.special.begin, d.special.end, d.special.end_of_turn),
        (Some(1), Some(2), Some(2))
    );
    assert_eq!(d.end_tokens, [0, 2]);
    assert!(!d.add_begin && !d.add_end && !d.add_space_prefix);
    let gguf = Gguf::open(&fixture("sentence_piece.gguf")).unwrap();
    let d = TokenizerDescription::read(gguf.metadata()).unwrap();
    assert_eq!(d.kind, TokenizerKind::SentencePiece);
    assert_eq!((d.special.begin, d.special.end, d.special.unknown), (Some(1), Some(2), Some(0)));
    assert!(d.add_begin && !d.add_end && d.add_space_prefix);
    assert_eq!(d.end_tokens, [2]);
}

#[test]
fn reads_chat_templates() {
    let writer = Writer::default()
        .str("tokenizer.ggml.model", "gpt2")
        .strings("tokenizer.ggml.tokens", &["a", "", "<|im_end|>"])
        .strings("tokenizer.ggml.merges", &[])
        .u32("tokenizer.ggml.bos_token_id", 99)
        .str("tokenizer.chat_template", "{{ messages }}")
        .str("tokenizer.chat_template.tool_use", "{{ tools }}");
    let gguf = Gguf::from_bytes("t", writer.finish()).unwrap();
    let d = TokenizerDescription::read(gguf.metadata()).unwrap();
    assert_eq!(d.chat_template, Some("{{ messages }}"));
    assert_eq!(d.named_templates, [("tool_use", "{{ tools }}")]);
    assert_eq!(
        (d.tokens[1].as_ref(), d.special.begin, &d.end_tokens[..]),
        ("[EMPTY_1]", None, &[2][..])
    );
}

#[test]
fn rejects_inconsistent_vocabularies() {
    let base = |model: &str| Writer::default().str("tokenizer.ggml.model", model);
    let assert_rejected = |writer: &Writer, expected: &str| {
        let gguf = Gguf::from_bytes("t", writer.finish()).unwrap();
        let result = TokenizerDescription::read(gguf.metadata()).and_then(|d| d.tokenizer());
        assert_eq!(result.unwrap_err().to_string(), format!("t: key tokenizer.ggml.{expected}"));
    };
    let tokens = |writer: Writer| writer.strings("tokenizer.ggml.tokens", &["a", "b", "ab"]);
    let gpt2 = |merges: &[&str]| tokens(base("gpt2")).strings("tokenizer.ggml.merges", merges);
    assert_rejected(&base("bert"), "model: expected llama, gpt2 or gemma4, got bert");
    assert_rejected(&base("gpt2"), "tokens: expected an array, got no such key");
    assert_rejected(&tokens(base("gpt2")), "merges: expected an array, got no such key");
    assert_rejected(&tokens(base("gemma4")), "merges: expected an array, got no such key");
    assert_rejected(
        &tokens(base("gemma4")).strings("tokenizer.ggml.merges", &["a b"]),
        "tokens: expected a token for every byte, got none that is <0x00>",
    );
    assert_rejected(
        &gpt2(&["ab"]),
        "merges: expected two tokens with a space between, got \"ab\" as number 0",
    );
    assert_rejected(
        &gpt2(&["a b", "ab b"]),
        "merges: expected merges of tokens into a token, got \"ab\" and \"b\", but no token \
         \"abb\"",
    );
    // What is missing is only noted.
    let says = |file: &Writer| {
        let gguf = Gguf::from_bytes("t", file.clone().finish()).unwrap();
        TokenizerDescription::read(gguf.metadata()).unwrap().names_splitting
    };
    assert!(!says(&gpt2(&[])) && says(&gpt2(&[]).str("tokenizer.ggml.pre", "gpt-2")));
    let unknown = gpt2(&[]).str("tokenizer.ggml.pre", "superbpe");
    let gguf = Gguf::from_bytes("t", unknown.finish()).unwrap();
    let e = TokenizerDescription::read(gguf.metadata()).unwrap_err().to_string();
    assert!(
        e.starts_with("t: key tokenizer.ggml.pre: expected one of default")
            && e.ends_with("got superbpe"),
        "{e}"
    );
    assert_rejected(
        &base("llama")
            .strings("tokenizer.ggml.tokens", &["a", "a"])
            .f32s("tokenizer.ggml.scores", &[0.0, 0.0]),
        "tokens: expected different tokens, got \"a\" as number 0 and 1",
    );
    assert_rejected(
        &tokens(base("llama")),
        "scores: expected one number per token, got no such key",
    );
    assert_rejected(
        &tokens(base("llama")).f32s("tokenizer.ggml.scores", &[0.0]),
        "scores: expected 3 values, one per token, got 1",
    );
    assert_rejected(
        &tokens(base("llama")).f32s("tokenizer.ggml.scores", &[0.0; 3]),
        "tokens: expected a token for every byte, got none that is <0x00>",
    );
    // Every split of a token is a possible merge, so its length is limited.
    let long = "a".repeat(1 << 20);
    let long = base("llama").strings("tokenizer.ggml.tokens", &["a", &long]);
    assert_rejected(
        &long.f32s("tokenizer.ggml.scores", &[0.0; 2]),
        "tokens: expected tokens of at most 1024 bytes, got 1048576 as number 1",
    );
    assert_rejected(
        &gpt2(&[]).bool("tokenizer.ggml.add_bos_token", true),
        "bos_token_id: expected a token, because it is to be added, got none",
    );
}

/// Compares published models: POLYDRAFT_SMOLLM2 and POLYDRAFT_GEMMA3 are their paths (see
/// `model.rs`).
#[test]
fn published_tokenizers_match_llama_cpp() {
    for (variable, json) in
        [("POLYDRAFT_SMOLLM2", "smollm2.json"), ("POLYDRAFT_GEMMA3", "gemma3.json")]
    {
        let Some(path) = std::env::var_os(variable) else {
            support::report_skipped(variable);
            continue;
        };
        let gguf = Gguf::open(Path::new(&path)).unwrap();
        compare(&gguf, json, |_, _| {});
    }
}
