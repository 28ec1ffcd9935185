//! How far a request is and how long it takes, and prompts and tokens as the model reads them.

use std::time::Duration;

use crate::common::{Running, start};
use serde_json::{Value, json};

const NOW: Duration = Duration::ZERO;

fn events(server: &Running, path: &str, body: &Value) -> Vec<Value> {
    let reply = server.post(path, body);
    assert_eq!(reply.status, 200, "{reply:?}");
    let data = reply.events().into_iter().filter(|event| *event != "[DONE]");
    data.map(|event| serde_json::from_str(event).unwrap()).collect()
}

/// What is told of the prompt never goes back, begins with what was cached, and ends with all.
fn check(told: &[&Value], total: u64) {
    let of = |progress: &Value, name: &str| progress[name].as_u64().unwrap();
    let (first, last) = (told[0], told[told.len() - 1]);
    assert!(told.len() > 1);
    assert_eq!(of(first, "processed"), of(first, "cache"));
    assert_eq!((of(last, "processed"), of(last, "total")), (total, total));
    for pair in told.windows(2) {
        assert!(of(pair[0], "processed") < of(pair[1], "processed"));
        assert!(of(pair[0], "time_ms") <= of(pair[1], "time_ms"));
    }
}

#[test]
fn streams_tell_how_much_of_the_prompt_is_read() {
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
        let told: Vec<&Value> = all
            .iter()
            .map(|event| &event["prompt_progress"])
            .filter(|told| !told.is_null())
            .collect();
        check(&told, 200);
        // Of one who did not ask, nothing.
        body["return_progress"] = json!(false);
        let all = events(&server, path, &body);
        assert!(all.iter().all(|event| event["prompt_progress"].is_null()), "{path}");
        assert!(path == "/completion" || all.iter().all(|event| event["timings"].is_null()));
    }
}

#[test]
fn answers_tell_their_times() {
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
        let read = timings["prompt_n"].as_u64().unwrap() + timings["cache_n"].as_u64().unwrap();
        assert_eq!(read, 2);
        let (count, rate) = (&timings["predicted_n"], &timings["predicted_per_second"]);
        let of_rest =
            (count.as_f64().unwrap() - 1.0) * 1e3 / timings["predicted_ms"].as_f64().unwrap();
        assert!((rate.as_f64().unwrap() / of_rest - 1.0).abs() < 1e-9, "{timings}");
    }
    let native = json!({ "prompt": "a b", "n_predict": 1 });
    let timings = server.post("/completion", &native).json()["timings"].clone();
    assert_eq!(
        (&timings["predicted_n"], &timings["predicted_per_second"]),
        (&json!(1), &json!(0.0))
    );
}

#[test]
fn prompts_are_told_as_the_model_reads_them() {
    let server = start(NOW, |_| ());
    let answer = server.complete(json!({ "prompt": [0, 4, 1], "max_tokens": 2, "verbose": true,
        "echo": true, "logprobs": 1, "seed": 1 }));
    assert_eq!(answer["__verbose"]["prompt"], "a end b");
    // An echo of tokens has the special ones too, and so have their names.
    let choice = &answer["choices"][0];
    assert!(choice["text"].as_str().unwrap().starts_with("a end b"), "{choice}");
    assert_eq!(choice["logprobs"]["tokens"].as_array().unwrap()[..3], ["a", "end", "b"]);
    let messages = json!([{ "role": "user", "content": "c d" }]);
    let body = json!({ "messages": messages, "max_tokens": 4, "verbose": true, "stream": true });
    let all = events(&server, "/v1/chat/completions", &body);
    let told: Vec<&Value> =
        all.iter().map(|event| &event["__verbose"]).filter(|told| !told.is_null()).collect();
    assert_eq!(told, [&json!({ "prompt": "c d" })]);
}

#[test]
fn prompts_are_counted() {
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
fn prompts_of_conversations_may_come_as_tokens() {
    let server = start(NOW, |_| ());
    let messages = json!([{ "role": "user", "content": "c d" }]);
    let ask = |transfer: Value| {
        let body = json!({ "messages": messages, "max_tokens": 3, "return_token_ids": true,
            "seed": 4, "kv_transfer_params": transfer });
        server.post("/v1/chat/completions", &body)
    };
    let whole = ask(json!({ "prompt_token_ids": [0, 1, 0] }));
    assert_eq!(whole.json()["prompt_token_ids"], json!([0, 1, 0]));
    assert!(whole.ignored().is_empty());
    // What would transfer a KV cache is ignored, and said.
    let other = ask(json!({ "do_remote_prefill": true }));
    assert_eq!(other.json()["prompt_token_ids"], json!([2, 3]));
    assert_eq!(other.ignored(), ["kv_transfer_params"]);
    assert_eq!(ask(json!({ "prompt_token_ids": [0, 6] })).status, 400);
    assert_eq!(ask(json!({ "prompt_token_ids": "a" })).status, 400);
}

#[test]
fn responses_tell_their_tokens() {
    let server = start(NOW, |_| ());
    let body = json!({ "input": "c d", "seed": 8, "max_output_tokens": 5,
        "enable_response_messages": true });
    let answer = server.post("/v1/responses", &body).json();
    let raw = json!([{ "type": "raw_message_tokens", "message": "c d", "tokens": [2, 3] }]);
    assert_eq!(answer["input_messages"], raw);
    let written = answer["output_messages"][0]["tokens"].as_array().unwrap().len() as u64;
    assert_eq!(answer["usage"]["output_tokens"], written);
    // Nobody asked for log-probabilities.
    assert_eq!(answer["output"][0]["content"][0]["logprobs"], json!([]));
}

#[test]
fn fields_of_vllms_answers_are_there_as_null() {
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
    // In completions every chunk has lists where log-probabilities were asked for.
    let body = json!({ "prompt": "a", "max_tokens": 4, "logprobs": 1, "stream": true });
    for chunk in events(&server, "/v1/completions", &body) {
        assert!(chunk["choices"][0]["logprobs"]["tokens"].is_array(), "{chunk}");
    }
}
