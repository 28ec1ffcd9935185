//! Tokenizers of the kinds that are published, and text that is streamed through them.

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

/// Name, tokenizer, and the tokens and text of make_text.py's sentence.
fn kinds() -> Vec<(String, Tokenizer, Vec<Token>, String)> {
    let all: Value =
        serde_json::from_slice(&fs::read(folder().join("decoded.json")).unwrap()).unwrap();
    let kinds = all["kinds"].as_object().unwrap().iter();
    let read = |(name, expected): (&String, &Value)| {
        let text = fixture(name);
        let ids: Vec<Token> = serde_json::from_value(expected["ids"].clone()).unwrap();
        assert_eq!(text.encode(all["text"].as_str().unwrap()).unwrap(), ids, "{name}");
        (name.clone(), text, ids, expected["decoded"].as_str().unwrap().to_owned())
    };
    let read: Vec<_> = kinds.map(read).collect();
    assert_eq!(read.len(), 5);
    read
}

/// Pushes tokens; returns the pieces.
fn streamed(text: &Tokenizer, prompt: &[Token], tokens: &[Token]) -> Vec<String> {
    let mut stream = text.stream(prompt);
    let mut pieces: Vec<String> = tokens.iter().map(|t| stream.push(*t).unwrap()).collect();
    pieces.push(stream.finish().unwrap());
    pieces
}

#[test]
fn streams_keep_every_character_and_space_at_every_split() {
    for (name, text, ids, decoded) in kinds() {
        assert_eq!(text.decode(&ids).unwrap(), decoded, "{name}");
        for split in 0..=ids.len() {
            let (prompt, rest) = ids.split_at(split);
            let pieces = streamed(&text, prompt, rest);
            // A prompt that ends inside a character: its bytes are shown with the first piece.
            let before = text.decode(prompt).unwrap();
            let before = before.trim_end_matches(char::REPLACEMENT_CHARACTER);
            assert_eq!(pieces.concat(), decoded[before.len()..], "{name}, split at {split}");
            for piece in &pieces {
                assert!(
                    !piece.contains(char::REPLACEMENT_CHARACTER),
                    "{name}, split at {split}: {piece:?}"
                );
            }
        }
        // And nothing is held back that is certain: whole characters come with their last token.
        let mut shown = String::new();
        for (count, piece) in (1..).zip(streamed(&text, &[], &ids)) {
            shown += &piece;
            let whole = text.decode(&ids[..count.min(ids.len())]).unwrap();
            assert!(
                shown.starts_with(whole.trim_end_matches(char::REPLACEMENT_CHARACTER)),
                "{name} {count}"
            );
        }
    }
}

#[test]
fn special_tokens_have_no_text_and_take_no_space_with_them() {
    for (name, text, ids, decoded) in kinds() {
        let end = ["</s>", "<|end|>"].iter().find_map(|t| text.token(t)).unwrap();
        for split in 0..=ids.len() {
            let with = [&ids[..split], &[end, end], &ids[split..]].concat();
            assert_eq!(streamed(&text, &[], &with).concat(), decoded, "{name}, {split}");
            // At the end of a prompt, however many.
            let prompt = [&ids[..split], &[end; 12]].concat();
            let before = text.decode(&ids[..split]).unwrap();
            let before = before.trim_end_matches(char::REPLACEMENT_CHARACTER);
            assert_eq!(
                streamed(&text, &prompt, &ids[split..]).concat(),
                decoded[before.len()..],
                "{name}, {split}"
            );
        }
    }
}

/// Whether the characters of `part` are in `whole`, in this order.
fn is_subsequence(part: &str, whole: &str) -> bool {
    let mut rest = whole.chars();
    part.chars().all(|c| rest.any(|w| w == c))
}

