//! Log-probabilities of many alternatives, up to the whole vocabulary, where the server allows
//! them.

use crate::common;

use std::time::Duration;

use crate::common::{TestServer, start};
use serde_json::{Value, json};

const NOW: Duration = Duration::ZERO;
const VOCABULARY: usize = 6;

fn start_unlimited() -> TestServer {
    start(NOW, |options| options.max_logprobs = usize::MAX)
}

fn chat(server: &TestServer, mut body: Value) -> Value {
    body["messages"] = json!([{ "role": "user", "content": "a b" }]);
    let reply = server.post("/v1/chat/completions", &body);
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

/// Posts a request and returns the error that rejects it.
fn rejected(server: &TestServer, path: &str, body: Value) -> Value {
    let reply = server.post(path, &body);
    assert_eq!(reply.status, 400, "{reply:?}");
    reply.json()["error"].clone()
}

/// All tokens are listed, and their probabilities sum to 1.
#[test]
fn minus_one_lists_the_whole_vocabulary() {
    let server = start_unlimited();
    let body = json!({ "prompt": "a b", "logprobs": -1, "prompt_logprobs": -1, "echo": true,
        "max_tokens": 3, "seed": 4, "ignore_eos": true });
    let answer = server.complete(body);
    let choice = &answer["choices"][0];
    let sum = |logprobs: &mut dyn Iterator<Item = f64>| logprobs.map(f64::exp).sum::<f64>();
    let tops = choice["logprobs"]["top_logprobs"].as_array().unwrap();
    assert_eq!(tops.len(), 5, "{choice}");
    for top in &tops[1..] {
        let top = top.as_object().unwrap();
        assert!((sum(&mut top.values().map(|p| p.as_f64().unwrap())) - 1.0).abs() < 1e-6);
    }
    let prompt_logprobs = choice["prompt_logprobs"][1].as_object().unwrap();
    assert_eq!(prompt_logprobs.len(), VOCABULARY);
    let ranks: Vec<u64> =
        prompt_logprobs.values().map(|one| one["rank"].as_u64().unwrap()).collect();
    assert_eq!(ranks, [1, 2, 3, 4, 5, 6]);
    assert!(
        (sum(&mut prompt_logprobs.values().map(|one| one["logprob"].as_f64().unwrap())) - 1.0)
            .abs()
            < 1e-6
    );

    let body = json!({ "top_logprobs": -1, "prompt_logprobs": -1, "max_tokens": 3, "seed": 4 });
    let answer = chat(&server, body);
    let content = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert!(content.iter().all(|token| {
        let top = token["top_logprobs"].as_array().unwrap();
        top.len() == VOCABULARY && top.iter().any(|one| one["token"] == token["token"])
    }));
    assert_eq!(answer["prompt_logprobs"][1].as_object().unwrap().len(), VOCABULARY);
    // -1 does not turn on log-probabilities that are turned off.
    let none = json!({ "top_logprobs": -1, "logprobs": false, "max_tokens": 1 });
    assert_eq!(chat(&server, none)["choices"][0]["logprobs"], Value::Null);
}

/// A stream has the same alternatives as a full answer.
#[test]
fn stream_lists_the_same_alternatives() {
    let server = start_unlimited();
    let mut body = json!({ "prompt": "a b", "logprobs": -1, "prompt_logprobs": -1,
        "max_tokens": 8, "seed": 4, "n": 2 });
    let full = server.complete(body.clone())["choices"].clone();
    body["stream"] = true.into();
    let reply = server.post("/v1/completions", &body);
    let chunks = reply.events().into_iter().filter_map(|event| serde_json::from_str(event).ok());
    let chunks: Vec<Value> = chunks.map(|chunk: Value| chunk["choices"][0].clone()).collect();
    for index in 0..2 {
        let choices = chunks.iter().filter(|choice| choice["index"] == index);
        let mut tops: Vec<Value> = Vec::new();
        choices.clone().for_each(|choice| {
            let new = choice["logprobs"]["top_logprobs"].as_array();
            tops.extend(new.into_iter().flatten().cloned());
        });
        assert_eq!(json!(tops), full[index]["logprobs"]["top_logprobs"]);
        let prompt_logprobs: Vec<&Value> =
            choices.map(|choice| &choice["prompt_logprobs"]).filter(|p| !p.is_null()).collect();
        assert_eq!(prompt_logprobs, [&full[index]["prompt_logprobs"]]);
    }
}

/// The error names the option that would allow more.
#[test]
fn max_logprobs_limits_requests() {
    let (default, limited) = (start(NOW, |_| ()), start(NOW, |options| options.max_logprobs = 3));
    for (path, name) in [
        ("/v1/completions", "logprobs"),
        ("/v1/completions", "prompt_logprobs"),
        ("/v1/chat/completions", "top_logprobs"),
        ("/v1/chat/completions", "prompt_logprobs"),
    ] {
        let body = |value: i64| {
            let mut body = json!({ "prompt": "a b", "max_tokens": 2 });
            if path.contains("chat") {
                body = json!({ "messages": [{ "role": "user", "content": "a" }] });
            }
            body[name] = value.into();
            body
        };
        let error = rejected(&limited, path, body(-1));
        assert_eq!(error["param"], name, "{error}");
        assert!(error["message"].as_str().unwrap().contains("option max-logprobs"), "{error}");
        for (server, value) in [(&limited, 4), (&limited, -2), (&default, 21), (&default, -2)] {
            assert_eq!(rejected(server, path, body(value))["param"], name);
        }
        assert_eq!(limited.post(path, &body(3)).status, 200);
    }
    // 20 is allowed although the vocabulary has fewer tokens.
    assert_eq!(
        default.post("/v1/completions", &json!({ "prompt": "a", "logprobs": 20 })).status,
        200
    );
}

/// The total number of alternatives is limited before anything is computed. Smaller answers need no
/// permission.
#[test]
fn rejects_answers_with_too_many_alternatives() {
    let server =
        common::start_with_vocabulary(1 << 16, |options| options.max_logprobs = usize::MAX);
    let body = |tokens: usize| json!({ "prompt": "a", "logprobs": -1, "max_tokens": tokens });
    // 33 tokens with 2^16 alternatives each exceed 2^21.
    let error = rejected(&server, "/v1/completions", body(33));
    assert_eq!(error["param"], "logprobs", "{error}");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("2162688") && message.contains("max_tokens"), "{message}");
    let answer = server.complete(body(2));
    // One of several tokens with the same string is listed.
    assert!(answer["choices"][0]["logprobs"]["top_logprobs"][1].is_object());
    let mut sequences = body(8);
    (sequences["n"], sequences["stream"]) = (5.into(), true.into());
    assert_eq!(rejected(&server, "/v1/completions", sequences)["param"], "logprobs");
    // Without a limit, a conversation may go on to the end of the context.
    let unlimited = json!({ "messages": [{ "role": "user", "content": "a" }],
        "top_logprobs": 30000, "max_tokens": 100 });
    assert_eq!(rejected(&server, "/v1/chat/completions", unlimited)["param"], "top_logprobs");
    let twenty = json!({ "prompt": "a", "logprobs": 20, "max_tokens": 500 });
    assert_eq!(server.post("/v1/completions", &twenty).status, 200);
}
