//! `/v1/responses`: items of answers, whole and streamed, and errors in the route's own form.

use std::collections::BTreeMap;

use crate::common::{AGENT, TestServer, start_script};
use serde_json::{Value, json};

const WORDS: [&str; 7] = [
    "<think>",
    "hm",
    "</think>",
    "Well.",
    "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>",
    "<tool_call> {\"name\": \"f\", \"arguments\": {\"a\": 2}} </tool_call>",
    "So.",
];

fn request(stream: bool) -> Value {
    json!({ "input": "go", "stream": stream,
        "tools": [{ "type": "function", "name": "f", "parameters": { "type": "object" } }] })
}

fn events(server: &TestServer, body: &Value) -> Vec<Value> {
    let reply = server.post("/v1/responses", body);
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.events().into_iter().map(|event| serde_json::from_str(event).unwrap()).collect()
}

/// Types of items with their content.
fn contents(output: &Value) -> Vec<(String, String)> {
    let items = output.as_array().unwrap().iter();
    let content = |item: &Value| match item["type"].as_str() {
        Some("function_call") => item["arguments"].as_str().unwrap().to_owned(),
        _ => item["content"][0]["text"].as_str().unwrap().trim().to_owned(),
    };
    items.map(|item| (item["type"].as_str().unwrap().to_owned(), content(item))).collect()
}

