//! Interfaces other than OpenAI's, and requests of other servers' clients: answers equal those in
//! OpenAI's form.

use crate::common;

use std::time::Duration;

use crate::common::{
    TestServer, start, start_byte_tokens, start_reasoning_model, start_tool_calling_model,
    start_with_prefix_cache,
};
use serde_json::{Value, json};

const NOW: Duration = Duration::ZERO;

fn post(server: &TestServer, path: &str, body: Value) -> Value {
    let reply = server.post(path, &body);
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

fn user_message(content: &str) -> Value {
    json!([{ "role": "user", "content": content }])
}

#[test]
fn anthropic_messages_equal_chat_answers() {
    let server = start(NOW, |_| ());
    let chat = post(
        &server,
        "/v1/chat/completions",
        json!({ "messages": [
        { "role": "system", "content": "c" }, { "role": "user", "content": "a b" }],
        "seed": 7, "max_tokens": 12, "temperature": 0.9 }),
    );
    let body = |stream| {
        json!({ "model": "table", "system": [{ "type": "text", "text": "c" }],
            "messages": [{ "role": "user", "content": [{ "type": "text", "text": "a b" }] }],
            "seed": 7, "max_tokens": 12, "temperature": 0.9, "metadata": { "user_id": "me" },
            "stream": stream })
    };
    let answer = post(&server, "/v1/messages", body(false));
    let text = &chat["choices"][0]["message"]["content"];
    assert_eq!(answer["content"], json!([{ "type": "text", "text": text }]));
    assert_eq!((&answer["type"], &answer["role"]), (&json!("message"), &json!("assistant")));
    let usage = &answer["usage"];
    let input = usage["input_tokens"].as_u64().unwrap();
    let cached = usage["cache_read_input_tokens"].as_u64().unwrap();
    let created = usage["cache_creation_input_tokens"].as_u64().unwrap();
    assert_eq!(Some(input + cached + created), chat["usage"]["prompt_tokens"].as_u64());
    assert_eq!(usage["output_tokens"], chat["usage"]["completion_tokens"]);
    let counted = post(&server, "/v1/messages/count_tokens", body(false));
    assert_eq!(counted["input_tokens"], chat["usage"]["prompt_tokens"]);

    let reply = server.post("/v1/messages", &body(true));
    let names: Vec<&str> =
        reply.body.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    assert_eq!(names[..2], ["message_start", "content_block_start"]);
    assert_eq!(names[names.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    let events: Vec<Value> =
        reply.events().iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    let deltas: String =
        events.iter().filter_map(|event| event["delta"]["text"].as_str()).collect();
    assert_eq!(json!(deltas), *text);
    let last = &events[events.len() - 2];
    assert_eq!(last["delta"]["stop_reason"], answer["stop_reason"]);
    assert_eq!(last["usage"], *usage);
    // At the start, the cached part is not known yet.
    assert_eq!(events[0]["message"]["usage"]["input_tokens"], counted["input_tokens"]);
    // Errors are in Anthropic's form.
    let rejected =
        server.post("/v1/messages", &json!({ "messages": user_message("bad"), "max_tokens": 1 }));
    assert_eq!((rejected.status, &rejected.json()["type"]), (400, &json!("error")), "{rejected:?}");
    assert_eq!(rejected.json()["error"]["type"], "invalid_request_error");
    let image = json!({ "messages": [{ "role": "user", "content": [{ "type": "image" }] }] });
    assert_eq!(server.post("/v1/messages", &image).status, 400);
    // The stop string that ended the answer is returned.
    let stopped = (0..40).any(|seed| {
        let stops = json!({ "messages": user_message("a"), "max_tokens": 300, "seed": seed,
            "stop_sequences": ["d a"] });
        let stopped = post(&server, "/v1/messages", stops);
        let named = stopped["stop_sequence"] == "d a";
        assert_eq!(stopped["stop_reason"] == "stop_sequence", named, "{stopped}");
        named
    });
    assert!(stopped);
}

/// The prompt in three parts: read from the prefix cache, written to it, and the last token.
#[test]
fn anthropic_usage_counts_tokens_written_to_the_cache() {
    let usage_parts = |server: &TestServer| {
        let body = json!({ "messages": user_message("a b c d"), "max_tokens": 2 });
        let usage = post(server, "/v1/messages", body)["usage"].clone();
        ["cache_read_input_tokens", "cache_creation_input_tokens", "input_tokens"]
            .map(|name| usage[name].as_u64().unwrap())
    };
    assert_eq!(usage_parts(&start_with_prefix_cache()), [0, 3, 1]);
    // Everything was in the cache, and nothing is written to it.
    assert_eq!(usage_parts(&start(NOW, |_| ())), [3, 0, 1]);
}

#[test]
fn anthropic_tool_calls_and_results() {
    let server = start_tool_calling_model();
    let tool = json!({ "name": "f", "description": "d", "input_schema": { "type": "object" } });
    let mut body =
        json!({ "messages": user_message("b"), "tools": [tool], "max_tokens": 20, "seed": 1 });
    let answer = post(&server, "/v1/messages", body.clone());
    let call = &answer["content"][0];
    assert_eq!(answer["stop_reason"], "tool_use", "{answer}");
    assert_eq!((&call["name"], &call["input"]), (&json!("f"), &json!({ "a": 1 })));
    body["stream"] = true.into();
    let reply = server.post("/v1/messages", &body);
    let events: Vec<Value> =
        reply.events().iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    let json: String =
        events.iter().filter_map(|event| event["delta"]["partial_json"].as_str()).collect();
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), json!({ "a": 1 }));
    // The call and its result are sent back.
    body["stream"] = false.into();
    body["messages"] = json!([{ "role": "user", "content": "b" },
        { "role": "assistant", "content": [call] },
        { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": call["id"],
            "content": [{ "type": "text", "text": "4" }] }] }]);
    assert_eq!(post(&server, "/v1/messages", body)["stop_reason"], "tool_use");
}

