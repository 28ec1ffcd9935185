//! Errors: invalid requests are rejected with the parameter, and failures do not affect other
//! requests.

use std::io::{Read, Write};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::common::{TestServer, reply, start, start_byte_tokens, start_without_end_tokens};
use serde_json::{Value, json};

const NOW: Duration = Duration::ZERO;

fn rejected(server: &TestServer, path: &str, body: &Value) -> (u16, Value) {
    let reply = server.post(path, body);
    assert!(!reply.body.contains("secret"), "{reply:?}");
    let error = reply.json()["error"].clone();
    for field in ["message", "type", "param", "code"] {
        assert!(error.get(field).is_some(), "{field}: {error}");
    }
    (reply.status, error)
}

/// A completion with one more parameter.
fn with(name: &str, value: Value) -> Value {
    let mut body = json!({ "prompt": "a", "max_tokens": 4 });
    body[name] = value;
    body
}

#[test]
fn names_the_invalid_parameter() {
    let server = start(NOW, |options| options.capacity.tokens = 300);
    for (name, value) in [
        ("temperature", json!(-1)),
        ("temperature", json!("hot")),
        ("top_p", json!(0)),
        ("min_p", json!(2)),
        ("top_k", json!(1.5)),
        ("top_k", json!(-2)),
        ("seed", json!(0.5)),
        ("n", json!(0)),
        ("n", json!(33)),
        ("n", json!(-1)),
        ("stop", json!("")),
        ("stop", json!(vec!["a"; 17])),
        ("stop", json!(5)),
        ("logprobs", json!(21)),
        ("max_tokens", json!(-5)),
        ("max_tokens", json!(400)),
        ("prompt", Value::Null),
        ("prompt", json!([])),
        ("prompt", json!({})),
        ("prompt", json!(vec!["a"; 33])),
        ("logit_bias", json!({ "6": 1 })),
        ("logit_bias", json!({ "5": 101 })),
        ("logit_bias", json!({ "5": 1, "05": 1 })),
        ("frequency_penalty", json!(2.5)),
        ("presence_penalty", json!("much")),
        ("repetition_penalty", json!(0)),
        ("repeat_last_n", json!("all")),
        ("stop_token_ids", json!([6])),
        ("allowed_token_ids", json!([0, 6])),
        ("logprob_token_ids", json!([])),
        ("logprob_token_ids", json!([6])),
        ("truncate_prompt_tokens", json!(0)),
        ("truncate_prompt_tokens", json!(512)),
        ("truncation_side", json!("middle")),
        ("structured_outputs", json!({ "xml": "" })),
        ("guided_choice", json!([])),
        ("dry_multiplier", json!(0.8)),
        ("response_format", json!({ "type": "xml" })),
        ("response_format", json!({ "type": "json_schema" })),
        ("suffix", json!("x")),
        ("best_of", json!(2)),
        ("messages", json!([])),
        ("stream", json!("yes")),
        ("stream_options", json!({ "include_usage": true })),
        ("metadata", json!("a")),
        ("min_tokens", json!(-3)),
        ("speculation", json!("some")),
        ("speculation", json!({ "verifier": "blok" })),
        ("speculation", json!({ "verifier": "walk:linear-program" })),
        ("speculation", json!({ "verifier": "block" })),
        ("speculation", json!({ "verifier": "none", "tree": "2" })),
        ("speculation", json!({ "tree": "paths:100,4" })),
        ("speculation", json!({ "draft": "other" })),
        ("speculation", json!({ "depth": 3 })),
    ] {
        let (status, error) = rejected(&server, "/v1/completions", &with(name, value.clone()));
        assert_eq!((status, &error["param"]), (400, &json!(name)), "{name} {value}: {error}");
        assert_eq!(error["type"], "invalid_request_error");
    }
}

#[test]
fn names_the_invalid_field_of_speculation() {
    let server = start(NOW, |_| ());
    for (speculation, expected) in [
        (json!({ "verifier": "blok" }), "speculation.verifier: expected one of "),
        (json!({ "tree": "2;2" }), "speculation.tree: "),
        (json!({ "tree": "paths:2" }), "speculation.tree: setting tree: expected paths:K,L"),
        (json!({ "trees": "2" }), "speculation.trees: unknown field"),
        (json!({ "verifier": "block", "tree": "2,2" }), "verifiers for this tree: "),
    ] {
        let (_, error) = rejected(&server, "/v1/completions", &with("speculation", speculation));
        let message = error["message"].as_str().expect("a message");
        assert!(message.contains(expected), "{expected}: {message}");
    }
}

