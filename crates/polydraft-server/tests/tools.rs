//! Tool calls: parsed from the output, sent back to the model, and streamed.

use crate::common::{TestServer, start_tool_calling_model};
use serde_json::{Value, json};

fn tool() -> Value {
    json!({ "type": "function", "function": { "name": "f", "parameters": { "type": "object" } } })
}

fn call_tool(server: &TestServer, sequences: usize) -> Value {
    let body = json!({ "messages": [{ "role": "user", "content": "b" }], "tools": [tool()],
        "seed": 1, "n": sequences });
    server.post("/v1/chat/completions", &body).json()
}

fn prompt_tokens(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens"].as_u64().unwrap()
}

#[test]
fn parses_calls_from_the_output() {
    let server = start_tool_calling_model();
    let answer = call_tool(&server, 2);
    for choice in answer["choices"].as_array().unwrap() {
        let (message, function) =
            (&choice["message"], &choice["message"]["tool_calls"][0]["function"]);
        assert_eq!(
            (&choice["finish_reason"], &message["content"]),
            (&json!("tool_calls"), &Value::Null),
            "{answer}"
        );
        assert_eq!(function, &json!({ "name": "f", "arguments": "{\"a\":1}" }));
    }
    let ids: Vec<&Value> =
        (0..2).map(|n| &answer["choices"][n]["message"]["tool_calls"][0]["id"]).collect();
    assert_ne!(ids[0], ids[1]);
}

#[test]
fn passes_calls_and_results_to_the_template() {
    let server = start_tool_calling_model();
    let answer = call_tool(&server, 1);
    let mut call = answer["choices"][0]["message"].clone();
    // Clients that join a stream's chunks add an index.
    call["tool_calls"][0]["index"] = 0.into();
    let history = json!([{ "role": "user", "content": "b" }, call, { "role": "tool",
        "tool_call_id": call["tool_calls"][0]["id"], "content": "2" }]);
    let again = server
        .post("/v1/chat/completions", &json!({ "messages": history, "tools": [tool()] }))
        .json();
    assert_eq!((prompt_tokens(&answer), prompt_tokens(&again)), (2, 5), "{again}");
}

/// As a string, because a model may have written them.
#[test]
fn passes_invalid_arguments_to_the_template() {
    let server = start_tool_calling_model();
    for arguments in ["{\"city\":\"Os", "[1]", ""] {
        let call = json!({ "id": "1", "type": "function", "function": { "name": "f",
            "arguments": arguments } });
        let history = json!([{ "role": "assistant", "tool_calls": [call] }]);
        let reply =
            server.post("/v1/chat/completions", &json!({ "messages": history, "tools": [tool()] }));
        assert_eq!(reply.status, 200, "{reply:?}");
        assert_eq!(prompt_tokens(&reply.json()), 3);
    }
}

/// First the name, then the arguments, and no text.
#[test]
fn streams_calls() {
    let server = start_tool_calling_model();
    let body = json!({ "messages": [{ "role": "user", "content": "b" }], "tools": [tool()],
        "seed": 1, "stream": true });
    let reply = server.post("/v1/chat/completions", &body);
    let events = reply.events();
    let chunks: Vec<Value> = events[..events.len() - 1]
        .iter()
        .map(|event| serde_json::from_str(event).unwrap())
        .collect();
    let deltas = chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]);
    assert!(
        deltas.clone().all(|delta| delta["content"].as_str().unwrap_or_default().is_empty()),
        "{reply:?}"
    );
    let calls: Vec<&Value> = deltas.filter_map(|delta| delta["tool_calls"].get(0)).collect();
    assert_eq!(
        (&calls[0]["function"]["name"], &calls[0]["index"], &calls[0]["type"]),
        (&json!("f"), &json!(0), &json!("function"))
    );
    let arguments: String =
        calls.iter().map(|call| call["function"]["arguments"].as_str().unwrap()).collect();
    assert_eq!(arguments, "{\"a\":1}");
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
}

/// With `tool_choice` none the prompt has no tools.
#[test]
fn calls_of_unknown_or_forbidden_tools_stay_text() {
    let server = start_tool_calling_model();
    for change in [
        json!({ "tools": [{ "type": "function", "function": { "name": "g" } }] }),
        json!({ "tool_choice": "none" }),
    ] {
        let mut other =
            json!({ "messages": [{ "role": "user", "content": "b" }], "tools": [tool()] });
        for (name, value) in change.as_object().unwrap() {
            other[name] = value.clone();
        }
        let answer = server.post("/v1/chat/completions", &other).json();
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "stop", "{answer}");
        assert!(
            choice["message"]["content"].as_str().unwrap().trim_start().starts_with("<tool_call>"),
            "{choice}"
        );
        assert_eq!(prompt_tokens(&answer), if other["tool_choice"] == "none" { 1 } else { 2 });
    }
}

#[test]
fn calls_are_items_of_responses() {
    let server = start_tool_calling_model();
    let flat_tool = json!({ "type": "function", "name": "f", "parameters": { "type": "object" } });
    let answer = server
        .post("/v1/responses", &json!({ "input": "b", "tools": [flat_tool], "seed": 1 }))
        .json();
    let item = &answer["output"][0];
    assert_eq!(
        (&item["type"], &item["name"], &item["arguments"]),
        (&json!("function_call"), &json!("f"), &json!("{\"a\":1}"))
    );
    assert_eq!(answer["output"].as_array().unwrap().len(), 1);
    let reply = server.post(
        "/v1/responses",
        &json!({ "input": "b", "tools": [flat_tool], "seed": 1, "stream": true }),
    );
    let events: Vec<Value> =
        reply.events().into_iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    let count_of = |name: &str| events.iter().filter(|event| event["type"] == name).count();
    assert!(
        count_of("response.function_call_arguments.delta") > 0
            && count_of("response.output_text.delta") == 0
    );
    assert_eq!(events.last().unwrap()["response"]["output"][0]["arguments"], "{\"a\":1}");
}

/// Choices among some tools are enforced by a grammar: `openai_client.py` has calls.
#[test]
fn rejects_invalid_choices_among_some_tools() {
    let server = start_tool_calling_model();
    let allowed = |mode: &str, name: &str| {
        let tools = json!([{ "type": "function", "function": { "name": name } }]);
        let fields = json!({ "mode": mode, "tools": tools });
        json!({ "type": "allowed_tools", "allowed_tools": fields })
    };
    for (choice, expected) in [
        (allowed("required", "h"), "unknown tool \"h\""),
        (allowed("none", "f"), "a mode"),
        (json!({ "type": "allowed_tools", "mode": "auto", "tools": [] }), "a list of tools"),
    ] {
        let body = json!({ "messages": [{ "role": "user", "content": "b" }], "tools": [tool()],
            "tool_choice": choice });
        let reply = server.post("/v1/chat/completions", &body);
        assert_eq!(reply.status, 400, "{reply:?}");
        let error = reply.json()["error"].clone();
        assert!(error["message"].as_str().unwrap().contains(expected), "{error}");
        assert_eq!(error["param"], "tool_choice");
    }
}