#[test]
fn ollama_routes_equal_openai_answers() {
    let server = start(NOW, |_| ());
    let options = json!({ "num_predict": 12, "temperature": 0.9, "seed": 7, "num_ctx": 4096 });
    let chat = post(
        &server,
        "/v1/chat/completions",
        json!({ "messages": user_message("a b"), "seed": 7,
        "max_tokens": 12, "temperature": 0.9 }),
    );
    let text = &chat["choices"][0]["message"]["content"];
    let body = |stream| {
        json!({ "model": "table:latest", "messages": user_message("a b"), "options": options,
            "stream": stream, "keep_alive": "5m" })
    };
    let answer = post(&server, "/api/chat", body(json!(false)));
    assert_eq!(answer["message"], json!({ "role": "assistant", "content": text }));
    assert_eq!((&answer["done"], &answer["model"]), (&json!(true), &json!("table:latest")));
    assert_eq!(answer["eval_count"], chat["usage"]["completion_tokens"]);
    // Ollama streams by default.
    let reply = server.post("/api/chat", &body(Value::Null));
    assert!(reply.head.contains("application/x-ndjson"), "{}", reply.head);
    let lines: Vec<Value> =
        reply.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let streamed: String =
        lines.iter().map(|line| line["message"]["content"].as_str().unwrap()).collect();
    assert_eq!(json!(streamed), *text);
    let done: Vec<bool> = lines.iter().map(|line| line["done"].as_bool().unwrap()).collect();
    assert!(done.iter().rev().skip(1).all(|done| !done) && done.last() == Some(&true));
    let raw = post(
        &server,
        "/api/generate",
        json!({ "prompt": "a b", "raw": true, "stream": false,
        "options": options }),
    );
    let completion = server.complete(json!({ "prompt": "a b", "seed": 7, "max_tokens": 12,
        "temperature": 0.9 }));
    assert_eq!(raw["response"], completion["choices"][0]["text"]);
    let body = json!({ "prompt": "a b", "stream": false, "options": options });
    assert_eq!(post(&server, "/api/generate", body)["response"], *text);
    let rejected =
        server.post("/api/chat", &json!({ "model": "other-one", "messages": user_message("a") }));
    assert_eq!(
        (rejected.status, rejected.json()["error"].is_string()),
        (404, true),
        "{rejected:?}"
    );
    assert_eq!(server.get("/api/tags").json()["models"][0]["name"], "table");
    let description = post(&server, "/api/show", json!({ "model": "table" }));
    assert_eq!(description["capabilities"], json!(["completion"]));
    assert!(server.get("/api/version").json()["version"].is_string());
}

