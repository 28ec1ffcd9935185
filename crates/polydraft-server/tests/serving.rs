//! Answers over loopback equal the output of the engine alone.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::common::start;
use serde_json::{Value, json};

const NOW: Duration = Duration::ZERO;

#[test]
fn completions_have_text_and_usage() {
    let server = start(NOW, |_| ());
    let answer = server.complete(json!({ "prompt": "a b", "seed": 7, "max_tokens": 12 }));
    assert_eq!((&answer["object"], &answer["model"]), (&json!("text_completion"), &json!("table")));
    assert!(!answer["choices"][0]["text"].as_str().unwrap().is_empty());
    let usage = &answer["usage"];
    assert_eq!(usage["prompt_tokens"], 2);
    let tokens = usage["completion_tokens"].as_u64().unwrap();
    assert!(tokens <= 12 && usage["total_tokens"].as_u64() == Some(tokens + 2));
    assert!(usage["speculation"]["target_calls"].as_u64().unwrap() <= tokens);
}

/// The first of `n` outputs of each prompt in a list equals the output of that prompt alone.
#[test]
fn prompts_may_be_tokens_or_lists_and_echoed() {
    let server = start(NOW, |_| ());
    let answer = server.complete(json!({ "prompt": "a b", "seed": 7, "max_tokens": 12 }));
    let text = answer["choices"][0]["text"].as_str().unwrap().to_owned();
    let same = server.complete(json!({ "prompt": [0, 1], "seed": 7, "max_tokens": 12 }));
    assert_eq!(same["choices"][0]["text"], *text);
    let body = json!({ "prompt": ["a b", "c"], "seed": 7, "max_tokens": 12, "n": 3, "echo": true,
        "user": "me" });
    let batch = server.complete(body);
    let outputs: Vec<&str> =
        batch["choices"].as_array().unwrap().iter().map(|c| c["text"].as_str().unwrap()).collect();
    assert_eq!(outputs.len(), 6);
    assert_eq!(outputs[0], format!("a b{text}"));
    assert!(
        outputs[..3].iter().any(|other| *other != outputs[0])
            && outputs[3..].iter().all(|text| text.starts_with('c'))
    );
}

#[test]
fn stop_strings_and_token_limits_end_outputs() {
    let server = start(NOW, |_| ());
    let body = json!({ "prompt": "a", "seed": 3, "max_tokens": 400, "stop": ["d a"] });
    let stopped = server.complete(body);
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    assert!(!stopped["choices"][0]["text"].as_str().unwrap().contains("d a"));
    let none = server.complete(json!({ "prompt": "a", "max_tokens": 0 }));
    assert_eq!(
        (&none["choices"][0]["text"], &none["choices"][0]["finish_reason"]),
        (&json!(""), &json!("length"))
    );
}

#[test]
fn completion_stream_equals_full_answer() {
    let server = start(NOW, |_| ());
    let body = |stream| {
        json!({ "prompt": "a b", "seed": 11, "max_tokens": 40, "n": 2,
        "logprobs": 2, "stream": stream })
    };
    let full = server.complete(body(false));
    let mut streamed = body(true);
    streamed["stream_options"] = json!({ "include_usage": true });
    let reply = server.post("/v1/completions", &streamed);
    assert!(reply.head.contains("text/event-stream"), "{}", reply.head);
    let events = reply.events();
    assert_eq!(events.last(), Some(&"[DONE]"));
    let chunks: Vec<Value> = events[..events.len() - 1]
        .iter()
        .map(|event| serde_json::from_str(event).unwrap())
        .collect();
    let (usage, chunks) = chunks.split_last().unwrap();
    assert_eq!(usage["usage"]["completion_tokens"], full["usage"]["completion_tokens"]);
    assert_eq!(usage["choices"], json!([]));
    for index in 0..2 {
        let choices = chunks
            .iter()
            .map(|chunk| &chunk["choices"][0])
            .filter(|choice| choice["index"] == index);
        let choices: Vec<&Value> = choices.collect();
        let text: String = choices.iter().map(|choice| choice["text"].as_str().unwrap()).collect();
        let expected = &full["choices"][index];
        assert_eq!(expected["text"], text);
        for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            let joined = choices.iter().filter_map(|choice| choice["logprobs"][list].as_array());
            let joined: Vec<Value> = joined.flatten().cloned().collect();
            assert_eq!(expected["logprobs"][list], Value::Array(joined), "{list}");
        }
        assert_eq!(choices.last().unwrap()["finish_reason"], expected["finish_reason"]);
        assert!(
            choices[..choices.len() - 1].iter().all(|choice| choice["finish_reason"].is_null())
        );
    }
}

