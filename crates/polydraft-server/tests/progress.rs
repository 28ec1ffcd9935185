//! Progress and timings of requests, and prompts and tokens as the model reads them.

use std::time::Duration;

use crate::common::{TestServer, start};
use serde_json::{Value, json};

const NOW: Duration = Duration::ZERO;

fn events(server: &TestServer, path: &str, body: &Value) -> Vec<Value> {
    let reply = server.post(path, body);
    assert_eq!(reply.status, 200, "{reply:?}");
    let data = reply.events().into_iter().filter(|event| *event != "[DONE]");
    data.map(|event| serde_json::from_str(event).unwrap()).collect()
}

/// Progress begins with the cached tokens, increases strictly, and ends with all tokens.
fn check_progress(reports: &[&Value], total: u64) {
    let field = |progress: &Value, name: &str| progress[name].as_u64().unwrap();
    let (first, last) = (reports[0], reports[reports.len() - 1]);
    assert!(reports.len() > 1);
    assert_eq!(field(first, "processed"), field(first, "cache"));
    assert_eq!((field(last, "processed"), field(last, "total")), (total, total));
    for pair in reports.windows(2) {
        assert!(field(pair[0], "processed") < field(pair[1], "processed"));
        assert!(field(pair[0], "time_ms") <= field(pair[1], "time_ms"));
    }
}

#[test]
fn streams_report_prompt_progress() {
    let server = start(NOW, |_| ());
    let words = "a b c d ".repeat(50);
    for path in ["/completion", "/v1/completions", "/v1/chat/completions", "/v1/responses"] {
        let mut body = json!({ "stream": true, "return_progress": true, "seed": 1 });
        match path {
            "/v1/chat/completions" => {
                body["messages"] = json!([{ "role": "user", "content": words }]);
            }
            "/v1/responses" => body["input"] = json!(words),
            _ => body["prompt"] = json!(words),
        }
        let all = events(&server, path, &body);
        let reports: Vec<&Value> = all
            .iter()
            .map(|event| &event["prompt_progress"])
            .filter(|reports| !reports.is_null())
            .collect();
        check_progress(&reports, 200);
        // Without the parameter no progress is reported.
        body["return_progress"] = json!(false);
        let all = events(&server, path, &body);
        assert!(all.iter().all(|event| event["prompt_progress"].is_null()), "{path}");
        assert!(path == "/completion" || all.iter().all(|event| event["timings"].is_null()));
    }
}

#[test]
fn answers_have_timings_on_request() {
    let server = start(NOW, |_| ());
    let messages = json!([{ "role": "user", "content": "a b" }]);
    for stream in [false, true] {
        let body = json!({ "messages": messages, "seed": 3, "max_tokens": 9, "stream": stream,
            "timings_per_token": true });
        let last = match stream {
            true => events(&server, "/v1/chat/completions", &body).pop().unwrap(),
            false => server.post("/v1/chat/completions", &body).json(),
        };
        let timings = &last["timings"];
        assert!(timings["predicted_n"].as_u64().unwrap() > 1, "{last}");
        let prompt_tokens =
            timings["prompt_n"].as_u64().unwrap() + timings["cache_n"].as_u64().unwrap();
        assert_eq!(prompt_tokens, 2);
        let (count, rate) = (&timings["predicted_n"], &timings["predicted_per_second"]);
        let rate_after_first =
            (count.as_f64().unwrap() - 1.0) * 1e3 / timings["predicted_ms"].as_f64().unwrap();
        assert!((rate.as_f64().unwrap() / rate_after_first - 1.0).abs() < 1e-9, "{timings}");
    }
    let native = json!({ "prompt": "a b", "n_predict": 1 });
    let timings = server.post("/completion", &native).json()["timings"].clone();
    assert_eq!(
        (&timings["predicted_n"], &timings["predicted_per_second"]),
        (&json!(1), &json!(0.0))
    );
}