#[test]
fn names_the_invalid_tokens_of_logit_bias() {
    let server = start(NOW, |_| ());
    let biases = json!({ "b": 1, "a": 2, "0": 3, "6": 4 });
    let (_, error) = rejected(&server, "/v1/completions", &with("logit_bias", biases));
    assert!(error["message"].as_str().unwrap().contains(r#"["6", "a", "b"]"#), "{error}");
}

#[test]
fn rejects_allowed_tokens_with_structured_outputs() {
    let server = start(NOW, |_| ());
    let mut both = with("allowed_token_ids", json!([0]));
    both["structured_outputs"] = json!({ "choice": ["a", "b"] });
    assert_eq!(rejected(&server, "/v1/completions", &both).1["param"], "allowed_token_ids");
}

#[test]
fn error_codes_name_the_cause() {
    let server = start(NOW, |_| ());
    let code = |body: &Value| rejected(&server, "/v1/completions", body).1["code"].clone();
    assert_eq!(code(&with("tools", json!([{}]))), "unsupported_parameter");
    assert_eq!(code(&with("prompt", json!(vec![0; 600]))), "context_length_exceeded");
    assert_eq!(rejected(&server, "/v1/completions", &with("model", json!("gpt"))).0, 404);
    assert_eq!(rejected(&server, "/v1/completions", &with("prompt", json!([9]))).0, 400);
}

#[test]
fn rejects_streams_before_they_have_a_status() {
    let server = start(NOW, |_| ());
    for prompt in [json!([9]), json!([0, 9]), json!([[0], [9]]), json!(vec![0; 600])] {
        let stream = json!({ "prompt": prompt, "stream": true });
        assert_eq!(rejected(&server, "/v1/completions", &stream).0, 400, "{stream}");
    }
}

#[test]
fn names_the_invalid_field_of_a_message() {
    let server = start(NOW, |_| ());
    for (messages, param) in [
        (json!([]), "messages"),
        (json!([{ "role": "tool", "content": "a" }]), "messages[0].tool_call_id"),
        (json!([{ "role": "user", "content": [{ "type": "image_url" }] }]), "messages[0].content"),
        (json!([{ "role": "user", "content": "bad" }]), "messages"),
        (json!([{ "role": "user" }]), "messages[0].content"),
        (json!([{ "role": "assistant", "tool_calls": [{}] }]), "messages[0].tool_calls[0]"),
        (
            json!([{ "role": "user", "content": "a", "tool_call_id": "b" }]),
            "messages[0].tool_call_id",
        ),
    ] {
        let (status, error) =
            rejected(&server, "/v1/chat/completions", &json!({ "messages": messages }));
        assert_eq!((status, &error["param"]), (400, &json!(param)), "{error}");
    }
}

#[test]
fn rejects_tools_with_a_chat_template_without_them() {
    let server = start(NOW, |_| ());
    let tool = json!({ "type": "function", "function": { "name": "f" } });
    let body = json!({ "messages": [{ "role": "user", "content": "a" }], "tools": [tool],
        "max_tokens": 2 });
    let (status, error) = rejected(&server, "/v1/chat/completions", &body);
    assert_eq!(
        (status, &error["param"], &error["code"]),
        (400, &json!("tools"), &json!("unsupported_parameter"))
    );
}

#[test]
fn accepts_values_without_effect() {
    let server = start(NOW, |_| ());
    let neutral = json!({ "prompt": "a", "frequency_penalty": 0, "logit_bias": {}, "stop": null,
        "best_of": 1, "stream": null });
    server.complete(neutral);
    let neutral = json!({ "prompt": "a", "metadata": { "a": "b" }, "safety_identifier": "me",
        "prompt_cache_key": "k", "store": false, "stream_options": null });
    server.complete(neutral);
    let named = json!({ "messages": [{ "role": "user", "content": "a", "name": "b", "weight": 1 }],
            "max_tokens": 2 });
    assert_eq!(server.post("/v1/chat/completions", &named).status, 200);
}

/// Stream options without a stream are rejected whatever their values, as in OpenAI's interface.
#[test]
fn stream_options_need_a_stream() {
    let server = start(NOW, |_| ());
    let options = json!({ "include_usage": null, "include_obfuscation": false });
    let mut body = json!({ "prompt": "a", "max_tokens": 2, "stream_options": options });
    let (status, error) = rejected(&server, "/v1/completions", &body);
    assert_eq!((status, &error["param"]), (400, &json!("stream_options")));
    body["stream"] = true.into();
    assert_eq!(server.post("/v1/completions", &body).status, 200);
}

/// Parameters of other servers and unknown ones are accepted if they have no effect, and reported.
#[test]
fn ignores_harmless_parameters_by_name() {
    let server = start(NOW, |_| ());
    for stream in [false, true] {
        let body = json!({ "prompt": "a", "max_tokens": 4, "seed": 1, "stream": stream,
            "cache_prompt": true, "store": true, "temprature": 1, "ignore_eos": false });
        let reply = server.post("/v1/completions", &body);
        let expected = vec!["cache_prompt", "store", "temprature"];
        assert_eq!((reply.status, reply.ignored()), (200, expected), "{reply:?}");
    }
    let body = json!({ "messages": [
            { "role": "user", "content": "a", "cache_control": { "type": "ephemeral" } },
            { "role": "assistant", "content": "b", "reasoning_content": "hm" },
            { "role": "user", "content": "a" }
        ], "max_tokens": 2, "reasoning_effort": "none", "verbosity": "low",
        "chat_template_kwargs": { "enable_thinking": false } });
    let reply = server.post("/v1/chat/completions", &body);
    let variable = "chat_template_kwargs.enable_thinking (the chat template does not read it)";
    assert_eq!((reply.status, reply.ignored()), (200, vec!["verbosity", variable]), "{reply:?}");
    let strict = start(NOW, |options| options.strict = true);
    let code = |name: &str, value: Value| {
        let body = json!({ "prompt": "a", name: value });
        rejected(&strict, "/v1/completions", &body).1["code"].clone()
    };
    assert_eq!(code("temprature", json!(1)), "unknown_parameter");
    assert_eq!(code("store", json!(true)), "unsupported_parameter");
}

/// Large schemas are rejected before decoding where possible, otherwise when the parser gives up.
#[test]
fn rejects_schemas_that_are_too_large() {
    let server = start_byte_tokens();
    let with = |schema: Value| {
        let format =
            json!({ "type": "json_schema", "json_schema": { "name": "s", "schema": schema } });
        json!({ "prompt": "a", "max_tokens": 9, "response_format": format })
    };
    assert_eq!(server.post("/v1/completions", &with(json!({ "enum": ["a", "b"] }))).status, 200);
    let both = json!([{ "multipleOf": 997 }, { "multipleOf": 991 }]);
    for (schema, expected) in [
        (json!({ "type": "integer", "multipleOf": 499_979 }), "multipleOf"),
        (json!({ "type": "integer", "allOf": both }), "multipleOf"),
        (json!({ "type": "string", "pattern": "^(a{1000}){1000}$" }), ""),
    ] {
        let (status, error) = rejected(&server, "/v1/completions", &with(schema.clone()));
        assert_eq!(
            (status, &error["param"]),
            (400, &json!("response_format")),
            "{schema}: {error}"
        );
        assert!(error["message"].as_str().unwrap().contains(expected), "{error}");
    }
    let mut streamed = with(json!({ "type": "string", "pattern": "^(a{1000}){1000}$" }));
    streamed["stream"] = true.into();
    let reply = server.post("/v1/completions", &streamed);
    assert!(reply.status == 200 && reply.body.contains("\"invalid_request_error\""), "{reply:?}");
}

#[test]
fn lists_models_and_reports_health() {
    let server = start(NOW, |_| ());
    assert_eq!(server.get("/health").json(), json!({ "status": "ok" }));
    let models = server.get("/v1/models").json();
    assert_eq!(
        (&models["data"][0]["id"], &models["data"][0]["max_model_len"]),
        (&json!("table"), &json!(512))
    );
    assert_eq!(server.get("/v1/models/table").status, 200);
    assert_eq!(server.get("/v1/models/t%61ble").status, 200);
    assert_eq!(server.get("/v1/models/%FF").status, 404);
    assert_eq!(server.get("/v1/models/other").json()["id"], "other");
    assert_eq!(server.get("/v1/models/third").status, 404);
}

#[test]
fn rejects_unknown_paths_and_methods() {
    let server = start(NOW, |_| ());
    for (head, status) in [
        ("GET /unknown HTTP/1.1", 404),
        ("GET /v1/completions HTTP/1.1", 405),
        ("POST /health HTTP/1.1", 405),
        ("DELETE / HTTP/1.1", 405),
    ] {
        let reply = reply(server.send(head, b""));
        assert_eq!(
            (reply.status, &reply.json()["error"]["type"]),
            (status, &json!("invalid_request_error"))
        );
    }
}

#[test]
fn rejects_invalid_and_large_bodies() {
    let server = start(NOW, |options| options.max_body_bytes = 10_000);
    for (body, status) in [
        (&b""[..], 400),
        (b"{", 400),
        (b"[]", 400),
        (b"\xff\xfe", 400),
        (b"{\"prompt\": \"a\", \"prompt\": \"b\"}", 400),
        (b"{\"prompt\": \"a\", \"stream_options\": [{\"a\": 1, \"a\": 1}]}", 400),
        (&[b'['; 9_000], 400),
        (&[b' '; 20_000], 413),
        // The answer also reaches a client that is still sending.
        (&vec![b' '; 4 << 20], 413),
    ] {
        let reply = reply(server.send("POST /v1/completions HTTP/1.1", body));
        assert_eq!(reply.status, status, "{reply:?}");
        assert!(reply.json()["error"]["message"].is_string());
    }
}

#[test]
fn rejects_large_bodies_without_a_length() {
    let server = start(NOW, |options| options.max_body_bytes = 10_000);
    let mut stream = server.connect();
    write!(
        stream,
        "POST /v1/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nConnection: \
         close\r\n\r\n"
    )
    .unwrap();
    for _ in 0..4000 {
        write!(stream, "400\r\n{}\r\n", " ".repeat(1024)).unwrap();
    }
    assert_eq!(reply(stream).status, 413);
}

#[test]
fn rejects_invalid_framing_and_other_protocols() {
    let server = start(NOW, |options| options.max_body_bytes = 10_000);
    let mut stream = server.connect();
    stream
        .write_all(
            b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nConnection: \
            close\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        )
        .unwrap();
    assert_eq!(reply(stream).status, 400);
    // A request that is not HTTP.
    let mut stream = server.connect();
    stream.write_all(b"\x16\x03\x01 hello\r\n\r\n").unwrap();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn rejects_duplicate_keys_in_messages() {
    let server = start(NOW, |_| ());
    let twice = b"{\"messages\": [{\"role\": \"user\", \"content\": \"a\", \"content\": \"b\"}]}";
    let rejected = reply(server.send("POST /v1/chat/completions HTTP/1.1", twice));
    assert!(rejected.status == 400 && rejected.body.contains("twice"), "{rejected:?}");
}

#[test]
fn requires_the_key_everywhere_but_health() {
    let server = start(NOW, |options| {
        options.api_key = Some("right".to_owned());
        options.allowed_origins = vec!["https://page.example".to_owned()];
    });
    assert_eq!(server.get("/health").status, 200);
    for (header, status) in
        [("", 401), ("Authorization: Bearer wrong\r\n", 401), ("Authorization: Bearer right", 200)]
    {
        for path in ["/v1/models", "/unknown"] {
            let head = format!("GET {path} HTTP/1.1\r\n{header}");
            let reply = reply(server.send(head.trim_end(), b""));
            let expected = if status == 200 && path == "/unknown" { 404 } else { status };
            assert_eq!(reply.status, expected, "{header}");
        }
    }
    // Preflight requests carry no key. They are allowed for listed origins only.
    let preflight = |origin: &str| {
        let head = format!(
            "OPTIONS /v1/models HTTP/1.1\r\nOrigin: {origin}\r\nAccess-Control-Request-Method: GET"
        );
        reply(server.send(&head, b"")).head.to_lowercase()
    };
    assert!(
        preflight("https://page.example")
            .contains("access-control-allow-origin: https://page.example")
    );
    assert!(!preflight("https://other.example").contains("access-control-allow-origin"));
}

/// A browser sends a page's request without a preflight if it looks like a form's.
#[test]
fn rejects_posts_from_other_origins() {
    let listed =
        start(NOW, |options| options.allowed_origins = vec!["https://page.example".to_owned()]);
    let (closed, open) =
        (start(NOW, |_| ()), start(NOW, |options| options.allowed_origins = vec!["*".to_owned()]));
    let body = json!({ "prompt": "a", "max_tokens": 2 }).to_string();
    for (server, origin, status) in [
        (&closed, "https://page.example", 403),
        (&closed, "null", 403),
        (&closed, "http://here:81", 403),
        (&closed, "http://here", 200),
        (&closed, "https://HERE", 200),
        (&listed, "https://page.example", 200),
        (&listed, "https://other.example", 403),
        (&open, "https://other.example", 200),
    ] {
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nContent-Type: text/plain\r\nOrigin: {origin}"
        );
        let reply = reply(server.send(&head, body.as_bytes()));
        assert_eq!(reply.status, status, "{origin}: {reply:?}");
        if status == 403 {
            assert_eq!(reply.json()["error"]["code"], "origin_not_allowed");
            assert!(reply.body.contains("cors"), "{reply:?}");
        }
    }
    // Allowed origins may send any headers.
    let head = "OPTIONS /v1/completions HTTP/1.1\r\nOrigin: \
        https://page.example\r\nAccess-Control-Request-Method: POST\r\n\
        Access-Control-Request-Headers: authorization,x-stainless-lang";
    let allowed = reply(listed.send(head, b"")).head.to_lowercase();
    assert!(
        allowed.contains("access-control-allow-headers: authorization,x-stainless-lang"),
        "{allowed}"
    );
}

#[test]
fn rejects_requests_when_the_queue_is_full() {
    let server = start_without_end_tokens(Duration::from_millis(20), |options| {
        options.capacity.sequences = 2;
        options.capacity.queue = 1;
    });
    let long = json!({ "prompt": "a", "max_tokens": 40, "speculation": "none", "stream": true });
    let mut full = long.clone();
    full["stream"] = false.into();
    let bodies = [&long, &full, &long].map(|body| body.to_string());
    let streams = bodies.map(|body| server.send("POST /v1/completions HTTP/1.1", body.as_bytes()));
    std::thread::sleep(Duration::from_millis(200));
    let reply = server.post("/v1/completions", &long);
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (429, &json!("queue_full")));
    assert!(reply.head.to_lowercase().contains("retry-after: 1"), "{}", reply.head);
    // Clients that disconnect free their slots.
    drop(streams);
    let deadline = Instant::now() + Duration::from_secs(10);
    while server.open.load(Ordering::SeqCst) > 0 {
        assert!(Instant::now() < deadline, "what clients dropped goes on");
        std::thread::sleep(Duration::from_millis(10));
    }
    server.complete(json!({ "prompt": "a", "max_tokens": 4 }));
}

#[test]
fn lets_running_requests_finish_within_the_grace_period() {
    let mut server = start_without_end_tokens(Duration::from_millis(10), |_| ());
    let body = json!({ "prompt": "a", "max_tokens": 30, "speculation": "none" });
    let stream = server.send("POST /v1/completions HTTP/1.1", body.to_string().as_bytes());
    std::thread::sleep(Duration::from_millis(100));
    server.request_stop();
    let answer = reply(stream);
    assert_eq!(answer.json()["usage"]["completion_tokens"], 30, "{answer:?}");
    assert!(server.stop(), "all answers were sent");
}

#[test]
fn ends_requests_after_the_grace_period() {
    let grace = Duration::from_millis(100);
    let mut server =
        start_without_end_tokens(Duration::from_millis(50), |options| options.grace_period = grace);
    let [full, streamed] = [false, true].map(|stream| {
        let body =
            json!({ "prompt": "d", "max_tokens": 500, "speculation": "none", "stream": stream });
        server.send("POST /v1/completions HTTP/1.1", body.to_string().as_bytes())
    });
    std::thread::sleep(Duration::from_millis(150));
    let stop_requested_at = Instant::now();
    server.request_stop();
    let (full, streamed) = (reply(full), reply(streamed));
    assert_eq!((full.status, &full.json()["error"]["code"]), (503, &json!("stopping")));
    let events = streamed.events();
    assert!(
        events[events.len() - 2].contains("\"stopping\"") && events.ends_with(&["[DONE]"]),
        "{streamed:?}"
    );
    assert!(server.stop() && stop_requested_at.elapsed() < Duration::from_secs(5));
}