#[test]
fn logprobs_are_those_of_the_target() {
    let server = start(NOW, |_| ());
    let body =
        json!({ "prompt": "c a", "seed": 2, "max_tokens": 1, "logprobs": 5, "temperature": 0 });
    let answer = server.complete(body);
    let logprobs = &answer["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["b"]));
    assert!((logprobs["token_logprobs"][0].as_f64().unwrap() - 0.6f64.ln()).abs() < 1e-6);
    assert!((logprobs["top_logprobs"][0]["d"].as_f64().unwrap() - 0.1f64.ln()).abs() < 1e-6);
}

#[test]
fn applies_logit_bias_and_penalties() {
    let server = start(NOW, |_| ());
    // Only two tokens are possible; at temperature 0 the penalties alternate them.
    let bias = json!({ "2": -100, "3": -100, "4": -100, "5": -100 });
    let mut body = json!({ "prompt": "a", "temperature": 0, "max_tokens": 6, "logit_bias": bias });
    let text = |body: &Value| {
        server.complete(body.clone())["choices"][0]["text"].as_str().unwrap().trim().to_owned()
    };
    assert_eq!(text(&body), "b a b a b a");
    body["presence_penalty"] = json!(2);
    body["frequency_penalty"] = json!(2);
    body["prompt"] = json!("c c");
    let penalised = text(&body);
    body["speculation"] = json!("none");
    assert_eq!(text(&body), penalised);
    assert_eq!(penalised.matches('a').count(), 3);
}

#[test]
fn streams_engine_steps_on_request() {
    let server = start(NOW, |_| ());
    let body = json!({ "prompt": "a b", "seed": 4, "max_tokens": 30, "stream": true, "steps": 3 });
    let reply = server.post("/v1/completions", &body);
    let events = reply.events();
    let chunks = events[..events.len() - 1]
        .iter()
        .map(|event| serde_json::from_str::<Value>(event).unwrap());
    let steps: Vec<Value> =
        chunks.filter_map(|chunk| chunk["steps"].as_array().cloned()).flatten().collect();
    let tokens: usize =
        steps.iter().map(|step| 1 + step["accepted"].as_array().unwrap().len()).sum();
    let usage =
        server.complete(json!({ "prompt": "a b", "seed": 4, "max_tokens": 30 }))["usage"].clone();
    assert_eq!(usage["speculation"]["target_calls"], steps.len());
    // The last step may decide more tokens than the output takes.
    assert!((tokens as u64) >= usage["completion_tokens"].as_u64().unwrap());
    assert_eq!(steps[0]["nodes"][0]["target"].as_array().unwrap().len(), 3);
}

#[test]
fn chat_answers_as_the_same_completion() {
    let server = start(NOW, |_| ());
    let messages = json!([{ "role": "developer", "content": "a" },
        { "role": "user", "content": [{ "type": "text", "text": "b" }] }]);
    let body = json!({ "model": "table", "messages": messages, "seed": 5,
        "max_completion_tokens": 9, "logprobs": true,
        "top_logprobs": 2, "presence_penalty": 0, "tools": null });
    let reply = server.post("/v1/chat/completions", &body);
    assert_eq!(reply.status, 200, "{reply:?}");
    let answer = reply.json();
    assert_eq!(answer["object"], "chat.completion");
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["role"], "assistant");
    let content = choice["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len() as u64, answer["usage"]["completion_tokens"].as_u64().unwrap());
    assert_eq!(content[0]["top_logprobs"].as_array().unwrap().len(), 2);
    // The output equals that of a completion.
    let same = server.complete(json!({ "prompt": "a b", "seed": 5, "max_tokens": 9 }));
    assert_eq!(same["choices"][0]["text"], choice["message"]["content"]);
    let mut streamed = body;
    streamed["stream"] = true.into();
    let reply = server.post("/v1/chat/completions", &streamed);
    let events = reply.events();
    let first: Value = serde_json::from_str(events[0]).unwrap();
    assert_eq!(first["object"], "chat.completion.chunk");
    assert_eq!(first["choices"][0]["delta"]["role"], "assistant");
    let text: String = events[..events.len() - 1]
        .iter()
        .map(|event| serde_json::from_str::<Value>(event).unwrap())
        .filter_map(|chunk| Some(chunk["choices"][0]["delta"]["content"].as_str()?.to_owned()))
        .collect();
    assert_eq!(choice["message"]["content"], text);
}

#[test]
fn responses_answer_as_the_same_completion() {
    let server = start(NOW, |_| ());
    let input = json!([{ "role": "user", "content": "b" },
        { "type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
          "content": [{ "type": "output_text", "text": "c" }] },
        { "role": "user", "content": [{ "type": "input_text", "text": "a" }] }]);
    let body = json!({ "instructions": "a", "input": input, "seed": 5, "max_output_tokens": 9,
        "store": false });
    let reply = server.post("/v1/responses", &body);
    assert_eq!(reply.status, 200, "{reply:?}");
    let answer = reply.json();
    let same = server.complete(json!({ "prompt": "a b c a", "seed": 5, "max_tokens": 9 }));
    let text = same["choices"][0]["text"].as_str().unwrap();
    assert_eq!(answer["output"][0]["content"][0]["text"], text);
    let truncated = same["choices"][0]["finish_reason"] == "length";
    assert_eq!(answer["status"], if truncated { "incomplete" } else { "completed" });
    assert_eq!(answer["usage"]["output_tokens"], same["usage"]["completion_tokens"]);
    // null is equivalent to a missing field, also within objects.
    let mut unset = body.clone();
    unset["text"] = json!({ "verbosity": null, "format": { "type": "text" } });
    unset["reasoning"] = json!({ "effort": null, "summary": null });
    assert_eq!(
        server.post("/v1/responses", &unset).json()["output"][0]["content"][0]["text"],
        text
    );
    let mut streamed = body;
    streamed["stream"] = true.into();
    let reply = server.post("/v1/responses", &streamed);
    let events: Vec<Value> =
        reply.events().into_iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    assert!(events.iter().enumerate().all(|(number, event)| event["sequence_number"] == number));
    let names: Vec<&str> =
        reply.body.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    assert_eq!(
        names,
        events.iter().map(|event| event["type"].as_str().unwrap()).collect::<Vec<_>>()
    );
    let deltas: String = events.iter().filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(deltas, text);
    let last = &events.last().unwrap()["response"];
    assert_eq!(
        (&last["output"][0]["content"], &last["usage"]),
        (&answer["output"][0]["content"], &answer["usage"])
    );
}

#[test]
fn responses_reject_unsupported_parameters() {
    let server = start(NOW, |_| ());
    for (name, value, param) in [
        ("n", json!(2), "n"),
        ("text", json!({ "format": { "type": "xml" } }), "text.format"),
        ("input", json!([{ "type": "function_call_output", "output": "a" }]), "input[0].call_id"),
    ] {
        let mut body = json!({ "input": "a", "max_output_tokens": 2 });
        body[name] = value;
        let reply = server.post("/v1/responses", &body);
        assert_eq!(
            (reply.status, &reply.json()["error"]["param"]),
            (400, &json!(param)),
            "{reply:?}"
        );
    }
}

#[test]
fn responses_accept_parameters_without_effect() {
    let server = start(NOW, |_| ());
    let harmless = json!({ "input": "a", "max_output_tokens": 2, "store": true,
        "text": { "verbosity": "low" }, "reasoning": { "effort": "low", "summary": null },
        "include": ["reasoning.encrypted_content"], "truncation": "auto" });
    let reply = server.post("/v1/responses", &harmless);
    let effort = "reasoning.effort (the chat template does not read it)";
    assert_eq!(
        (reply.status, reply.ignored()),
        (200, vec!["truncation", "text.verbosity", effort]),
        "{reply:?}"
    );
}

/// Alone, next to eight others, and next to some that fail: equal bit for bit.
#[test]
fn same_output_for_a_seed_under_any_load() {
    let server = start(Duration::from_millis(1), |_| ());
    let verifiers = [
        json!("none"),
        json!({}),
        json!({ "verifier": "block", "tree": "paths:1,4" }),
        json!({ "verifier": "traversal", "tree": "2,2,1" }),
        json!({ "tree": "auto" }),
    ];
    for speculation in verifiers {
        let body = json!({ "prompt": "a c", "seed": 42, "max_tokens": 120, "n": 2, "logprobs": 1,
            "temperature": 1.2,
            "speculation": speculation });
        let alone = server.complete(body.clone());
        std::thread::scope(|scope| {
            for other in 0..8 {
                let server = &server;
                scope.spawn(move || {
                    for round in 0..3 {
                        let length = 5 + 17 * ((other + round) % 4);
                        let body = json!({ "prompt": "a b c d", "max_tokens": length,
                            "n": 1 + other % 2,
                            "speculation":
                                if other % 3 == 0 { json!("none") } else { json!({}) } });
                        server.complete(body);
                    }
                });
            }
            // The first one fails before it, the others during it.
            for number in 0..4 {
                let server = &server;
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_millis(15 * number));
                    let body = json!({ "prompt": "a x", "max_tokens": 9 });
                    assert_eq!(server.post("/v1/completions", &body).status, 500);
                });
            }
            std::thread::sleep(Duration::from_millis(5));
            let among = server.complete(body);
            assert_eq!(among["choices"], alone["choices"]);
            assert_eq!(among["usage"], alone["usage"]);
        });
    }
    assert!(server.max_batch.load(Ordering::SeqCst) >= 6, "texts were decoded together");
    assert_eq!(server.open.load(Ordering::SeqCst), 0);
}
