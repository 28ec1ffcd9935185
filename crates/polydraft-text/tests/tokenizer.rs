//! Tokenizers of published kinds, and incremental detokenization.

use std::fs;
use std::path::{Path, PathBuf};

use polydraft::Detokenizer;
use polydraft::Token;
use polydraft_text::Tokenizer;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha12Rng;
use serde_json::{Value, json};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers")
}

fn write_json(directory: &Path, name: &str, value: &Value) {
    fs::write(directory.join(name), value.to_string()).unwrap();
}

fn fixture(name: &str) -> Tokenizer {
    let path = folder().join(format!("{name}.json"));
    Tokenizer::parse(&fs::read(&path).unwrap(), path).unwrap()
}

/// Returns name, tokenizer, and the tokens and text of make_text.py's sentence for each kind.
fn kinds() -> Vec<(String, Tokenizer, Vec<Token>, String)> {
    let all: Value =
        serde_json::from_slice(&fs::read(folder().join("decoded.json")).unwrap()).unwrap();
    let kinds = all["kinds"].as_object().unwrap().iter();
    let read = |(name, expected): (&String, &Value)| {
        let tokenizer = fixture(name);
        let ids: Vec<Token> = serde_json::from_value(expected["ids"].clone()).unwrap();
        assert_eq!(tokenizer.encode(all["text"].as_str().unwrap()).unwrap(), ids, "{name}");
        (name.clone(), tokenizer, ids, expected["decoded"].as_str().unwrap().to_owned())
    };
    let read: Vec<_> = kinds.map(read).collect();
    assert_eq!(read.len(), 5);
    read
}

/// Pushes tokens; returns the emitted chunks.
fn streamed(tokenizer: &Tokenizer, prompt: &[Token], tokens: &[Token]) -> Vec<String> {
    let mut stream = tokenizer.stream(prompt);
    let mut chunks: Vec<String> = tokens.iter().map(|t| stream.push(*t).unwrap()).collect();
    chunks.push(stream.finish().unwrap());
    chunks
}

#[test]
fn streams_equal_decoding_at_every_split() {
    for (name, tokenizer, ids, decoded) in kinds() {
        assert_eq!(tokenizer.decode(&ids).unwrap(), decoded, "{name}");
        for split in 0..=ids.len() {
            let (prompt, rest) = ids.split_at(split);
            let chunks = streamed(&tokenizer, prompt, rest);
            // If a prompt ends inside a character, its bytes are emitted with the first chunk.
            let before = tokenizer.decode(prompt).unwrap();
            let before = before.trim_end_matches(char::REPLACEMENT_CHARACTER);
            assert_eq!(chunks.concat(), decoded[before.len()..], "{name}, split at {split}");
            for chunk in &chunks {
                assert!(
                    !chunk.contains(char::REPLACEMENT_CHARACTER),
                    "{name}, split at {split}: {chunk:?}"
                );
            }
        }
        // Complete characters are emitted with their last token.
        let mut shown = String::new();
        for (count, chunk) in (1..).zip(streamed(&tokenizer, &[], &ids)) {
            shown += &chunk;
            let full = tokenizer.decode(&ids[..count.min(ids.len())]).unwrap();
            assert!(
                shown.starts_with(full.trim_end_matches(char::REPLACEMENT_CHARACTER)),
                "{name} {count}"
            );
        }
    }
}

#[test]
fn special_tokens_do_not_change_text_or_spaces() {
    for (name, tokenizer, ids, decoded) in kinds() {
        let end = ["</s>", "<|end|>"].iter().find_map(|t| tokenizer.token(t)).unwrap();
        for split in 0..=ids.len() {
            let with = [&ids[..split], &[end, end], &ids[split..]].concat();
            assert_eq!(streamed(&tokenizer, &[], &with).concat(), decoded, "{name}, {split}");
            // Any number of special tokens at the end of a prompt has no effect either.
            let prompt = [&ids[..split], &[end; 12]].concat();
            let before = tokenizer.decode(&ids[..split]).unwrap();
            let before = before.trim_end_matches(char::REPLACEMENT_CHARACTER);
            assert_eq!(
                streamed(&tokenizer, &prompt, &ids[split..]).concat(),
                decoded[before.len()..],
                "{name}, {split}"
            );
        }
    }
}

