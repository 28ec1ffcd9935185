//! Models that always write the same words.

use std::time::Duration;

use polydraft::Token;
use polydraft_server::ServerOptions;
use polydraft_text::Tokenizer;

use super::{TestServer, language_with_template, start_with_model};

/// Template of a model that reasons and calls tools; the prompt has a word per message and tool.
pub const AGENT: &str = "{% for tool in tools or [] %}go {% endfor %}\
    {% for m in messages %}{{ m.content or 'go' }} {% endfor %}\
    {# <think> </think> <tool_call>{\"name\": .., \"arguments\": ..}</tool_call> #}";

/// Starts a model that always writes these words, each of which is a token that occurs once.
pub fn start_script(
    template: &str,
    words: &[&str],
    change: impl FnOnce(&mut ServerOptions),
) -> TestServer {
    let (end, size) = (words.len(), words.len() + 2);
    assert!(size != 6, "tests have another draft of six tokens");
    let one = |token: usize| (0..size).map(|n| f64::from(n == token)).collect::<Vec<f64>>();
    let mut next = serde_json::json!({ "": one(0) });
    let mut vocab = serde_json::json!({ "end": end, "go": end + 1 });
    for (number, word) in words.iter().enumerate() {
        next[number.to_string()] = one(number + 1).into();
        vocab[word] = number.into();
    }
    let file = serde_json::json!({ "model": { "type": "WordLevel", "vocab": vocab,
        "unk_token": "go" }, "pre_tokenizer": { "type": "WhitespaceSplit" },
        "added_tokens": [{ "id": end, "content": "end", "special": true, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false }] });
    let tokenizer = Tokenizer::parse(file.to_string().as_bytes(), "tokenizer.json").unwrap();
    let language = language_with_template(tokenizer, template);
    let target = serde_json::json!({ "vocabulary": size, "next": next }).to_string();
    start_with_model(Duration::ZERO, vec![end as Token], language, &target, change)
}
