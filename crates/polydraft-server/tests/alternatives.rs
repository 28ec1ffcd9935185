//! Log-probabilities of many alternatives, up to those of the whole vocabulary, where the server
//! lets requests ask for them.

use crate::common;

use std::time::Duration;

use crate::common::{Running, start};
use serde_json::{Value, json};

const NOW: Duration = Duration::ZERO;
const VOCABULARY: usize = 6;

fn open() -> Running {
    start(NOW, |options| options.max_logprobs = usize::MAX)
}

fn chat(server: &Running, mut body: Value) -> Value {
    body["messages"] = json!([{ "role": "user", "content": "a b" }]);
    let reply = server.post("/v1/chat/completions", &body);
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

/// The problem that a request is refused for.
fn refused(server: &Running, path: &str, body: Value) -> Value {
    let reply = server.post(path, &body);
    assert_eq!(reply.status, 400, "{reply:?}");
    reply.json()["error"].clone()
}

/// They are all there, and their probabilities are one together.
#[test]
fn minus_one_is_the_whole_vocabulary() {
    let server = open();
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
    let of_prompt = choice["prompt_logprobs"][1].as_object().unwrap();
    assert_eq!(of_prompt.len(), VOCABULARY);
    let ranks: Vec<u64> = of_prompt.values().map(|one| one["rank"].as_u64().unwrap()).collect();
    assert_eq!(ranks, [1, 2, 3, 4, 5, 6]);
    assert!(
        (sum(&mut of_prompt.values().map(|one| one["logprob"].as_f64().unwrap())) - 1.0).abs()
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
    // -1 is no wish for log-probabilities where there are to be none.
    let none = json!({ "top_logprobs": -1, "logprobs": false, "max_tokens": 1 });
    assert_eq!(chat(&server, none)["choices"][0]["logprobs"], Value::Null);
}

/// A stream has the same as a whole answer.
#[test]
fn a_stream_has_them_too() {
    let server = open();
    let mut body = json!({ "prompt": "a b", "logprobs": -1, "prompt_logprobs": -1,
        "max_tokens": 8, "seed": 4, "n": 2 });
    let whole = server.complete(body.clone())["choices"].clone();
    body["stream"] = true.into();
    let reply = server.post("/v1/completions", &body);
    let chunks = reply.events().into_iter().filter_map(|event| serde_json::from_str(event).ok());
    let chunks: Vec<Value> = chunks.map(|chunk: Value| chunk["choices"][0].clone()).collect();
    for index in 0..2 {
        let own = chunks.iter().filter(|choice| choice["index"] == index);
        let mut tops: Vec<Value> = Vec::new();
        own.clone().for_each(|choice| {
            let new = choice["logprobs"]["top_logprobs"].as_array();
            tops.extend(new.into_iter().flatten().cloned());
        });
        assert_eq!(json!(tops), whole[index]["logprobs"]["top_logprobs"]);
        let of_prompt: Vec<&Value> =
            own.map(|choice| &choice["prompt_logprobs"]).filter(|p| !p.is_null()).collect();
        assert_eq!(of_prompt, [&whole[index]["prompt_logprobs"]]);
    }
}

/// Without the server's leave it is refused, and the answer says what is allowed.
#[test]
fn the_server_says_how_many() {
    let (closed, some) = (start(NOW, |_| ()), start(NOW, |options| options.max_logprobs = 3));
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
        let error = refused(&some, path, body(-1));
        assert_eq!(error["param"], name, "{error}");
        assert!(error["message"].as_str().unwrap().contains("option max-logprobs"), "{error}");
        for (server, value) in [(&some, 4), (&some, -2), (&closed, 21), (&closed, -2)] {
            assert_eq!(refused(server, path, body(value))["param"], name);
        }
        assert_eq!(some.post(path, &body(3)).status, 200);
    }
    // Twenty are as many as this vocabulary has, and more.
    assert_eq!(
        closed.post("/v1/completions", &json!({ "prompt": "a", "logprobs": 20 })).status,
        200
    );
}

/// What all tokens of an answer may have together is bounded, before anything is computed. What is
/// below needs no leave.
#[test]
fn an_answer_has_a_limit() {
    let server = common::start_wide(1 << 16, |options| options.max_logprobs = usize::MAX);
    let body = |tokens: usize| json!({ "prompt": "a", "logprobs": -1, "max_tokens": tokens });
    // 2^21 of 2^16 each.
    let error = refused(&server, "/v1/completions", body(33));
    assert_eq!(error["param"], "logprobs", "{error}");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("2162688") && message.contains("max_tokens"), "{message}");
    let answer = server.complete(body(2));
    // Where several tokens have one string, one stands for them.
    assert!(answer["choices"][0]["logprobs"]["top_logprobs"][1].is_object());
    let mut several = body(8);
    (several["n"], several["stream"]) = (5.into(), true.into());
    assert_eq!(refused(&server, "/v1/completions", several)["param"], "logprobs");
    // A conversation goes on to the end of the context, if nothing is said.
    let open = json!({ "messages": [{ "role": "user", "content": "a" }], "top_logprobs": 30000,
        "max_tokens": 100 });
    assert_eq!(refused(&server, "/v1/chat/completions", open)["param"], "top_logprobs");
    let twenty = json!({ "prompt": "a", "logprobs": 20, "max_tokens": 500 });
    assert_eq!(server.post("/v1/completions", &twenty).status, 200);
}
