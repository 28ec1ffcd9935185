//! Parameters of vLLM's clients: tokens by id, truncation of prompts, usage in every chunk.

use std::time::Duration;

use crate::common::start;
use serde_json::{Value, json};

const NOW: Duration = Duration::ZERO;

fn chunks(events: &[&str]) -> Vec<Value> {
    events[..events.len() - 1].iter().map(|event| serde_json::from_str(event).unwrap()).collect()
}

/// Other strings are rejected (`refusals.rs`).
#[test]
fn accepts_flags_as_strings() {
    let server = start(Duration::ZERO, |_| ());
    let body = |flag: Value| {
        json!({ "messages": [{ "role": "user", "content": "a" }], "logprobs": flag,
        "max_tokens": 2, "seed": 1, "return_token_ids": flag })
    };
    let answer = |flag: Value| {
        let reply = server.post("/v1/chat/completions", &body(flag));
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()["choices"].clone()
    };
    assert_eq!(answer(json!("true")), answer(json!(true)));
    assert_eq!(answer(json!("false")), answer(json!(false)));
    assert_ne!(answer(json!("true")), answer(json!("false")));
    assert_eq!(server.post("/v1/chat/completions", &body(json!("True"))).status, 400);
    assert_eq!(server.post("/v1/chat/completions", &body(json!(1))).status, 400);
    let streamed = server.post("/v1/completions", &json!({ "prompt": "a", "stream": "true" }));
    assert_eq!(streamed.events().last(), Some(&"[DONE]"));
}

#[test]
fn allowed_token_ids_limit_sampling() {
    let server = start(NOW, |_| ());
    for speculation in [json!("none"), json!({ "verifier": "traversal" })] {
        let body = json!({ "prompt": "a", "seed": 3, "max_tokens": 60, "temperature": 1,
            "allowed_token_ids": [3, 1], "speculation": speculation });
        let text = server.complete(body)["choices"][0]["text"].as_str().unwrap().to_owned();
        let words: Vec<&str> = text.split_whitespace().collect();
        assert_eq!(words.len(), 60);
        assert!(words.contains(&"b") && words.contains(&"d"), "{text}");
        assert!(words.iter().all(|word| ["b", "d"].contains(word)), "{text}");
    }
    // An empty list does not limit the tokens.
    server.complete(json!({ "prompt": "a", "max_tokens": 2, "allowed_token_ids": [] }));
}

#[test]
fn logprob_token_ids_list_the_named_tokens() {
    let server = start(NOW, |_| ());
    // The target's distribution after "c a" is 0.1, 0.6, 0.1, 0.1, 0.1, 0; b is the likeliest.
    let body = json!({ "prompt": "c a", "temperature": 0, "max_tokens": 1,
        "logprob_token_ids": [2, 5], "return_tokens_as_token_ids": true });
    let answer = server.complete(body.clone());
    let logprobs = &answer["choices"][0]["logprobs"];
    let top = logprobs["top_logprobs"][0].as_object().unwrap();
    let names: Vec<&String> = top.keys().collect();
    assert_eq!(names, ["token_id:1", "token_id:2", "token_id:5"]);
    assert!((top["token_id:2"].as_f64().unwrap() - 0.1f64.ln()).abs() < 1e-6);
    assert!(top["token_id:5"].as_f64().unwrap() < -30.0);
    let mut chat = body;
    chat.as_object_mut().unwrap().remove("prompt");
    chat["messages"] = json!([{ "role": "user", "content": "c a" }]);
    let answer = server.post("/v1/chat/completions", &chat).json();
    let content = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let listed = content[0]["top_logprobs"].as_array().unwrap();
    assert_eq!(listed.len(), 3, "{answer}");
    assert_eq!(listed[0]["token"], "token_id:1");
}

#[test]
fn truncates_prompts_on_either_side() {
    let server = start(NOW, |_| ());
    let ids = |changes: Value| {
        let mut body = json!({ "prompt": [0, 1, 2, 3, 0, 1, 2, 3], "max_tokens": 1,
            "return_token_ids": true });
        body.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        let answer = server.complete(body);
        answer["choices"][0]["prompt_token_ids"].clone()
    };
    let truncation = |side| json!({ "truncate_prompt_tokens": 3, "truncation_side": side });
    assert_eq!(ids(truncation(json!("left"))), json!([1, 2, 3]));
    assert_eq!(ids(truncation(json!(null))), json!([1, 2, 3]));
    assert_eq!(ids(truncation(json!("right"))), json!([0, 1, 2]));
    assert_eq!(ids(json!({ "truncate_prompt_tokens": 9 })).as_array().unwrap().len(), 8);
    // -1 leaves room for the output.
    let long = json!({ "prompt": "a ".repeat(700), "truncate_prompt_tokens": -1,
        "max_tokens": 12 });
    assert_eq!(ids(long).as_array().unwrap().len(), 500);
    let messages = json!([{ "role": "user", "content": "a b ".repeat(700) + "d" }]);
    let body = json!({ "messages": messages, "truncate_prompt_tokens": 2, "max_tokens": 1,
        "return_token_ids": true });
    let answer = server.post("/v1/chat/completions", &body).json();
    assert_eq!(answer["prompt_token_ids"], json!([1, 3]));
}

