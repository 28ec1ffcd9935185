//! What agents send and get: calls that a limit cuts, documents, empty messages, and parts that a
//! chat template leaves out.

use crate::common::{AGENT, TestServer, start_script};
use serde_json::{Value, json};

/// A text and two calls, in several tokens each.
const CALLS: [&str; 13] = [
    "Well.",
    "<tool_call>",
    "{\"name\":",
    "\"f\",",
    "\"arguments\":",
    "{\"a\":",
    "1}}",
    "</tool_call>",
    "<tool_call>{",
    "\"name\" :",
    "\"f\" ,",
    "\"arguments\" : {}}",
    "</tool_call> ",
];

fn ask(server: &TestServer, path: &str, mut body: Value, limit: usize, stream: bool) -> Vec<Value> {
    let message = json!([{ "role": "user", "content": "go" }]);
    body["stream"] = stream.into();
    match path {
        "/v1/responses" => {
            body["input"] = "go".into();
            body["max_output_tokens"] = limit.into();
        }
        "/api/chat" => {
            body["messages"] = message;
            body["options"] = json!({ "num_predict": limit });
        }
        _ => {
            body["messages"] = message;
            body["max_tokens"] = limit.into();
        }
    }
    let reply = server.post(path, &body);
    assert_eq!(reply.status, 200, "{reply:?}");
    let lines = reply.body.lines().map(|line| line.strip_prefix("data: ").unwrap_or(line));
    lines.filter(|line| line.starts_with('{')).map(|l| serde_json::from_str(l).unwrap()).collect()
}

/// Text and number of calls in the answers of each route, and the reason of the end.
fn summary(path: &str, events: &[Value]) -> (String, usize, String) {
    let (mut text, mut calls, mut reason) = (String::new(), 0, String::new());
    for event in events {
        let mut add = |more: &Value| text.push_str(more.as_str().unwrap_or_default());
        match path {
            "/v1/chat/completions" => {
                let choice = &event["choices"][0];
                for message in [&choice["message"], &choice["delta"]] {
                    add(&message["content"]);
                    let all = message["tool_calls"].as_array().into_iter().flatten();
                    calls += all.filter(|call| call["function"]["name"].is_string()).count();
                }
                reason += choice["finish_reason"].as_str().unwrap_or_default();
            }
            "/api/chat" => {
                add(&event["message"]["content"]);
                calls += event["message"]["tool_calls"].as_array().map_or(0, Vec::len);
                reason += event["done_reason"].as_str().unwrap_or_default();
            }
            "/v1/messages" => {
                let blocks = event["content"].as_array().into_iter().flatten();
                for block in blocks.chain([&event["content_block"], &event["delta"]]) {
                    add(&block["text"]);
                    calls += usize::from(block["type"] == "tool_use");
                }
                let of_delta = event["delta"]["stop_reason"].as_str();
                reason += event["stop_reason"].as_str().or(of_delta).unwrap_or_default();
            }
            _ => {
                let whole = event.get("object").map(|_| event);
                let whole =
                    whole.or(event.get("response").filter(|r| r["status"] != "in_progress"));
                let Some(whole) = whole else { continue };
                for item in whole["output"].as_array().unwrap() {
                    add(&item["content"][0]["text"]);
                    calls += usize::from(item["type"] == "function_call");
                }
                reason += whole["status"].as_str().unwrap();
            }
        }
    }
    (text.trim().to_owned(), calls, reason)
}

/// Whole and streamed, on each route, wherever the limit cuts.
#[test]
fn marks_of_calls_that_a_limit_cuts_are_no_text() {
    let server = start_script(AGENT, &CALLS, |_| ());
    let function = json!({ "name": "f", "parameters": { "type": "object" } });
    let nested = json!([{ "type": "function", "function": function }]);
    let flat = json!([{ "type": "function", "name": "f", "parameters": { "type": "object" } }]);
    let anthropic = json!([{ "name": "f", "input_schema": { "type": "object" } }]);
    for (path, tools, cut) in [
        ("/v1/chat/completions", &nested, "length"),
        ("/api/chat", &nested, "length"),
        ("/v1/messages", &anthropic, "max_tokens"),
        ("/v1/responses", &flat, "incomplete"),
    ] {
        for limit in 1..CALLS.len() {
            let calls = [6, 12].iter().filter(|head| limit >= **head).count();
            for stream in [false, true] {
                let events = ask(&server, path, json!({ "tools": tools }), limit, stream);
                let expected = ("Well.".to_owned(), calls, cut.to_owned());
                assert_eq!(summary(path, &events), expected, "{path} {limit} {stream}");
            }
        }
    }
}

fn ignored(server: &TestServer, path: &str, body: &Value) -> Vec<String> {
    let reply = server.post(path, body);
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.ignored().into_iter().map(str::to_owned).collect()
}

/// A history with text beside a call; its tool returned nothing.
fn history() -> Value {
    let call = json!({ "id": "1", "type": "function", "function": { "name": "f",
        "arguments": "{}" } });
    json!({ "max_tokens": 1, "messages": [{ "role": "user", "content": "go" },
        { "role": "assistant", "content": "I look.", "tool_calls": [call] },
        { "role": "tool", "tool_call_id": "1", "content": null }] })
}