#[test]
fn items_of_streams_end_before_the_next_begins() {
    let server = start_script(AGENT, &WORDS, |_| ());
    let events = events(&server, &request(true));
    let numbers: Vec<u64> = events.iter().map(|e| e["sequence_number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    // Names of the events of each item; they follow each other.
    let mut items: Vec<(u64, Vec<String>)> = Vec::new();
    let mut done = BTreeMap::new();
    for event in &events[2..events.len() - 1] {
        let name = event["type"].as_str().unwrap().trim_start_matches("response.").to_owned();
        let index = event["output_index"].as_u64().unwrap();
        if name == "output_item.added" {
            assert_eq!(event["item"]["status"], "in_progress", "{event}");
            items.push((index, Vec::new()));
        }
        if name == "output_item.done" {
            done.insert(index, event["item"].clone());
        }
        let is_part = !name.starts_with("output_item") && !name.starts_with("function_call");
        assert_eq!(event["content_index"].as_u64(), is_part.then_some(0), "{event}");
        let (open, names) = items.last_mut().unwrap();
        assert_eq!(*open, index, "{event}");
        if names.last() != Some(&name) {
            names.push(name);
        }
    }
    let part = |kind: &str| {
        let inner = ["content_part.added", &format!("{kind}.delta"), &format!("{kind}.done")];
        let inner = inner.map(str::to_owned).to_vec();
        let (first, last) = ("output_item.added".to_owned(), "output_item.done".to_owned());
        [vec![first], inner, vec!["content_part.done".to_owned(), last]].concat()
    };
    let call: Vec<String> = part("function_call_arguments")
        .into_iter()
        .filter(|name| !name.starts_with("content_part"))
        .collect();
    let expected = [part("reasoning_text"), part("output_text"), call.clone(), call];
    let expected: Vec<Vec<String>> = [&expected[..], &[part("output_text")]].concat();
    let found: Vec<Vec<String>> = items.into_iter().map(|(_, names)| names).collect();
    assert_eq!(found, expected);
    let response = &events.last().unwrap()["response"];
    assert_eq!(response["output"], done.into_values().collect::<Value>());
    let whole = server.post("/v1/responses", &request(false)).json();
    assert_eq!(contents(&whole["output"]), contents(&response["output"]));
    let texts: Vec<String> = contents(&whole["output"]).into_iter().map(|item| item.1).collect();
    assert_eq!(texts, ["hm", "Well.", "{\"a\": 1}", "{\"a\": 2}", "So."]);
    let ids: Vec<&Value> = (0..5).map(|n| &whole["output"][n]["id"]).collect();
    assert!(ids.iter().all(|id| ids.iter().filter(|other| *other == id).count() == 1), "{ids:?}");
}

/// Each token is listed once, in deltas as at the end of its message.
#[test]
fn messages_list_the_scores_of_tokens_once() {
    let server = start_script(AGENT, &WORDS, |_| ());
    let mut body = request(true);
    body["include"] = json!(["message.output_text.logprobs"]);
    let events = events(&server, &body);
    let tokens = |listed: &Value| -> Vec<String> {
        let listed = listed.as_array().unwrap().iter();
        listed.map(|score| score["token"].as_str().unwrap().trim().to_owned()).collect()
    };
    let of_events = |name: &str| -> Vec<String> {
        let named = events.iter().filter(|event| event["type"] == name);
        named.flat_map(|event| tokens(&event["logprobs"])).collect()
    };
    let done = of_events("response.output_text.done");
    assert_eq!(done[..WORDS.len()], WORDS);
    let deltas = of_events("response.output_text.delta");
    assert!(done.starts_with(&deltas), "{deltas:?}");
    body["stream"] = false.into();
    let whole = server.post("/v1/responses", &body).json();
    let messages = [1, 4].map(|index| tokens(&whole["output"][index]["content"][0]["logprobs"]));
    assert_eq!(messages.concat(), done);
    assert!(messages[0].contains(&"Well.".to_owned()), "{messages:?}");
}

/// What the limit cuts is incomplete, and what came before it is not.
#[test]
fn cut_answers_end_with_an_incomplete_item() {
    let server = start_script(AGENT, &WORDS, |_| ());
    for (limit, statuses) in [
        (2, &["incomplete", "incomplete"][..]),
        (4, &["completed", "incomplete"]),
        (5, &["completed", "completed", "incomplete"]),
    ] {
        for stream in [false, true] {
            let mut body = request(stream);
            body["max_output_tokens"] = limit.into();
            let response = match stream {
                false => server.post("/v1/responses", &body).json(),
                true => events(&server, &body).last().unwrap()["response"].clone(),
            };
            assert_eq!(response["status"], "incomplete", "{response}");
            let items = response["output"].as_array().unwrap().iter();
            let found: Vec<&str> = items.map(|item| item["status"].as_str().unwrap()).collect();
            assert_eq!(found, statuses, "{response}");
        }
    }
}

/// The output of an answer is taken as it is, with text after calls.
#[test]
fn takes_the_items_of_an_answer_back() {
    let server = start_script(AGENT, &WORDS, |_| ());
    let answer = server.post("/v1/responses", &request(false)).json();
    let mut items = vec![json!({ "role": "user", "content": "go" })];
    items.extend(answer["output"].as_array().unwrap().iter().cloned());
    for number in [2, 3] {
        let id = &answer["output"][number]["call_id"];
        items.push(json!({ "type": "function_call_output", "call_id": id, "output": null }));
    }
    let mut body = request(false);
    body["input"] = items.into();
    let again = server.post("/v1/responses", &body);
    assert_eq!(again.status, 200, "{again:?}");
    // The tool, the question, one answer with two words, and two results.
    assert_eq!(again.json()["usage"]["input_tokens"], 6, "{again:?}");
}

#[test]
fn errors_show_the_form_of_the_route() {
    let server = start_script(AGENT, &WORDS, |_| ());
    let nested = json!({ "type": "function", "function": { "name": "f" } });
    let flat = json!({ "type": "function", "name": "f" });
    let error = |path: &str, tool: &Value, choice: Value| {
        let body = json!({ "input": "go", "messages": [{ "role": "user", "content": "go" }],
            "tools": [tool], "tool_choice": choice });
        let mut body = body;
        let unused = if path == "/v1/responses" { "messages" } else { "input" };
        body.as_object_mut().unwrap().remove(unused);
        let reply = server.post(path, &body);
        assert_eq!(reply.status, 400, "{reply:?}");
        reply.json()["error"].clone()
    };
    let auto = || json!("auto");
    for (path, tool, choice, param, expected) in [
        (
            "/v1/responses",
            &flat,
            json!("any"),
            "tool_choice",
            r#"{"type": "function", "name": ..}"#,
        ),
        (
            "/v1/chat/completions",
            &nested,
            json!({ "type": "tool" }),
            "tool_choice",
            r#"{"type": "function", "function": {"name": ..}}"#,
        ),
        (
            "/v1/chat/completions",
            &flat,
            auto(),
            "tools[0]",
            r#"{"type": "function", "function": {"name": .., "parameters""#,
        ),
        (
            "/v1/responses",
            &json!({ "type": "function" }),
            auto(),
            "tools[0]",
            r#"{"type": "function", "name": .., "parameters""#,
        ),
    ] {
        let error = error(path, tool, choice);
        assert_eq!(error["param"], param, "{error}");
        assert!(error["message"].as_str().unwrap().contains(expected), "{error}");
    }
    let body = json!({ "messages": [{ "role": "user", "content": "go" }], "max_tokens": 2,
        "tools": [{ "name": "f", "input_schema": {} }], "tool_choice": "any" });
    let reply = server.post("/v1/messages", &body).json();
    let message = reply["error"]["message"].as_str().unwrap();
    assert!(
        message.contains(r#"tool_choice"#) && message.contains(r#"{"type": "any"}"#),
        "{message}"
    );
}
