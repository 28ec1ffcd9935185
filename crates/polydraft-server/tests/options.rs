//! What a server is started with: parameters that requests do not say, paths, origins, and the
//! counts that it keeps.

use crate::common;

use std::time::Duration;

use crate::common::{reply, start};
use serde_json::{Value, json};

const NOW: Duration = Duration::ZERO;

fn said(role: &str, content: &str) -> Value {
    json!({ "role": role, "content": content })
}

#[test]
fn requests_have_the_servers_parameters_where_they_say_none() {
    let defaults = json!({ "seed": 5, "max_tokens": 9, "return_token_ids": true,
        "stream_options": { "include_usage": true } });
    let server = start(NOW, |options| options.defaults = defaults.as_object().unwrap().clone());
    let plain = start(NOW, |_| ());
    let body = json!({ "prompt": "a b", "max_tokens": 9, "seed": 5, "return_token_ids": true });
    let same = plain.complete(body)["choices"].clone();
    assert_eq!(server.complete(json!({ "prompt": "a b" }))["choices"], same);
    // What a request says counts.
    let other = server.complete(json!({ "prompt": "a b", "seed": 6, "max_tokens": 30 }));
    assert_ne!(other["choices"], same);
    // Options of streams are for streams.
    let events = server.post("/v1/completions", &json!({ "prompt": "a b", "stream": true }));
    let events = events.events();
    let last: Value = serde_json::from_str(events[events.len() - 2]).unwrap();
    assert_eq!(last["usage"]["prompt_tokens"], 2);
    // llama.cpp's clients find the seed.
    assert_eq!(
        server.get("/props").json()["default_generation_settings"]["params"]["seed"],
        json!(5)
    );
    let native = server.post("/completion", &json!({ "prompt": "a b", "n_predict": 9 })).json();
    assert_eq!(native["generation_settings"]["seed"], 5);
    assert_eq!(native["content"], same[0]["text"]);
}

#[test]
fn answers_may_be_gone_on_with() {
    let server = start(NOW, |options| options.prefill = true);
    let plain = start(NOW, |_| ());
    let messages = json!([said("user", "a"), said("assistant", "b c")]);
    // An echo has what is gone on with.
    let goes_on = |server: &common::Running, changes: Value| {
        let mut body = json!({ "messages": messages, "max_tokens": 1, "echo": true,
            "logit_bias": { "0": 100 } });
        body.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        let answer = server.post("/v1/chat/completions", &body).json();
        answer["choices"][0]["message"]["content"].as_str().unwrap().starts_with("b c")
    };
    assert!(goes_on(&plain, json!({ "continue_final_message": true })));
    assert!(!goes_on(&plain, json!({})));
    assert!(goes_on(&server, json!({})));
    assert!(!goes_on(&server, json!({ "continue_final_message": false })));
    assert!(!goes_on(&server, json!({ "add_generation_prompt": true })));
    let mut other = json!({ "messages": messages, "max_tokens": 1 });
    other["messages"].as_array_mut().unwrap().push(said("user", "a"));
    assert_eq!(server.post("/v1/chat/completions", &other).status, 200);
    // Of several none is the one.
    let several = json!({ "messages": [said("user", "a"), said("assistant", "b"),
        said("assistant", "c")], "max_tokens": 2 });
    let refused = server.post("/v1/chat/completions", &several);
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("messages")));
    assert_eq!(plain.post("/v1/chat/completions", &several).status, 200);
}

#[test]
fn paths_may_begin_with_a_root() {
    let server = start(NOW, |options| {
        options.root = "/some/llm".to_owned();
        options.key = Some("secret".to_owned());
    });
    for (path, with_key, status) in [
        ("/v1/models", true, 200),
        ("/some/llm/v1/models", true, 200),
        ("/some/llm/v1/models", false, 401),
        ("/some/llm/health", false, 200),
        ("/some/llm/v1/nothing", true, 404),
        ("/llm/v1/models", true, 404),
    ] {
        let key = if with_key { "\r\nX-Api-Key: secret" } else { "" };
        let answer = reply(server.send(&format!("GET {path} HTTP/1.1{key}"), b""));
        assert_eq!(answer.status, status, "{path}");
    }
}

#[test]
fn pages_are_told_the_methods() {
    let server = start(NOW, |options| options.origins = vec!["*".to_owned()]);
    let asked = "OPTIONS /completion HTTP/1.1\r\nOrigin: http://page.example\r\n\
                 Access-Control-Request-Method: POST\r\n\
                 Access-Control-Request-Headers: authorization";
    let head = reply(server.send(asked, b"")).head;
    assert!(
        head.contains("access-control-allow-methods: GET, POST, DELETE, OPTIONS\r\n"),
        "{head}"
    );
    // A * would not be for this one.
    assert!(head.contains("access-control-allow-headers: authorization\r\n"), "{head}");
    assert!(head.contains("access-control-allow-origin: http://page.example\r\n"), "{head}");
}

#[test]
fn counts_may_be_kept_to_oneself() {
    let server = start(NOW, |options| options.metrics = false);
    let refused = server.get("/metrics");
    assert_eq!(refused.status, 501);
    assert!(refused.json()["error"]["message"].is_string());
}

#[test]
fn counts_have_llama_cpps_names_too() {
    let server = start(NOW, |_| ());
    let (mut read, mut cached, mut written) = (0, 0, 0);
    for _ in 0..2 {
        let body = json!({ "prompt": "a b c d a b c d", "n_predict": 6, "seed": 3 });
        let timings = server.post("/completion", &body).json()["timings"].clone();
        let of = |name: &str| timings[name].as_u64().unwrap();
        (read, cached) = (read + of("prompt_n"), cached + of("cache_n"));
        written += of("predicted_n");
    }
    assert!(cached > 0);
    let metrics = server.get("/metrics");
    assert!(metrics.head.contains("process-start-time-unix: "), "{}", metrics.head);
    let value = |name: &str| -> f64 {
        let line = metrics.body.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("{name}: {}", metrics.body)).parse().unwrap()
    };
    assert_eq!(value("llamacpp:prompt_tokens_total"), read as f64);
    assert_eq!(value("llamacpp:prompt_tokens_cached_total"), cached as f64);
    assert_eq!(value("llamacpp:tokens_predicted_total"), written as f64);
    assert_eq!(value("polydraft:generation_tokens_total"), written as f64);
    assert_eq!(
        value("llamacpp:spec_decode_num_draft_tokens_total"),
        value("polydraft:spec_decode_num_draft_tokens_total")
    );
    assert!(value("llamacpp:n_decode_total") > 0.0);
    assert!((8.0..=14.0).contains(&value("llamacpp:n_tokens_max")));
    assert!(value("llamacpp:tokens_predicted_seconds_total") > 0.0);
}