#[test]
fn names_text_beside_calls_that_the_template_leaves_out() {
    let path = "/v1/chat/completions";
    let words = ["a", "b"];
    let drops = "{% for m in messages %}{% if m.tool_calls %}<tool_call>{% else %}{{ m.content }}\
        {% endif %} {% endfor %}";
    let server = start_script(AGENT, &words[..1], |_| ());
    assert!(ignored(&server, path, &history()).is_empty());
    let server = start_script(drops, &words[..1], |_| ());
    let expected = "text beside tool calls (the chat template leaves it out)";
    assert_eq!(ignored(&server, path, &history()), [expected]);
    let strict = start_script(drops, &words[..1], |options| options.strict = true);
    let reply = strict.post(path, &history());
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("messages")));
}

#[test]
fn names_parameters_of_reasoning_without_effect() {
    let path = "/v1/chat/completions";
    let plain = "{% for m in messages %}{{ m.content }} {% endfor %}";
    let question = || json!([{ "role": "user", "content": "go" }]);
    let body =
        |name: &str, value: Value| json!({ "messages": question(), "max_tokens": 1, name: value });
    for (name, value, reason) in [
        ("reasoning_effort", json!("low"), "the chat template does not read it"),
        ("enable_thinking", json!(true), "the model has no reasoning"),
        ("thinking_token_budget", json!(3), "the model has no reasoning"),
    ] {
        let server = start_script(plain, &["a"], |_| ());
        let found = ignored(&server, path, &body(name, value.clone()));
        assert_eq!(found, [format!("{name} ({reason})")]);
        let strict = start_script(plain, &["a"], |options| options.strict = true);
        let reply = strict.post(path, &body(name, value));
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!(name)));
    }
    let reads = format!("{plain}{{{{ reasoning_effort }}}}");
    let server = start_script(&reads, &["a"], |_| ());
    assert!(ignored(&server, path, &body("reasoning_effort", json!("low"))).is_empty());
}

#[test]
fn leaves_out_reasoning_on_request() {
    let words = ["<think>", "hm", "hm2", "</think>", "Yes."];
    let server = start_script(AGENT, &words, |_| ());
    let message = |body: Value| {
        let events = ask(&server, "/v1/chat/completions", body, 9, false);
        (events[0]["choices"][0]["message"].clone(), events[0]["usage"].clone())
    };
    let (all, usage) = message(json!({}));
    assert_eq!(all["reasoning_content"], "hm hm2");
    let (short, same) = message(json!({ "include_reasoning": false }));
    assert_eq!((&short["content"], short.get("reasoning_content")), (&all["content"], None));
    assert_eq!(usage, same);
    assert_eq!(usage["completion_tokens_details"]["reasoning_tokens"], 2);
    let body = json!({ "include_reasoning": false });
    for event in ask(&server, "/v1/chat/completions", body, 9, true) {
        assert!(event["choices"][0]["delta"].get("reasoning_content").is_none(), "{event}");
    }
}

#[test]
fn reads_documents_that_are_text() {
    let server = start_script(AGENT, &["a"], |_| ());
    let count = |content: Value| {
        let body = json!({ "max_tokens": 1, "messages": [{ "role": "user", "content": content }] });
        let reply = server.post("/v1/messages/count_tokens", &body);
        (reply.status, reply.json())
    };
    let text = json!({ "type": "text", "media_type": "text/plain", "data": "x y" });
    let listed = json!({ "type": "content", "content": [{ "type": "text", "text": "x y" }] });
    for source in [&text, &listed] {
        let document = json!({ "type": "document", "source": source, "title": "T",
            "context": "C" });
        // <document> <title>T</title> <context>C</context> x y </document> and the question.
        let (status, counted) = count(json!([document, { "type": "text", "text": "go" }]));
        assert_eq!((status, &counted["input_tokens"]), (200, &json!(7)), "{counted}");
        let result = json!({ "type": "tool_result", "tool_use_id": "1", "content": [document] });
        let call = json!({ "type": "tool_use", "id": "1", "name": "f", "input": {} });
        let body = json!({ "max_tokens": 1, "messages": [{ "role": "assistant",
            "content": [call] }, { "role": "user", "content": [result] }] });
        assert_eq!(server.post("/v1/messages", &body).status, 200);
    }
    for (source, expected) in [
        (
            json!({ "type": "base64", "media_type": "application/pdf", "data": "" }),
            "application/pdf",
        ),
        (json!({ "type": "url", "url": "http://a" }), "\"url\""),
    ] {
        let (status, error) = count(json!([{ "type": "document", "source": source }]));
        let message = error["error"]["message"].as_str().unwrap();
        assert_eq!(status, 400);
        assert!(
            message.contains(expected) && message.contains("[0].content[0].source"),
            "{message}"
        );
    }
}

#[test]
fn counts_an_empty_answer_at_the_end_as_none() {
    let server = start_script(AGENT, &["a"], |_| ());
    let count = |messages: Value| {
        let body = json!({ "max_tokens": 1, "messages": messages });
        let reply = server.post("/v1/messages/count_tokens", &body);
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()["input_tokens"].clone()
    };
    let user = json!({ "role": "user", "content": "go" });
    for content in [json!(""), json!([]), json!([{ "type": "text", "text": "" }])] {
        let answer = json!({ "role": "assistant", "content": content });
        assert_eq!(count(json!([user, answer])), count(json!([user])));
    }
}

#[test]
fn shows_a_model_by_the_older_name_of_the_field() {
    let server = start_script(AGENT, &["a"], |_| ());
    for field in ["model", "name"] {
        assert_eq!(server.post("/api/show", &json!({ field: "table" })).status, 200);
        assert_eq!(server.post("/api/show", &json!({ field: "nosuch" })).status, 404);
    }
}