#[test]
fn tokenizes_and_detokenizes() {
    let server = start(NOW, |_| ());
    let tokens = post(&server, "/tokenize", json!({ "prompt": "b c", "return_token_strs": true }));
    assert_eq!((&tokens["tokens"], &tokens["count"]), (&json!([1, 2]), &json!(2)));
    assert_eq!(tokens["token_strs"], json!(["b", "c"]));
    let pieces = post(&server, "/tokenize", json!({ "content": "b", "with_pieces": true }));
    assert_eq!(pieces["tokens"], json!([{ "id": 1, "piece": "b" }]));
    let chat = post(&server, "/tokenize", json!({ "messages": user_message("b c") }));
    assert_eq!(chat["tokens"], json!([1, 2]));
    let text = post(&server, "/detokenize", json!({ "tokens": [1, 2] }));
    assert_eq!((&text["prompt"], &text["content"]), (&json!("b c"), &json!("b c")));
    let prompt = post(&server, "/apply-template", json!({ "messages": user_message("b c") }));
    assert_eq!(prompt["prompt"], "b c ");
    assert_eq!(server.get("/props").json()["default_generation_settings"]["n_ctx"], 512);
    assert_eq!(server.get("/tokenizer_info").json()["vocab_size"], 6);
    assert_eq!(server.post("/detokenize", &json!({ "tokens": [9] })).status, 400);
    assert_eq!(server.post("/tokenize", &json!({})).status, 400);
    // Routes work with and without /v1.
    assert_eq!(server.get("/models").json(), server.get("/v1/models").json());
    let body = json!({ "prompt": "a", "seed": 1, "model": "other" });
    let answer = post(&server, "/completions", body.clone());
    let same = post(&server, "/v1/completions", body);
    assert_eq!(answer["choices"], same["choices"]);
    assert_eq!(
        (&answer["model"], answer["system_fingerprint"].is_string()),
        (&json!("other"), true)
    );
}

#[test]
fn accepts_the_key_in_either_header() {
    let server = start(NOW, |options| options.api_key = Some("secret".to_owned()));
    for (header, status) in
        [("X-Api-Key: secret", 200), ("Authorization: Bearer secret", 200), ("X-Api-Key: b", 401)]
    {
        let head = format!("GET /v1/models HTTP/1.1\r\n{header}");
        assert_eq!(common::reply(server.send(&head, b"")).status, status, "{header}");
    }
    let rejected = server.post("/v1/messages", &json!({}));
    assert_eq!((rejected.status, &rejected.json()["type"]), (401, &json!("error")));
}