#[test]
fn tokens_that_make_no_text_disturb_no_other() {
    let mut rng = ChaCha12Rng::seed_from_u64(3);
    for (name, text, ids, _) in kinds() {
        let size = text.size() as Token;
        for _ in 0..300 {
            // Pieces of sense between random tokens.
            let mut tokens: Vec<Token> = Vec::new();
            while tokens.len() < 30 {
                tokens.extend((0..rng.random_range(0..4)).map(|_| rng.random_range(0..size)));
                let start = rng.random_range(0..ids.len() - 6);
                tokens.extend(&ids[start..start + rng.random_range(1..6)]);
            }
            let shown =
                streamed(&text, &[], &tokens).concat().replace(char::REPLACEMENT_CHARACTER, "");
            let whole = text.decode(&tokens).unwrap().replace(char::REPLACEMENT_CHARACTER, "");
            // A stream may save characters that decoding all at once gives up for a wrong byte
            // behind them.
            assert!(is_subsequence(&whole, &shown), "{name}: {tokens:?}\n{whole:?}\n{shown:?}");
        }
    }
}

#[test]
fn a_vocabulary_and_its_merges_make_a_tokenizer() {
    // OPT's layout, from the byte-level fixture.
    let whole: Value =
        serde_json::from_slice(&fs::read(folder().join("byte-level.json")).unwrap()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    write_json(directory.path(), "vocab.json", &whole["model"]["vocab"]);
    let merges = whole["model"]["merges"].as_array().unwrap().iter();
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
    let text = Tokenizer::read(directory.path()).unwrap();
    assert_eq!(text.decode(&ids).unwrap(), decoded);
    for sample in [decoded.as_str(), "", "<|end|> x", " leading"] {
        assert_eq!(text.encode(sample).unwrap(), reference.encode(sample).unwrap(), "{sample:?}");
    }
    assert_eq!(streamed(&text, &[], &ids).concat(), decoded);

    fs::write(directory.path().join("vocab.json"), "{}").unwrap();
    let message = Tokenizer::read(directory.path()).unwrap_err().to_string();
    assert!(message.contains("vocab.json") && message.contains("byte-level"), "{message}");
    fs::remove_file(directory.path().join("merges.txt")).unwrap();
    let message = Tokenizer::read(directory.path()).unwrap_err().to_string();
    assert!(message.contains("vocab.json with merges.txt"), "{message}");
}

#[test]
fn a_stream_outlives_its_text_and_moves_to_other_threads() {
    fn is_free<T: Send + Sync + 'static>(_: &T) {}
    let (_, text, ids, decoded) = kinds().swap_remove(0);
    is_free(&text);
    let mut stream = text.stream(&[]);
    is_free(&stream);
    drop(text);
    let shown = std::thread::spawn(move || {
        let shown: String = ids.iter().map(|t| stream.push(*t).unwrap()).collect();
        shown + &stream.finish().unwrap()
    });
    assert_eq!(shown.join().unwrap(), decoded);
}

/// The byte-level fixture's file, changed.
fn changed_bytes(change: impl FnOnce(&mut Value)) -> Vec<u8> {
    let mut value: Value =
        serde_json::from_slice(&fs::read(folder().join("byte-level.json")).unwrap()).unwrap();
    change(&mut value);
    value.to_string().into_bytes()
}

/// What is made of it.
fn changed(change: impl FnOnce(&mut Value)) -> polydraft_text::Result<Tokenizer> {
    Tokenizer::parse(&changed_bytes(change), "somewhere/tokenizer.json")
}

#[test]
fn nothing_is_cut_off_or_filled_up() {
    let long = "a prompt that is longer than eight tokens, by far, in every way";
    let expected = fixture("byte-level").encode(long).unwrap();
    assert!(expected.len() > 8);
    let text = changed(|file| {
        file["truncation"] =
            json!({"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0});
        file["padding"] = json!({
            "strategy": {"Fixed": 128}, "direction": "Left", "pad_to_multiple_of": null,
                "pad_id": 0,
            "pad_type_id": 0, "pad_token": "<|end|>"
        });
    });
    assert_eq!(text.unwrap().encode(long).unwrap(), expected);
}

/// A tokenizer of whole words with these ids.
fn words(vocabulary: Value) -> Tokenizer {
    let file = json!({
        "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "a"}
    });
    Tokenizer::parse(file.to_string().as_bytes(), "somewhere/tokenizer.json").unwrap()
}

#[test]
fn ids_that_are_shared_are_named() {
    // More tokens than rows, all of them below.
    let message =
        words(json!({"a": 0, "b": 1, "c": 1, "d": 1})).vocabulary(2).unwrap_err().to_string();
    assert!(message.contains("tokenizer.json: expected one token for each id, got"), "{message}");
    assert!(message.contains("for id 1"), "{message}");
    // Nor where there are rows enough.
    assert!(words(json!({"a": 0, "b": 1, "c": 1})).vocabulary(4).is_err());
    assert_eq!(words(json!({"a": 0, "b": 1})).vocabulary(2).unwrap().size(), 2);
}

/// As Gemma 3's text models have an image's token behind their last row.
#[test]
fn added_tokens_without_a_row_are_no_part_of_the_vocabulary() {
    let file = |id: u32| {
        let added = json!({"id": id, "content": "<image>", "special": true, "single_word": false,
                           "lstrip": false, "rstrip": false, "normalized": false});
        json!({
            "added_tokens": [added], "pre_tokenizer": {"type": "Whitespace"},
            "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "c": 2}, "unk_token": "a"}
        })
    };
    let text =
        Tokenizer::parse(file(3).to_string().as_bytes(), "somewhere/tokenizer.json").unwrap();
    assert_eq!(text.vocabulary(4).unwrap().size(), 4);
    assert_eq!(text.vocabulary(3).unwrap().size(), 3);
    // The tokenizer's own need theirs.
    let message = text.vocabulary(2).unwrap_err().to_string();
    assert!(message.contains("only 2 rows: token 2 (\"c\") has none"), "{message}");
    let text = text.with_rows(3);
    assert_eq!(text.encode("a c").unwrap(), [0, 2]);
    let message = text.encode("a <image>").unwrap_err().to_string();
    assert!(
        message.contains("tokens below 3") && message.contains("got 3 (\"<image>\")"),
        "{message}"
    );
}

/// As transformers' classes for Llama's tokenizers do it.
#[test]
fn settings_put_tokens_around_a_prompt() {
    let directory = tempfile::tempdir().unwrap();
    let mut file = json!({
        "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "<s>": 2, "</s>": 3},
            "unk_token": "a"}
    });
    let encoded = |file: &Value, settings: Value| {
        write_json(directory.path(), "tokenizer.json", file);
        write_json(directory.path(), "tokenizer_config.json", &settings);
        let text = Tokenizer::read(directory.path()).map_err(|e| e.to_string())?;
        assert_eq!(text.encode_plain("b a").unwrap(), [1, 0]);
        Ok::<_, String>(text.encode("b a").unwrap())
    };
    let settings = |class: &str, begin: Value, end: Value| {
        json!({"tokenizer_class": class, "bos_token": "<s>", "eos_token": {"content": "</s>"},
               "add_bos_token": begin, "add_eos_token": end})
    };
    let [yes, no, unsaid] = [json!(true), json!(false), Value::Null];
    let of = |class: &str, begin: &Value, end: &Value| settings(class, begin.clone(), end.clone());
    assert_eq!(encoded(&file, of("LlamaTokenizerFast", &yes, &no)), Ok(vec![2, 1, 0]));
    assert_eq!(encoded(&file, of("LlamaTokenizer", &yes, &yes)), Ok(vec![2, 1, 0, 3]));
    assert_eq!(encoded(&file, of("GemmaTokenizer", &no, &yes)), Ok(vec![1, 0, 3]));
    assert_eq!(encoded(&file, of("LlamaTokenizerFast", &unsaid, &unsaid)), Ok(vec![1, 0]));
    assert_eq!(encoded(&file, of("PreTrainedTokenizerFast", &yes, &yes)), Ok(vec![1, 0]));
    let missing =
        json!({"tokenizer_class": "LlamaTokenizer", "bos_token": "<b>", "add_bos_token": true});
    let message = encoded(&file, missing).unwrap_err();
    assert!(message.contains("expected the bos_token of tokenizer_config.json"), "{message}");
    // Where the tokenizer adds one itself there is no second.
    file["post_processor"] = json!({
        "type": "TemplateProcessing", "pair": [],
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A",
            "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [2], "tokens": ["<s>"]}}
    });
    assert_eq!(encoded(&file, of("LlamaTokenizerFast", &yes, &no)), Ok(vec![2, 1, 0]));
}

/// The expressions that split a text give up behind so many, and would leave the rest of it one
/// piece.
#[test]
fn endless_white_space_is_refused() {
    let text = fixture("byte-level");
    let (words, blank) = ("several words behind it", |count: usize| " ".repeat(count));
    let tokens = text.encode(words).unwrap().len();
    assert!(text.encode(&(blank(900_000) + words)).unwrap().len() > tokens);
    let message = text.encode(&(blank(1_000_000) + words)).unwrap_err().to_string();
    assert!(
        message.contains("less than 1000000 white-space characters in a row, got 1000000"),
        "{message}"
    );
}

/// Files with which the library panics: none of it reaches the caller, and the file is named.
/// A step that puts a long text in the place of a blank makes a short prompt a very long one.
#[test]
fn steps_that_make_texts_grow_are_refused() {
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
fn mangled_tokenizers_are_errors() {
    let text = "a text to encode, ünïcode too: 日本語";
    let use_it = |text_of: polydraft_text::Result<Tokenizer>| -> Result<(), String> {
        let made = text_of.map_err(|e| e.to_string())?;
        let ids = made.encode(text).map_err(|e| e.to_string())?;
        made.decode(&ids).map_err(|e| e.to_string())?;
        let mut stream = made.stream(&ids);
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
        match use_it(changed(change)) {
            Ok(()) => println!("{name}: no error"),
            Err(message) => {
                println!("{name}: {message}");
                assert!(message.contains("somewhere/tokenizer.json"), "{name}: {message}");
            }
        }
    }
    for (_, change) in &cases[..2] {
        let message = use_it(changed(change)).unwrap_err();
        assert!(message.contains("broke down on"), "{message}");
    }
}

#[test]
fn tokenizers_that_are_cut_off_are_errors() {
    let whole = changed_bytes(|_| {});
    // Inside every part of the file, the decoder's included.
    for length in (0..whole.len()).step_by(whole.len() / 300).chain(whole.len() - 200..whole.len())
    {
        let message =
            Tokenizer::parse(&whole[..length], "cut/tokenizer.json").unwrap_err().to_string();
        assert!(message.contains("cut/tokenizer.json"), "{length}: {message}");
    }
}

/// Prompts that no context can hold are refused in time, and long ones that it can hold are not.
#[test]
fn absurd_lengths_are_refused_early() {
    let file =
        br#"{"model": {"type": "WordLevel", "vocab": {"one": 0, "two": 1}, "unk_token": "one"},
                    "pre_tokenizer": {"type": "Whitespace"}, "added_tokens": []}"#;
    let text = Tokenizer::parse(file, "tokenizer.json").unwrap();
    let long = "one two ".repeat(1 << 20);
    let clock = std::time::Instant::now();
    let message = text.encode_within(&long, 1_000).unwrap_err().to_string();
    assert!(
        message.contains("at most 64000") && message.contains("context holds 1000"),
        "{message}"
    );
    let message = text.encode_within(&long, 150_000).unwrap_err().to_string();
    assert!(message.contains("at least") && message.contains("context holds 150000"), "{message}");
    assert!(clock.elapsed().as_secs() < 5);
    let fits = "one two ".repeat(1 << 16);
    assert_eq!(text.encode_within(&fits, 1 << 18).unwrap(), text.encode(&fits).unwrap());
    // A little too long is left to the engine, which knows how much too long.
    assert_eq!(text.encode_within("one two one", 2).unwrap().len(), 3);
    assert_eq!(text.encode_pieces(&fits).unwrap(), text.encode(&fits).unwrap());
}

#[test]
#[cfg(target_os = "linux")]
fn what_is_no_file_is_not_read() {
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