/// Returns whether the characters of `part` occur in `full`, in this order.
fn is_subsequence(part: &str, full: &str) -> bool {
    let mut rest = full.chars();
    part.chars().all(|c| rest.any(|w| w == c))
}

#[test]
fn invalid_tokens_do_not_affect_other_text() {
    let mut rng = ChaCha12Rng::seed_from_u64(3);
    for (name, tokenizer, ids, _) in kinds() {
        let size = tokenizer.size() as Token;
        for _ in 0..300 {
            // Valid text between random tokens.
            let mut tokens: Vec<Token> = Vec::new();
            while tokens.len() < 30 {
                tokens.extend((0..rng.random_range(0..4)).map(|_| rng.random_range(0..size)));
                let start = rng.random_range(0..ids.len() - 6);
                tokens.extend(&ids[start..start + rng.random_range(1..6)]);
            }
            let shown = streamed(&tokenizer, &[], &tokens)
                .concat()
                .replace(char::REPLACEMENT_CHARACTER, "");
            let full = tokenizer.decode(&tokens).unwrap().replace(char::REPLACEMENT_CHARACTER, "");
            // A stream may keep characters that decoding all at once drops because of an invalid
            // byte after them.
            assert!(is_subsequence(&full, &shown), "{name}: {tokens:?}\n{full:?}\n{shown:?}");
        }
    }
}

#[test]
fn reads_vocab_json_with_merges_txt() {
    // OPT's layout, from the byte-level fixture.
    let full: Value =
        serde_json::from_slice(&fs::read(folder().join("byte-level.json")).unwrap()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    write_json(directory.path(), "vocab.json", &full["model"]["vocab"]);
    let merges = full["model"]["merges"].as_array().unwrap().iter();
    let lines: Vec<String> = merges
        .map(|pair| format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()))
        .collect();
    fs::write(
        directory.path().join("merges.txt"),
        format!("#version: 0.2\n{}\n", lines.join("\n")),
    )
    .unwrap();
    let tokens = json!({"bos_token": {"content": "<|begin|>"}, "eos_token": "<|end|>",
        "add_bos_token": true});
    write_json(directory.path(), "tokenizer_config.json", &tokens);
    let (_, reference, ids, decoded) =
        kinds().into_iter().find(|(name, ..)| name == "byte-level").unwrap();
    let tokenizer = Tokenizer::read(directory.path()).unwrap();
    assert_eq!(tokenizer.decode(&ids).unwrap(), decoded);
    for sample in [decoded.as_str(), "", "<|end|> x", " leading"] {
        assert_eq!(
            tokenizer.encode(sample).unwrap(),
            reference.encode(sample).unwrap(),
            "{sample:?}"
        );
    }
    assert_eq!(streamed(&tokenizer, &[], &ids).concat(), decoded);

    fs::write(directory.path().join("vocab.json"), "{}").unwrap();
    let message = Tokenizer::read(directory.path()).unwrap_err().to_string();
    assert!(message.contains("vocab.json") && message.contains("byte-level"), "{message}");
    fs::remove_file(directory.path().join("merges.txt")).unwrap();
    let message = Tokenizer::read(directory.path()).unwrap_err().to_string();
    assert!(message.contains("vocab.json with merges.txt"), "{message}");
}

#[test]
fn stream_outlives_tokenizer_and_is_send() {
    fn is_free<T: Send + Sync + 'static>(_: &T) {}
    let (_, tokenizer, ids, decoded) = kinds().swap_remove(0);
    is_free(&tokenizer);
    let mut stream = tokenizer.stream(&[]);
    is_free(&stream);
    drop(tokenizer);
    let shown = std::thread::spawn(move || {
        let shown: String = ids.iter().map(|t| stream.push(*t).unwrap()).collect();
        shown + &stream.finish().unwrap()
    });
    assert_eq!(shown.join().unwrap(), decoded);
}

/// Returns the byte-level fixture's file, modified.
fn changed_bytes(change: impl FnOnce(&mut Value)) -> Vec<u8> {
    let mut value: Value =
        serde_json::from_slice(&fs::read(folder().join("byte-level.json")).unwrap()).unwrap();
    change(&mut value);
    value.to_string().into_bytes()
}