#[test]
fn usage_in_every_chunk_on_request() {
    let server = start(NOW, |_| ());
    let options = json!({ "include_usage": true, "continuous_usage_stats": true });
    let messages = json!([{ "role": "user", "content": "a b" }]);
    let body = json!({ "messages": messages, "max_tokens": 40, "seed": 4, "logprobs": true,
        "stream": true, "stream_options": options });
    let reply = server.post("/v1/chat/completions", &body);
    let mut tokens = 0;
    for chunk in chunks(&reply.events()) {
        let choice = &chunk["choices"][0];
        tokens += choice["logprobs"]["content"].as_array().map_or(0, Vec::len);
        let usage = &chunk["usage"];
        assert_eq!(usage["prompt_tokens"], 2);
        // The chunk with the role comes before the first tokens.
        assert_eq!(usage["completion_tokens"], tokens, "{chunk}");
        let sum = ["prompt_tokens", "completion_tokens"].map(|name| usage[name].as_u64().unwrap());
        assert_eq!(usage["total_tokens"], sum.iter().sum::<u64>());
    }
    assert!(tokens > 0);
}

#[test]
fn stream_sends_the_role_before_content() {
    let server = start(NOW, |_| ());
    let messages = json!([{ "role": "user", "content": "a b" }]);
    let body = json!({ "messages": messages, "max_tokens": 5, "n": 2, "stream": true });
    let reply = server.post("/v1/chat/completions", &body);
    let mut started = [false; 2];
    for chunk in chunks(&reply.events()) {
        let choice = &chunk["choices"][0];
        let index = choice["index"].as_u64().unwrap() as usize;
        let expected = json!({ "role": "assistant", "content": "" });
        assert_eq!(choice["delta"] == expected, !started[index], "{chunk}");
        started[index] = true;
    }
    assert_eq!(started, [true; 2]);
}

#[test]
fn echo_repeats_the_continued_message() {
    let server = start(NOW, |_| ());
    let messages =
        json!([{ "role": "user", "content": "a" }, { "role": "assistant", "content": "b c" }]);
    let content = |echo: bool| {
        let body = json!({ "messages": messages, "max_tokens": 4, "seed": 6,
            "continue_final_message": true, "echo": echo });
        let answer = server.post("/v1/chat/completions", &body).json();
        answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    };
    assert_eq!(content(true), format!("b c{}", content(false)));
}

#[test]
fn context_option_limits_outputs_and_prompts() {
    let server = start(NOW, |options| options.context = Some(10));
    let body = |words: usize| {
        json!({ "prompt": "a ".repeat(words), "ignore_eos": true,
        "max_tokens": 100 })
    };
    let answer = server.complete(body(4));
    assert_eq!(answer["usage"]["completion_tokens"], 6);
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    let reply = server.post("/v1/completions", &body(10));
    assert_eq!(
        (reply.status, &reply.json()["error"]["code"]),
        (400, &json!("context_length_exceeded"))
    );
    assert_eq!(server.get("/v1/models").json()["data"][0]["max_model_len"], 10);
}

/// A verifier that is named stays, also if it is not exact for the tree.
#[test]
fn a_tree_without_a_verifier_gets_one_that_is_exact() {
    let server = start(NOW, |_| ());
    for tree in ["2,2/hub", "2,2/without-replacement", "2,1/top-k", "paths:2,3"] {
        let body = |speculation: Value| json!({ "prompt": "a b", "speculation": speculation });
        let answer = server.complete(body(json!({ "tree": tree })));
        assert!(answer["usage"]["speculation"].is_object(), "{tree}: {answer}");
        let named = body(json!({ "tree": tree, "verifier": "nested-priority" }));
        let status = server.post("/v1/completions", &named).status;
        assert_eq!(status == 200, tree == "paths:2,3", "{tree}: {status}");
    }
}

#[test]
fn minus_one_keeps_all_tokens() {
    let server = start(Duration::ZERO, |_| ());
    let text = |top_k: Option<i64>| {
        let body = json!({ "prompt": "a", "max_tokens": 12, "seed": 3, "top_k": top_k });
        server.complete(body)["choices"][0]["text"].clone()
    };
    let generated = |options: Value| {
        let mut options = options;
        (options["num_predict"], options["seed"]) = (12.into(), 3.into());
        let body = json!({ "prompt": "a", "raw": true, "stream": false, "options": options });
        server.post("/api/generate", &body).json()["response"].clone()
    };
    assert_eq!(text(Some(-1)), text(None));
    assert_ne!(text(Some(1)), text(None));
    assert_eq!(generated(json!({ "top_k": -1 })), generated(json!({})));
}