#[test]
fn verbose_returns_the_prompt_as_the_model_reads_it() {
    let server = start(NOW, |_| ());
    let answer = server.complete(json!({ "prompt": [0, 4, 1], "max_tokens": 2, "verbose": true,
        "echo": true, "logprobs": 1, "seed": 1 }));
    assert_eq!(answer["__verbose"]["prompt"], "a end b");
    // An echo of tokens includes special ones, in the text and in the list.
    let choice = &answer["choices"][0];
    assert!(choice["text"].as_str().unwrap().starts_with("a end b"), "{choice}");
    assert_eq!(choice["logprobs"]["tokens"].as_array().unwrap()[..3], ["a", "end", "b"]);
    let messages = json!([{ "role": "user", "content": "c d" }]);
    let body = json!({ "messages": messages, "max_tokens": 4, "verbose": true, "stream": true });
    let all = events(&server, "/v1/chat/completions", &body);
    let reports: Vec<&Value> =
        all.iter().map(|event| &event["__verbose"]).filter(|reports| !reports.is_null()).collect();
    assert_eq!(reports, [&json!({ "prompt": "c d" })]);
}

#[test]
fn input_tokens_routes_count_prompts() {
    let server = start(NOW, |_| ());
    let messages = json!([{ "role": "user", "content": "c d a" }]);
    for (path, body) in [
        ("/v1/chat/completions/input_tokens", json!({ "messages": messages })),
        ("/chat/completions/input_tokens", json!({ "messages": messages, "max_tokens": 3 })),
        ("/v1/responses/input_tokens", json!({ "input": "c d a" })),
    ] {
        assert_eq!(server.post(path, &body).json()["input_tokens"], 3, "{path}");
        assert_eq!(server.post(path, &json!({})).status, 400, "{path}");
    }
}

#[test]
fn kv_transfer_params_replace_the_prompt() {
    let server = start(NOW, |_| ());
    let messages = json!([{ "role": "user", "content": "c d" }]);
    let post = |transfer: Value| {
        let body = json!({ "messages": messages, "max_tokens": 3, "return_token_ids": true,
            "seed": 4, "kv_transfer_params": transfer });
        server.post("/v1/chat/completions", &body)
    };
    let full = post(json!({ "prompt_token_ids": [0, 1, 0] }));
    assert_eq!(full.json()["prompt_token_ids"], json!([0, 1, 0]));
    assert!(full.ignored().is_empty());
    // Fields that would transfer a KV cache are reported as ignored.
    let other = post(json!({ "do_remote_prefill": true }));
    assert_eq!(other.json()["prompt_token_ids"], json!([2, 3]));
    assert_eq!(other.ignored(), ["kv_transfer_params"]);
    assert_eq!(post(json!({ "prompt_token_ids": [0, 6] })).status, 400);
    assert_eq!(post(json!({ "prompt_token_ids": "a" })).status, 400);
}

#[test]
fn responses_return_tokens_on_request() {
    let server = start(NOW, |_| ());
    let body = json!({ "input": "c d", "seed": 8, "max_output_tokens": 5,
        "enable_response_messages": true });
    let answer = server.post("/v1/responses", &body).json();
    let raw = json!([{ "type": "raw_message_tokens", "message": "c d", "tokens": [2, 3] }]);
    assert_eq!(answer["input_messages"], raw);
    let generated = answer["output_messages"][0]["tokens"].as_array().unwrap().len() as u64;
    assert_eq!(answer["usage"]["output_tokens"], generated);
    // Log-probabilities were not requested.
    assert_eq!(answer["output"][0]["content"][0]["logprobs"], json!([]));
}

#[test]
fn vllm_fields_are_null_where_not_requested() {
    let server = start(NOW, |_| ());
    let answer = server.complete(json!({ "prompt": "a", "max_tokens": 2 }));
    let choice = answer["choices"][0].as_object().unwrap();
    for name in ["prompt_logprobs", "prompt_token_ids", "token_ids"] {
        assert_eq!(choice.get(name), Some(&Value::Null), "{name}");
    }
    let body = json!({ "messages": [{ "role": "user", "content": "a" }], "max_tokens": 2 });
    let answer = server.post("/v1/chat/completions", &body).json();
    for name in ["prompt_logprobs", "prompt_token_ids"] {
        assert_eq!(answer.as_object().unwrap().get(name), Some(&Value::Null), "{name}");
    }
    // In completions every chunk has lists if log-probabilities are requested.
    let body = json!({ "prompt": "a", "max_tokens": 4, "logprobs": 1, "stream": true });
    for chunk in events(&server, "/v1/completions", &body) {
        assert!(chunk["choices"][0]["logprobs"]["tokens"].is_array(), "{chunk}");
    }
}