/// Parses the modified fixture.
fn changed(change: impl FnOnce(&mut Value)) -> polydraft_text::Result<Tokenizer> {
    Tokenizer::parse(&changed_bytes(change), "somewhere/tokenizer.json")
}

#[test]
fn ignores_truncation_and_padding() {
    let long = "a prompt that is longer than eight tokens, by far, in every way";
    let expected = fixture("byte-level").encode(long).unwrap();
    assert!(expected.len() > 8);
    let tokenizer = changed(|file| {
        file["truncation"] =
            json!({"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0});
        file["padding"] = json!({
            "strategy": {"Fixed": 128}, "direction": "Left", "pad_to_multiple_of": null,
                "pad_id": 0,
            "pad_type_id": 0, "pad_token": "<|end|>"
        });
    });
    assert_eq!(tokenizer.unwrap().encode(long).unwrap(), expected);
}

/// Creates a tokenizer of words with these ids.
fn words(vocabulary: Value) -> Tokenizer {
    let file = json!({
        "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "a"}
    });
    Tokenizer::parse(file.to_string().as_bytes(), "somewhere/tokenizer.json").unwrap()
}

#[test]
fn rejects_duplicate_ids() {
    // More tokens than rows, with all ids below.
    let message =
        words(json!({"a": 0, "b": 1, "c": 1, "d": 1})).vocabulary(2).unwrap_err().to_string();
    assert!(message.contains("tokenizer.json: expected one token for each id, got"), "{message}");
    assert!(message.contains("for id 1"), "{message}");
    // Duplicate ids are also rejected if there are enough rows.
    assert!(words(json!({"a": 0, "b": 1, "c": 1})).vocabulary(4).is_err());
    assert_eq!(words(json!({"a": 0, "b": 1})).vocabulary(2).unwrap().size(), 2);
}

/// Gemma 3's text models have an image token after their last row.
#[test]
fn vocabulary_omits_added_tokens_without_row() {
    let file = |id: u32| {
        let added = json!({"id": id, "content": "<image>", "special": true, "single_word": false,
                           "lstrip": false, "rstrip": false, "normalized": false});
        json!({
            "added_tokens": [added], "pre_tokenizer": {"type": "Whitespace"},
            "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "c": 2}, "unk_token": "a"}
        })
    };
    let tokenizer =
        Tokenizer::parse(file(3).to_string().as_bytes(), "somewhere/tokenizer.json").unwrap();
    assert_eq!(tokenizer.vocabulary(4).unwrap().size(), 4);
    assert_eq!(tokenizer.vocabulary(3).unwrap().size(), 3);
    // Tokens of the tokenizer itself need a row.
    let message = tokenizer.vocabulary(2).unwrap_err().to_string();
    assert!(message.contains("only 2 rows: token 2 (\"c\") has none"), "{message}");
    let tokenizer = tokenizer.with_rows(3);
    assert_eq!(tokenizer.encode("a c").unwrap(), [0, 2]);
    let message = tokenizer.encode("a <image>").unwrap_err().to_string();
    assert!(
        message.contains("tokens below 3") && message.contains("got 3 (\"<image>\")"),
        "{message}"
    );
}

/// The settings apply to the same tokenizer classes as in transformers.
#[test]
fn settings_add_begin_and_end_tokens() {
    let directory = tempfile::tempdir().unwrap();
    let mut file = json!({
        "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "<s>": 2, "</s>": 3},
            "unk_token": "a"}
    });
    let encoded = |file: &Value, settings: Value| {
        write_json(directory.path(), "tokenizer.json", file);
        write_json(directory.path(), "tokenizer_config.json", &settings);
        let tokenizer = Tokenizer::read(directory.path()).map_err(|e| e.to_string())?;
        assert_eq!(tokenizer.encode_plain("b a").unwrap(), [1, 0]);
        Ok::<_, String>(tokenizer.encode("b a").unwrap())
    };
    let settings = |class: &str, begin: Value, end: Value| {
        json!({"tokenizer_class": class, "bos_token": "<s>", "eos_token": {"content": "</s>"},
               "add_bos_token": begin, "add_eos_token": end})
    };
    let [yes, no, unset] = [json!(true), json!(false), Value::Null];
    let with_class =
        |class: &str, begin: &Value, end: &Value| settings(class, begin.clone(), end.clone());
    assert_eq!(encoded(&file, with_class("LlamaTokenizerFast", &yes, &no)), Ok(vec![2, 1, 0]));
    assert_eq!(encoded(&file, with_class("LlamaTokenizer", &yes, &yes)), Ok(vec![2, 1, 0, 3]));
    assert_eq!(encoded(&file, with_class("GemmaTokenizer", &no, &yes)), Ok(vec![1, 0, 3]));
    assert_eq!(encoded(&file, with_class("LlamaTokenizerFast", &unset, &unset)), Ok(vec![1, 0]));
    assert_eq!(encoded(&file, with_class("PreTrainedTokenizerFast", &yes, &yes)), Ok(vec![1, 0]));
    let missing =
        json!({"tokenizer_class": "LlamaTokenizer", "bos_token": "<b>", "add_bos_token": true});
    let message = encoded(&file, missing).unwrap_err();
    assert!(message.contains("expected the bos_token of tokenizer_config.json"), "{message}");
    // No second begin token is added if `tokenizer.json` adds one itself.
    file["post_processor"] = json!({
        "type": "TemplateProcessing", "pair": [],
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A",
            "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [2], "tokens": ["<s>"]}}
    });
    assert_eq!(encoded(&file, with_class("LlamaTokenizerFast", &yes, &no)), Ok(vec![2, 1, 0]));
}

/// The regular expressions that split a text give up after a million white-space characters in a
/// row, and would leave the rest as one piece.
#[test]
fn rejects_endless_white_space() {
    let tokenizer = fixture("byte-level");
    let (words, blank) = ("several words behind it", |count: usize| " ".repeat(count));
    let tokens = tokenizer.encode(words).unwrap().len();
    assert!(tokenizer.encode(&(blank(900_000) + words)).unwrap().len() > tokens);
    let message = tokenizer.encode(&(blank(1_000_000) + words)).unwrap_err().to_string();
    assert!(
        message.contains("less than 1000000 white-space characters in a row, got 1000000"),
        "{message}"
    );
}

/// Steps that replace a space by a long text make a short prompt very long.
#[test]
fn rejects_steps_with_long_replacements() {
    let replace = |length: usize| {
        let content = "x".repeat(length);
        json!({ "type": "Replace", "pattern": { "String": " " }, "content": content })
    };
    let sequence = |part: Value| json!({ "type": "Sequence", "normalizers": [part] });
    let decoders = |part: Value| json!({ "type": "Sequence", "decoders": [part] });
    let prepend = |length: usize| json!({ "type": "Prepend", "prepend": "▁".repeat(length / 3) });
    for (field, step) in [
        ("normalizer", &replace as &dyn Fn(usize) -> Value),
        ("normalizer", &|length| sequence(replace(length))),
        ("normalizer", &|length| sequence(prepend(length))),
        ("decoder", &|length| decoders(replace(length))),
    ] {
        assert!(changed(|file| file[field] = step(256)).is_ok(), "{field}");
        let error = changed(|file| file[field] = step(258)).unwrap_err().to_string();
        let expected = format!("{field}: ");
        assert!(
            error.contains(&expected) && error.contains("at most 256 bytes, got 258"),
            "{error}"
        );
    }
}

#[test]
fn invalid_tokenizers_return_errors_without_panic() {
    let text = "a text to encode, ünïcode too: 日本語";
    let exercise = |tokenizer: polydraft_text::Result<Tokenizer>| -> Result<(), String> {
        let parsed = tokenizer.map_err(|e| e.to_string())?;
        let ids = parsed.encode(text).map_err(|e| e.to_string())?;
        parsed.decode(&ids).map_err(|e| e.to_string())?;
        let mut stream = parsed.stream(&ids);
        for id in ids {
            stream.push(id).map_err(|e| e.to_string())?;
        }
        Ok(())
    };
    type Change = fn(&mut Value);
    let cases: [(&str, Change); 7] = [
        ("a processor's token that is not defined", |file| {
            let named = json!({"SpecialToken": {"id": "<nowhere>", "type_id": 0}});
            file["post_processor"]["single"] =
                json!([named, {"Sequence": {"id": "A", "type_id": 0}}]);
        }),
        ("a prefix that cuts a character", |file| {
            file["model"]["continuing_subword_prefix"] = json!("##é");
        }),
        ("a decoder without its type", |file| {
            file["decoder"] = json!({"decoders": [{"prefix": 3}]})
        }),
        ("a table that is none", |file| {
            file["normalizer"] = json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"});
        }),
        ("a match behind the end 1", |file| {
            file["normalizer"] =
                json!({"type": "Replace", "pattern": {"Regex": "$"}, "content": "é"});
        }),
        ("a match behind the end 2", |file| {
            file["normalizer"] =
                json!({"type": "Replace", "pattern": {"Regex": "(?<=.)"}, "content": "é"});
        }),
        ("a match behind the end 3", |file| {
            let normalizer =
                json!({"type": "Replace", "pattern": {"Regex": "\\b|\\s*"}, "content": ""});
            file["normalizer"] = normalizer;
        }),
    ];
    for (name, change) in cases {
        match exercise(changed(change)) {
            Ok(()) => println!("{name}: no error"),
            Err(message) => {
                println!("{name}: {message}");
                assert!(message.contains("somewhere/tokenizer.json"), "{name}: {message}");
            }
        }
    }
    for (_, change) in &cases[..2] {
        let message = exercise(changed(change)).unwrap_err();
        assert!(message.contains("made the library panic"), "{message}");
    }
}

#[test]
fn truncated_files_return_errors() {
    let full = changed_bytes(|_| {});
    // Cuts in every part of the file, including the decoder.
    for length in (0..full.len()).step_by(full.len() / 300).chain(full.len() - 200..full.len()) {
        let message =
            Tokenizer::parse(&full[..length], "cut/tokenizer.json").unwrap_err().to_string();
        assert!(message.contains("cut/tokenizer.json"), "{length}: {message}");
    }
}

/// Prompts that exceed any context are rejected quickly, and long ones that fit are accepted.
#[test]
fn rejects_oversized_prompts_without_encoding_them() {
    let file =
        br#"{"model": {"type": "WordLevel", "vocab": {"one": 0, "two": 1}, "unk_token": "one"},
                    "pre_tokenizer": {"type": "Whitespace"}, "added_tokens": []}"#;
    let tokenizer = Tokenizer::parse(file, "tokenizer.json").unwrap();
    let long = "one two ".repeat(1 << 20);
    let start = std::time::Instant::now();
    let message = tokenizer.encode_within(&long, 1_000).unwrap_err().to_string();
    assert!(
        message.contains("at most 64000") && message.contains("context holds 1000"),
        "{message}"
    );
    let message = tokenizer.encode_within(&long, 150_000).unwrap_err().to_string();
    assert!(message.contains("at least") && message.contains("context holds 150000"), "{message}");
    assert!(start.elapsed().as_secs() < 5);
    let fits = "one two ".repeat(1 << 16);
    assert_eq!(tokenizer.encode_within(&fits, 1 << 18).unwrap(), tokenizer.encode(&fits).unwrap());
    // A slightly too long prompt is left to the engine, which reports its length.
    assert_eq!(tokenizer.encode_within("one two one", 2).unwrap().len(), 3);
    assert_eq!(tokenizer.encode_chunks(&fits).unwrap(), tokenizer.encode(&fits).unwrap());
}

#[test]
#[cfg(target_os = "linux")]
fn rejects_devices_pipes_and_huge_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
    let message = Tokenizer::read(folder.path()).unwrap_err().to_string();
    assert!(
        message.contains("tokenizer.json") && message.contains("expected a regular file"),
        "{message}"
    );
    fs::remove_file(&path).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let message = Tokenizer::read(folder.path()).unwrap_err().to_string();
    assert!(message.contains("expected a regular file"), "{message}");
    fs::remove_file(&path).unwrap();
    fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
    let message = Tokenizer::read(folder.path()).unwrap_err().to_string();
    assert!(message.contains("at most 64 MiB"), "{message}");
}