/// A prompt's tokens have the scores that they would have as output.
#[test]
fn prompt_logprobs_are_those_of_the_target() {
    let server = start(NOW, |_| ());
    let body = json!({ "prompt": ["a b d", "c"], "echo": true, "logprobs": 2, "max_tokens": 0,
        "n": 2 });
    let answer = server.complete(body.clone());
    let logprobs = &answer["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["a", "b", "d"]), "{answer}");
    assert_eq!(
        (&logprobs["token_logprobs"][0], &logprobs["top_logprobs"][0]),
        (&Value::Null, &Value::Null)
    );
    let probability = |number: usize| logprobs["token_logprobs"][number].as_f64().unwrap().exp();
    // P(b | a) = 0.6 and P(d | a b) = 0.45.
    assert!(
        (probability(1) - 0.6).abs() < 1e-6 && (probability(2) - 0.45).abs() < 1e-6,
        "{logprobs}"
    );
    assert_eq!(logprobs["top_logprobs"][2].as_object().unwrap().len(), 2);
    assert_eq!(answer["choices"][1]["logprobs"], *logprobs);
    assert_eq!(answer["choices"][2]["logprobs"]["token_logprobs"], json!([null]));
    // Scores of the output follow those of the prompt.
    let mut longer = body;
    (longer["max_tokens"], longer["seed"]) = (3.into(), 5.into());
    let answer = server.complete(longer.clone());
    let choice = &answer["choices"][0];
    let tokens = choice["logprobs"]["tokens"].as_array().unwrap().len();
    assert!(tokens > 3 && choice["logprobs"]["text_offset"].as_array().unwrap().len() == tokens);
    longer["stream"] = true.into();
    let reply = server.post("/v1/completions", &longer);
    let streamed: Vec<Value> = reply
        .events()
        .iter()
        .filter_map(|event| serde_json::from_str::<Value>(event).ok())
        .filter(|chunk| chunk["choices"][0]["index"] == 0)
        .flat_map(|chunk| {
            let logprobs = &chunk["choices"][0]["logprobs"]["token_logprobs"];
            logprobs.as_array().cloned().unwrap_or_default()
        })
        .collect();
    assert_eq!(json!(streamed), choice["logprobs"]["token_logprobs"]);
    let listed = server.complete(json!({ "prompt": "a b", "prompt_logprobs": 1, "max_tokens": 1 }));
    let of_second = &listed["choices"][0]["prompt_logprobs"][1]["1"];
    assert!((of_second["logprob"].as_f64().unwrap().exp() - 0.6).abs() < 1e-6, "{listed}");
    assert_eq!((&of_second["rank"], &of_second["decoded_token"]), (&json!(1), &json!("b")));
    let chat = json!({ "messages": user_message("a b"), "prompt_logprobs": 0, "max_tokens": 1 });
    let chat = post(&server, "/v1/chat/completions", chat);
    assert_eq!(chat["prompt_logprobs"].as_array().unwrap().len(), 2, "{chat}");
}

/// Token ids decode to the text, with and without a stream. Log-probabilities are included only on
/// request.
#[test]
fn returns_token_ids_on_request() {
    let server = start(NOW, |_| ());
    let ids = |value: &Value| -> Vec<u64> {
        value.as_array().into_iter().flatten().map(|id| id.as_u64().unwrap()).collect()
    };
    let body = json!({ "messages": user_message("a b"), "return_token_ids": true, "seed": 1,
        "max_tokens": 4, "ignore_eos": true });
    let full = post(&server, "/v1/chat/completions", body.clone());
    let choice = &full["choices"][0];
    assert_eq!(ids(&full["prompt_token_ids"]), [0, 1], "{full}");
    let token_ids = ids(&choice["token_ids"]);
    assert_eq!((token_ids.len(), &choice["logprobs"]), (4, &Value::Null), "{full}");
    let words: Vec<_> = ["a", "b", "c", "d", "end", "x"].into();
    // A special token is not part of the text.
    let expected: Vec<_> =
        token_ids.iter().map(|id| words[*id as usize]).filter(|word| *word != "end").collect();
    let content = choice["message"]["content"].as_str().unwrap();
    assert_eq!(content.split_whitespace().collect::<Vec<_>>(), expected, "{full}");
    let mut stream = body.clone();
    stream["stream"] = json!(true);
    let chunks: Vec<Value> = server
        .post("/v1/chat/completions", &stream)
        .events()
        .iter()
        .filter_map(|event| serde_json::from_str(event).ok())
        .collect();
    assert_eq!(ids(&chunks[0]["prompt_token_ids"]), [0, 1]);
    assert!(chunks[1..].iter().all(|chunk| chunk.get("prompt_token_ids").is_none()));
    let streamed: Vec<_> =
        chunks.iter().flat_map(|chunk| ids(&chunk["choices"][0]["token_ids"])).collect();
    assert_eq!(streamed, token_ids);
    let named = json!({ "messages": user_message("a b"), "return_tokens_as_token_ids": true,
        "seed": 1, "max_tokens": 2, "logprobs": true });
    let named = post(&server, "/v1/chat/completions", named);
    let token = named["choices"][0]["logprobs"]["content"][0]["token"].as_str().unwrap();
    assert!(token.starts_with("token_id:"), "{named}");
    let plain = json!({ "messages": user_message("a b"), "max_tokens": 2 });
    let plain = post(&server, "/v1/chat/completions", plain);
    assert!(plain["prompt_token_ids"].is_null(), "{plain}");
    assert!(plain["choices"][0]["token_ids"].is_null(), "{plain}");
}

#[test]
fn min_tokens_ignore_eos_and_stop_token_ids() {
    let server = start(NOW, |_| ());
    let tokens =
        |body: Value| server.complete(body)["usage"]["completion_tokens"].as_u64().unwrap();
    for seed in 0..20 {
        let body = |name: &str, value: Value| {
            let mut body = json!({ "prompt": "a", "seed": seed, "max_tokens": 30 });
            body[name] = value;
            body
        };
        assert!(tokens(body("min_tokens", json!(12))) >= 12);
        assert_eq!(tokens(body("ignore_eos", json!(true))), 30);
        let stopped = server.complete(body("stop_token_ids", json!([1])));
        // The stop token itself is the last one, as an end token is.
        let text = stopped["choices"][0]["text"].as_str().unwrap();
        assert!(!text.trim_end_matches(" b").contains('b'), "{text}");
        let repeated = server.complete(body("repetition_penalty", json!(1.3)));
        assert_eq!(repeated["object"], "text_completion");
    }
}

#[test]
fn continues_a_final_assistant_message() {
    let server = start(NOW, |_| ());
    let messages = json!([{ "role": "user", "content": "a" },
        { "role": "assistant", "content": "b" }]);
    let body = json!({ "messages": messages, "continue_final_message": true, "seed": 3,
        "max_tokens": 8, "add_generation_prompt": false });
    let chat = post(&server, "/v1/chat/completions", body.clone());
    assert_eq!(chat["usage"]["prompt_tokens"], 2);
    let anthropic = json!({ "messages": messages, "seed": 3, "max_tokens": 8 });
    let message = post(&server, "/v1/messages", anthropic);
    assert_eq!(message["content"][0]["text"], chat["choices"][0]["message"]["content"]);
    let mut rejected = body;
    rejected["add_generation_prompt"] = true.into();
    assert_eq!(server.post("/v1/chat/completions", &rejected).status, 400);
}

#[test]
fn separates_reasoning_on_all_routes() {
    let server = start_reasoning_model();
    let mut body = json!({ "messages": user_message("a"), "max_tokens": 40, "seed": 1 });
    let answer = post(&server, "/v1/chat/completions", body.clone());
    let message = &answer["choices"][0]["message"];
    assert_eq!((&message["reasoning_content"], &message["content"]), (&json!("a"), &json!("b")));
    body["stream"] = true.into();
    let reply = server.post("/v1/chat/completions", &body);
    let chunks: Vec<Value> =
        reply.events().iter().filter_map(|event| serde_json::from_str(event).ok()).collect();
    let probability = |field: &str| -> String {
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"][field].as_str()).collect()
    };
    assert_eq!(
        (probability("reasoning_content"), probability("content")),
        ("a".to_owned(), "b".to_owned())
    );
    body["stream"] = false.into();
    body["reasoning_format"] = "none".into();
    let full = post(&server, "/v1/chat/completions", body);
    assert_eq!(full["choices"][0]["message"]["content"], " a </think> b");
    let body = json!({ "messages": user_message("a"), "max_tokens": 40 });
    let message = post(&server, "/v1/messages", body);
    assert_eq!(message["content"][0]["thinking"], "a");
    assert_eq!(message["content"][1]["text"], "b");
    let lines = json!({ "messages": user_message("a"), "stream": false });
    let line = post(&server, "/api/chat", lines);
    let thinking_and_content = (&line["message"]["thinking"], &line["message"]["content"]);
    assert_eq!(thinking_and_content, (&json!("a"), &json!("b")));
    for stream in [false, true] {
        let body = json!({ "input": "a", "stream": stream });
        let reply = server.post("/v1/responses", &body);
        let response = match stream {
            false => reply.json(),
            true => {
                let last: Value = serde_json::from_str(reply.events().last().unwrap()).unwrap();
                last["response"].clone()
            }
        };
        let output = &response["output"];
        assert_eq!(
            (&output[0]["type"], &output[1]["type"]),
            (&json!("reasoning"), &json!("message"))
        );
        assert_eq!(output[0]["content"][0]["text"], "a", "{response}");
        assert_eq!(output[1]["content"][0]["text"], "b");
    }
}

#[test]
fn responses_continue_stored_answers() {
    let server = start(NOW, |_| ());
    let first = post(
        &server,
        "/v1/responses",
        json!({ "input": "a b", "seed": 1,
        "max_output_tokens": 4 }),
    );
    let text = &first["output"][0]["content"][0]["text"];
    let next = post(
        &server,
        "/v1/responses",
        json!({ "input": "c", "seed": 2,
        "previous_response_id": first["id"], "max_output_tokens": 4 }),
    );
    let full = post(
        &server,
        "/v1/responses",
        json!({ "seed": 2, "max_output_tokens": 4,
        "input": [{ "role": "user", "content": "a b" }, { "role": "assistant", "content": text },
            { "role": "user", "content": "c" }] }),
    );
    assert_eq!(next["output"][0]["content"], full["output"][0]["content"]);
    assert_eq!(next["usage"]["input_tokens"], full["usage"]["input_tokens"]);
    assert_eq!(next["previous_response_id"], first["id"]);
    let path = format!("/v1/responses/{}", first["id"].as_str().unwrap());
    assert_eq!(server.get(&path).json(), first);
    assert_eq!(common::reply(server.send(&format!("DELETE {path} HTTP/1.1"), b"")).status, 200);
    assert_eq!(server.get(&path).status, 404);
    // With `store` false it is not stored.
    let body = json!({ "input": "a", "store": false, "max_output_tokens": 2 });
    let unstored = post(&server, "/v1/responses", body);
    let gone = json!({ "input": "a", "previous_response_id": unstored["id"] });
    assert_eq!(server.post("/v1/responses", &gone).status, 404);
}

#[test]
fn structured_outputs_have_the_requested_form() {
    let server = start_byte_tokens();
    let probability = |outputs: Value| {
        let body = json!({ "prompt": "a", "max_tokens": 12, "structured_outputs": outputs });
        server.complete(body)["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    for _ in 0..10 {
        assert!(["a{", "{a"].contains(&probability(json!({ "choice": ["a{", "{a"] })).as_str()));
        let matched = probability(json!({ "regex": "a{2,3}[}]" }));
        assert!(["aa}", "aaa}"].contains(&matched.as_str()), "{matched}");
        assert_eq!(probability(json!({ "grammar": "start: \"a\" b\nb: \"{\" \"a\"" })), "a{a");
        assert_eq!(probability(json!({ "json": { "const": "aa" } })), "\"aa\"");
    }
    let guided = json!({ "prompt": "a", "max_tokens": 12, "guided_choice": ["aa"] });
    assert_eq!(server.complete(guided)["choices"][0]["text"], "aa");
    let twice = json!({ "prompt": "a", "guided_choice": ["aa"],
        "response_format": { "type": "json_object" } });
    assert_eq!(server.post("/v1/completions", &twice).status, 400);
    let rejected = json!({ "prompt": "a", "structured_outputs": { "regex": "(" } });
    let reply = server.post("/v1/completions", &rejected);
    let param = reply.json()["error"]["param"].clone();
    assert_eq!((reply.status, param), (400, json!("structured_outputs")), "{reply:?}");
}
