//! Chat templates against those of transformers: fixtures/chats.json, which make_text.py made.

mod common;

use std::fs;
use std::path::Path;

use common::*;
use polydraft_candle::{ChatTemplate, Message};
use serde_json::{Value, json};

fn template(directory: &Path, text: &str) -> polydraft_candle::Result<Option<ChatTemplate>> {
    let settings = json!({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": text});
    write_json(directory, "tokenizer_config.json", &settings);
    ChatTemplate::read(directory)
}

/// What a template makes of one message, or why it does not.
fn rendered(text: &str) -> Result<String, String> {
    let directory = tempfile::tempdir().unwrap();
    let template = template(directory.path(), text).map_err(|e| e.to_string())?.unwrap();
    template.render(&[Message::user("hello")]).map_err(|e| e.to_string())
}

#[test]
fn templates_render_as_in_transformers() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/chats.json");
    let all: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    for case in all["cases"].as_array().unwrap() {
        let name = case["template"].as_str().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let template = template(directory.path(), all["templates"][name].as_str().unwrap()).unwrap().unwrap();
        let messages: Vec<Message> = case["messages"]
            .as_array()
            .unwrap()
            .iter()
            .map(|message| {
                let content = message["content"].as_str().unwrap();
                match message["role"].as_str().unwrap() {
                    "system" => Message::system(content),
                    "user" => Message::user(content),
                    _ => Message::assistant(content),
                }
            })
            .collect();
        match (template.render(&messages), case["text"].as_str()) {
            (Ok(found), Some(expected)) => assert_eq!(found, expected, "{name}"),
            (Err(found), None) => {
                let found = found.to_string();
                assert!(found.contains(case["error"].as_str().unwrap()), "{name}: {found}");
            }
            (found, expected) => panic!("{name}: {found:?} for {expected:?}"),
        }
    }
}

#[test]
fn templates_come_from_either_file() {
    let directory = tempfile::tempdir().unwrap();
    let read = || ChatTemplate::read(directory.path()).unwrap();
    assert!(read().is_none());
    write_json(directory.path(), "tokenizer_config.json", &json!({"chat_template": "one"}));
    let source = |t: &ChatTemplate| (t.source(), t.render(&[]).unwrap());
    assert_eq!(source(&read().unwrap()), ("tokenizer_config.json", "one".to_owned()));
    let several = json!([{"name": "tool_use", "template": "a"}, {"name": "default", "template": "two"}]);
    write_json(directory.path(), "tokenizer_config.json", &json!({"chat_template": several}));
    assert_eq!(source(&read().unwrap()).1, "two");
    fs::write(directory.path().join("chat_template.jinja"), "three").unwrap();
    assert_eq!(source(&read().unwrap()), ("chat_template.jinja", "three".to_owned()));
    // Special tokens may be in a file of their own.
    fs::write(directory.path().join("chat_template.jinja"), "{{ bos_token }}{{ pad_token }}").unwrap();
    write_json(directory.path(), "special_tokens_map.json", &json!({"bos_token": "<b>", "pad_token": "<p>"}));
    assert_eq!(source(&read().unwrap()).1, "<b><p>");
    fs::write(directory.path().join("tokenizer_config.json"), "[1").unwrap();
    assert!(ChatTemplate::read(directory.path()).unwrap_err().to_string().contains("tokenizer_config.json"));
}

#[test]
fn the_clock_is_there() {
    let year = rendered("{{ strftime_now('%Y') }}").unwrap();
    assert!(year.len() == 4 && year.as_str() >= "2025", "{year}");
    assert!(rendered("{{ strftime_now('%d %b %Y') }}").unwrap().ends_with(&year));
    assert!(rendered("{{ strftime_now('%!') }}").unwrap_err().contains("strftime_now"));
}

#[test]
fn hostile_templates_are_errors() {
    for (text, expected) in [
        ("{% if %}", "line 1"),
        ("{{ messages[0].content", "line 1"),
        ("{{ raise_exception('no such thing') }}", "no such thing"),
        ("{{ nothing() }}", "nothing"),
        ("{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}", "fuel"),
        ("{{ messages | tojson(indent='x') }}", "line 1"),
        ("{% include 'other' %}", "other"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", ""),
        ("{{ 'x' * 100000000000 }}", ""),
        ("{{ [1, 2] | tojson(indent=100000000000) }}", ""),
    ] {
        match rendered(text) {
            Err(message) => assert!(message.contains(expected), "{text}: {message}"),
            Ok(found) => assert!(expected.is_empty(), "{text}: {found}"),
        }
    }
}
