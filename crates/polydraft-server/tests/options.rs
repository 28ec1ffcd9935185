//! Options of a server: default parameters, paths, origins, and metrics.

use crate::common;

use std::time::Duration;

use crate::common::{reply, start};
use serde_json::{Value, json};

const NOW: Duration = Duration::ZERO;

fn message(role: &str, content: &str) -> Value {
    json!({ "role": role, "content": content })
}

#[test]
fn default_parameters_apply_to_requests_that_omit_them() {
    let defaults = json!({ "seed": 5, "max_tokens": 9, "return_token_ids": true,
        "stream_options": { "include_usage": true } });
    let server = start(NOW, |options| options.defaults = defaults.as_object().unwrap().clone());
    let plain = start(NOW, |_| ());
    let body = json!({ "prompt": "a b", "max_tokens": 9, "seed": 5, "return_token_ids": true });
    let same = plain.complete(body)["choices"].clone();
    assert_eq!(server.complete(json!({ "prompt": "a b" }))["choices"], same);
    // A request's own parameters take precedence.
    let other = server.complete(json!({ "prompt": "a b", "seed": 6, "max_tokens": 30 }));
    assert_ne!(other["choices"], same);
    // Default stream options apply to streams only.
    let events = server.post("/v1/completions", &json!({ "prompt": "a b", "stream": true }));
    let events = events.events();
    let last: Value = serde_json::from_str(events[events.len() - 2]).unwrap();
    assert_eq!(last["usage"]["prompt_tokens"], 2);
    // llama.cpp's clients read the seed from here.
    assert_eq!(
        server.get("/props").json()["default_generation_settings"]["params"]["seed"],
        json!(5)
    );
    let native = server.post("/completion", &json!({ "prompt": "a b", "n_predict": 9 })).json();
    assert_eq!(native["generation_settings"]["seed"], 5);
    assert_eq!(native["content"], same[0]["text"]);
}

#[test]
fn prefill_option_continues_a_final_answer() {
    let server = start(NOW, |options| options.continue_final_answer = true);
    let plain = start(NOW, |_| ());
    let messages = json!([message("user", "a"), message("assistant", "b c")]);
    // An echo begins with the continued message.
    let continues = |server: &common::TestServer, changes: Value| {
        let mut body = json!({ "messages": messages, "max_tokens": 1, "echo": true,
            "logit_bias": { "0": 100 } });
        body.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        let answer = server.post("/v1/chat/completions", &body).json();
        answer["choices"][0]["message"]["content"].as_str().unwrap().starts_with("b c")
    };
    assert!(continues(&plain, json!({ "continue_final_message": true })));
    assert!(!continues(&plain, json!({})));
    assert!(continues(&server, json!({})));
    assert!(!continues(&server, json!({ "continue_final_message": false })));
    assert!(!continues(&server, json!({ "add_generation_prompt": true })));
    let mut other = json!({ "messages": messages, "max_tokens": 1 });
    other["messages"].as_array_mut().unwrap().push(message("user", "a"));
    assert_eq!(server.post("/v1/chat/completions", &other).status, 200);
    // Several answers cannot be continued.
    let several_answers = json!({ "messages": [message("user", "a"), message("assistant", "b"),
        message("assistant", "c")], "max_tokens": 2 });
    let rejected = server.post("/v1/chat/completions", &several_answers);
    assert_eq!((rejected.status, &rejected.json()["error"]["param"]), (400, &json!("messages")));
    assert_eq!(plain.post("/v1/chat/completions", &several_answers).status, 200);
}

#[test]
fn serves_under_the_root_path_too() {
    let server = start(NOW, |options| {
        options.path_prefix = "/some/llm".to_owned();
        options.api_key = Some("secret".to_owned());
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
fn preflight_lists_methods_and_headers() {
    let server = start(NOW, |options| options.allowed_origins = vec!["*".to_owned()]);
    let preflight = "OPTIONS /completion HTTP/1.1\r\nOrigin: http://page.example\r\n\
                 Access-Control-Request-Method: POST\r\n\
                 Access-Control-Request-Headers: authorization";
    let head = reply(server.send(preflight, b"")).head;
    assert!(
        head.contains("access-control-allow-methods: GET, POST, DELETE, OPTIONS\r\n"),
        "{head}"
    );
    // `*` would not cover this header.
    assert!(head.contains("access-control-allow-headers: authorization\r\n"), "{head}");
    assert!(head.contains("access-control-allow-origin: http://page.example\r\n"), "{head}");
}

#[test]
fn metrics_can_be_turned_off() {
    let server = start(NOW, |options| options.serve_metrics = false);
    let rejected = server.get("/metrics");
    assert_eq!(rejected.status, 501);
    assert!(rejected.json()["error"]["message"].is_string());
}

#[test]
fn metrics_have_llama_cpp_names_too() {
    let server = start(NOW, |_| ());
    let (mut prefilled, mut cached, mut generated) = (0, 0, 0);
    for _ in 0..2 {
        let body = json!({ "prompt": "a b c d a b c d", "n_predict": 6, "seed": 3 });
        let timings = server.post("/completion", &body).json()["timings"].clone();
        let count = |name: &str| timings[name].as_u64().unwrap();
        (prefilled, cached) = (prefilled + count("prompt_n"), cached + count("cache_n"));
        generated += count("predicted_n");
    }
    assert!(cached > 0);
    let metrics = server.get("/metrics");
    assert!(metrics.head.contains("process-start-time-unix: "), "{}", metrics.head);
    let value = |name: &str| -> f64 {
        let line = metrics.body.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("{name}: {}", metrics.body)).parse().unwrap()
    };
    assert_eq!(value("llamacpp:prompt_tokens_total"), prefilled as f64);
    assert_eq!(value("llamacpp:prompt_tokens_cached_total"), cached as f64);
    assert_eq!(value("llamacpp:tokens_predicted_total"), generated as f64);
    assert_eq!(value("polydraft:generation_tokens_total"), generated as f64);
    assert_eq!(
        value("llamacpp:spec_decode_num_draft_tokens_total"),
        value("polydraft:spec_decode_num_draft_tokens_total")
    );
    assert!(value("llamacpp:n_decode_total") > 0.0);
    assert!((8.0..=14.0).contains(&value("llamacpp:n_tokens_max")));
    assert!(value("llamacpp:tokens_predicted_seconds_total") > 0.0);
}
