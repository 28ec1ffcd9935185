//! Tokenizers and chat templates of GGUF files.

#[path = "../../polydraft-gguf/tests/support/mod.rs"]
mod support;

use polydraft_gguf::Gguf;
use polydraft_text::{Language, Rendering};
use serde_json::json;
use support::Writer;

/// Renders a conversation without tools, and one with tools, by the file's templates.
fn rendered(named: &[(&str, &str)]) -> (String, String) {
    let mut writer = Writer::default()
        .str("tokenizer.ggml.model", "gpt2")
        .strings("tokenizer.ggml.tokens", &["a", "b", "<|im_end|>"])
        .strings("tokenizer.ggml.merges", &[])
        .u32("tokenizer.ggml.eos_token_id", 2)
        .str("tokenizer.chat_template", "plain{{ eos_token }}");
    for (name, template) in named {
        writer = writer.str(&format!("tokenizer.chat_template.{name}"), template);
    }
    let gguf = Gguf::from_bytes("t.gguf", writer.finish()).unwrap();
    let template = Language::from_gguf(&gguf, 3).unwrap().chat.unwrap();
    let tools = [json!({"type": "function", "function": {"name": "f"}})];
    (
        template.render(&[]).unwrap(),
        template.render_with(&[], &Rendering { tools: &tools, ..Rendering::default() }).unwrap(),
    )
}

#[test]
fn reads_tool_template_from_its_key() {
    let plain = "plain<|im_end|>".to_owned();
    assert_eq!(rendered(&[]), (plain.clone(), plain.clone()));
    assert_eq!(rendered(&[("rag", "other")]), (plain.clone(), plain.clone()));
    let with_tools =
        [("rag", "other"), ("tool_use", "{{ tools[0].function.name }}{{ eos_token }}")];
    assert_eq!(rendered(&with_tools), (plain, "f<|im_end|>".to_owned()));
}
