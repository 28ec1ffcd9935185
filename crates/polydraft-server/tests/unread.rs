//! Fields that are not read are named on every route, and invalid values are explained.

use std::time::Duration;

use crate::common::{
    AGENT, Reply, TestServer, start, start_script, start_tool_calling_model, start_with_template,
};
use serde_json::{Value, json};

const NOW: Duration = Duration::ZERO;

/// The message of an error, in the form of any route.
fn refused(server: &TestServer, path: &str, body: &Value) -> String {
    let reply = server.post(path, body);
    assert_eq!(reply.status, 400, "{body}: {reply:?}");
    let answer = reply.json();
    let message = answer["error"]["message"].as_str().or(answer["error"].as_str());
    message.expect("a message").to_owned()
}

/// The parameter of an error in OpenAI's form.
fn param(reply: &Reply) -> Value {
    reply.json()["error"]["param"].clone()
}

/// Messages with fields that no route reads, and the names of these fields.
fn with_unknown_fields() -> Vec<(&'static str, Value, Vec<&'static str>)> {
    let text = json!({ "type": "text", "text": "a", "foo": 1 });
    let call = json!({ "id": "1", "type": "function", "foo": 1,
        "function": { "name": "f", "arguments": "{}", "bar": 1 } });
    let output = json!({ "id": "m", "type": "message", "role": "assistant", "status": "completed",
        "content": [{ "type": "output_text", "text": "a", "annotations": [], "logprobs": [],
            "foo": 1 }], "bar": 1 });
    let native = json!({ "function": { "name": "f", "arguments": {}, "index": 0, "bar": 1 } });
    vec![
        (
            "/v1/chat/completions",
            json!({ "messages": [{ "role": "user", "content": [text], "bar": 1 },
                { "role": "assistant", "tool_calls": [call] },
                { "role": "tool", "tool_call_id": "1", "content": "b" }] }),
            vec![
                "messages[0].bar",
                "messages[0].content[0].foo",
                "messages[1].tool_calls[0].foo",
                "messages[1].tool_calls[0].function.bar",
            ],
        ),
        (
            "/v1/messages",
            json!({ "max_tokens": 2, "messages": [{ "role": "user", "bar": 1,
                "content": [{ "type": "text", "text": "a", "foo": 1 }] }] }),
            vec!["messages[0].bar", "messages[0].content[0].foo"],
        ),
        (
            "/v1/responses",
            json!({ "input": [
                { "role": "user", "content": "a" }, output,
                { "type": "function_call", "call_id": "1", "name": "f", "arguments": "{}",
                    "id": "c", "foo": 1 },
                { "type": "function_call_output", "call_id": "1", "output": "b", "foo": 1 }] }),
            vec!["input[1].bar", "input[1].content[0].foo", "input[2].foo", "input[3].foo"],
        ),
        (
            "/api/chat",
            json!({ "stream": false, "messages": [{ "role": "user", "content": "a", "bar": 1,
                "tool_name": "f" },
                { "role": "assistant", "content": "", "tool_calls": [native] },
                { "role": "tool", "content": "b", "tool_name": "f" }] }),
            vec![
                "messages[0].bar",
                "messages[0].tool_name",
                "messages[1].tool_calls[0].function.bar",
            ],
        ),
    ]
}

#[test]
fn names_unknown_fields_of_messages_on_every_route() {
    let (server, strict) =
        (start_tool_calling_model(), start(NOW, |options| options.strict = true));
    for (path, body, mut expected) in with_unknown_fields() {
        let reply = server.post(path, &body);
        let mut named = reply.ignored();
        named.retain(|name| !name.contains(" "));
        named.sort_unstable();
        expected.sort_unstable();
        assert_eq!((reply.status, named), (200, expected), "{path}: {reply:?}");
        assert!(refused(&strict, path, &body).contains("unknown field"), "{path}");
    }
}

#[test]
fn names_unknown_fields_of_tools_on_every_route() {
    let (server, strict) =
        (start_tool_calling_model(), start(NOW, |options| options.strict = true));
    let nested = json!({ "type": "function", "foo": 1, "cache_control": {},
        "function": { "name": "f", "description": "d", "strict": false, "bar": 1 } });
    let flat = json!({ "type": "function", "name": "f", "foo": 1, "defer_loading": true });
    let anthropic = json!({ "name": "f", "type": "custom", "input_schema": { "type": "object" },
        "cache_control": {}, "eager_input_streaming": false, "defer_loading": true, "foo": 1 });
    let messages = json!([{ "role": "user", "content": "b" }]);
    for (path, tool, expected) in [
        ("/v1/chat/completions", &nested, ["tools[0].foo", "tools[0].function.bar"]),
        ("/v1/responses", &flat, ["tools[0].defer_loading", "tools[0].foo"]),
        ("/v1/messages", &anthropic, ["tools[0].defer_loading", "tools[0].foo"]),
        ("/api/chat", &nested, ["tools[0].foo", "tools[0].function.bar"]),
    ] {
        let mut body = json!({ "tools": [tool], "stream": false });
        match path {
            "/v1/responses" => body["input"] = "b".into(),
            "/v1/messages" => (body["messages"], body["max_tokens"]) = (messages.clone(), 9.into()),
            _ => body["messages"] = messages.clone(),
        }
        let reply = server.post(path, &body);
        let mut named = reply.ignored();
        named.retain(|name| name.starts_with("tools[0]"));
        named.sort_unstable();
        assert_eq!((reply.status, named), (200, expected.to_vec()), "{path}: {reply:?}");
        assert!(refused(&strict, path, &body).contains("field \""), "{path}");
    }
}

/// A template that shows whole tools shows the model what is read, and nothing else.
#[test]
fn unread_fields_of_tools_are_not_in_the_prompt() {
    let template = "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}\
        {% for m in messages %}{{ m.content }}{% endfor %}";
    let server = start_with_template(template, |_| ());
    let prompt_tokens = |function: Value| {
        let body = json!({ "messages": [{ "role": "user", "content": "a" }], "max_tokens": 1,
            "tools": [{ "type": "function", "function": function }] });
        let reply = server.post("/v1/chat/completions", &body);
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()["usage"]["prompt_tokens"].as_u64()
    };
    let plain = prompt_tokens(json!({ "name": "f", "description": "b" }));
    assert_eq!(prompt_tokens(json!({ "name": "f", "description": "b", "foo": "c" })), plain);
    let returns = json!({ "name": "f", "description": "b", "return": "c" });
    assert!(prompt_tokens(returns) > plain);
}

#[test]
fn ollama_formats_and_options_are_named() {
    let server = start(NOW, |_| ());
    let messages = json!([{ "role": "user", "content": "a" }]);
    let body = json!({ "messages": messages, "stream": false, "format": "xml" });
    let expected = "format: expected \"json\" or a JSON schema, got \"xml\"";
    assert_eq!(refused(&server, "/api/chat", &body), expected);
    let body = json!({ "messages": messages, "options": { "num_predict": -7 } });
    let expected = "options.num_predict: expected at least 0, or -1 for no limit, got -7";
    assert_eq!(refused(&server, "/api/chat", &body), expected);
    let options = json!({ "num_ctx": 4096, "num_gpu": 1, "num_thread": 2, "penalize_newline": true,
        "foo": 1, "num_predict": -2, "stop": ["b"] });
    let strict = start(NOW, |options| options.strict = true);
    for (path, input) in
        [("/api/chat", ("messages", messages.clone())), ("/api/generate", ("prompt", json!("a")))]
    {
        let mut body = json!({ "stream": false, "format": "", "options": options });
        body[input.0] = input.1;
        let reply = server.post(path, &body);
        let named = reply.ignored();
        let expected = ["num_ctx", "num_gpu", "num_thread", "penalize_newline", "foo"];
        assert_eq!((reply.status, named), (200, expected.to_vec()), "{path}: {reply:?}");
    }
    let body = json!({ "messages": messages, "options": { "num_ctx": 4096 } });
    assert!(refused(&strict, "/api/chat", &body).contains("num_ctx"));
}

#[test]
fn responses_name_verbosity() {
    let body = json!({ "input": "a", "text": { "verbosity": "low" } });
    assert_eq!(start(NOW, |_| ()).post("/v1/responses", &body).ignored(), ["text.verbosity"]);
    let strict = start(NOW, |options| options.strict = true);
    assert!(refused(&strict, "/v1/responses", &body).contains("text.verbosity"));
}

#[test]
fn arguments_may_be_an_object_and_content_not_null() {
    let server = start_tool_calling_model();
    let body = |arguments: Value| {
        let call = json!({ "id": "1", "function": { "name": "f", "arguments": arguments } });
        json!({ "messages": [{ "role": "user", "content": "b" },
            { "role": "assistant", "content": null, "tool_calls": [call] }], "seed": 1 })
    };
    let answer = |arguments| {
        let reply = server.post("/v1/chat/completions", &body(arguments));
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()["usage"]["prompt_tokens"].clone()
    };
    assert_eq!(answer(json!({ "a": 1 })), answer(json!("{\"a\": 1}")));
    let message = refused(&server, "/v1/chat/completions", &body(json!(5)));
    let place = "messages[1].tool_calls[0].function.arguments: expected a string or an object";
    assert_eq!(message, place);
    for role in ["user", "system"] {
        let body = json!({ "messages": [{ "role": role, "content": null }] });
        let expected = "messages[0].content: expected a string or a list of parts, got null; \
                        leave the message out or send \"\"";
        assert_eq!(refused(&server, "/v1/chat/completions", &body), expected);
    }
}

#[test]
fn responses_need_a_message() {
    let server = start(NOW, |_| ());
    for (input, expected) in [
        (json!([]), ""),
        (json!([{ "type": "web_search_call" }]), "; left out: input[0] (web_search_call)"),
    ] {
        for instructions in [Value::Null, json!("c")] {
            let reply = server
                .post("/v1/responses", &json!({ "input": input, "instructions": instructions }));
            assert_eq!((reply.status, param(&reply)), (400, json!("input")), "{reply:?}");
            let message = format!("input: expected at least one message{expected}");
            assert_eq!(reply.json()["error"]["message"], message);
        }
    }
}

#[test]
fn negative_limits_are_errors() {
    let server = start(NOW, |_| ());
    let messages = json!([{ "role": "user", "content": "a" }]);
    for (path, name, value, place) in [
        ("/v1/chat/completions", "max_tokens", json!(-2), "max_tokens"),
        ("/v1/chat/completions", "n_predict", json!(-2), "n_predict"),
        ("/v1/chat/completions", "thinking_token_budget", json!(-3), "thinking_token_budget"),
        ("/v1/chat/completions", "reasoning_budget", json!(-3), "reasoning_budget"),
        (
            "/v1/chat/completions",
            "thinking",
            json!({ "type": "enabled", "budget_tokens": -5 }),
            "thinking.budget_tokens",
        ),
        ("/v1/messages", "max_tokens", json!(-2), "max_tokens"),
        ("/v1/responses", "max_output_tokens", json!(-2), "max_output_tokens"),
        ("/v1/completions", "max_tokens", json!(-2), "max_tokens"),
    ] {
        let mut body = match path {
            "/v1/responses" => json!({ "input": "a" }),
            "/v1/completions" => json!({ "prompt": "a" }),
            _ => json!({ "messages": messages }),
        };
        body[name] = value;
        let message = refused(&server, path, &body);
        let expected = format!("{place}: expected at least 0, or -1 for no limit, got -");
        assert!(message.starts_with(&expected), "{path}: {message}");
        if path == "/v1/chat/completions" {
            assert_eq!(param(&server.post(path, &body)), place, "{body}");
        }
    }
}

#[test]
fn errors_speak_of_json_and_name_the_parameter() {
    let server = start(NOW, |_| ());
    let messages = json!([{ "role": "user", "content": "a" }]);
    for (name, value, expected) in [
        ("chat_template_kwargs", json!("x"), "chat_template_kwargs: expected an object, got \"x\""),
        ("enable_thinking", json!(5), "enable_thinking: expected true or false"),
        ("stop", json!(5), "stop: expected a string or a list of strings"),
        ("messages", json!([5]), "messages[0]: expected an object, got 5"),
        ("messages", json!([{ "content": "a" }]), "messages[0]: the field \"role\" is missing"),
        ("messages", json!("a"), "messages: expected a list, got \"a\""),
        ("top_k", json!("a"), "top_k: expected an integer, got \"a\""),
        ("min_tokens", json!(-1), "min_tokens: expected an integer of at least 0, got -1"),
        ("response_format", json!("json"), "response_format: expected an object, got \"json\""),
    ] {
        let mut body = json!({ "messages": messages });
        body[name] = value;
        assert_eq!(refused(&server, "/v1/chat/completions", &body), expected);
        let place = expected.split_once(':').expect("a parameter").0;
        assert_eq!(param(&server.post("/v1/chat/completions", &body)), place);
    }
    let body = json!({ "messages": messages, "response_format": { "type": "xml" } });
    let message = refused(&server, "/v1/chat/completions", &body);
    assert!(message.contains("expected one of \"text\", \"json_object\""), "{message}");
}

#[test]
fn refusals_say_what_to_use_instead() {
    let server = start(NOW, |_| ());
    let tool = json!([{ "type": "function", "function": { "name": "f" } }]);
    for (name, value, expected) in [
        ("functions", tool.clone(), "send tools"),
        ("function_call", json!("auto"), "send tool_choice"),
        ("conversation", json!("c"), "previous_response_id"),
        ("chat_template", json!("{{ messages }}"), "--chat-template FILE"),
        ("tools", tool, "--chat-template FILE"),
    ] {
        let mut body = json!({ "messages": [{ "role": "user", "content": "a" }] });
        body[name] = value;
        let message = refused(&server, "/v1/chat/completions", &body);
        assert!(message.contains(expected), "{message}");
    }
}

/// An answer that is cut before its text has the same blocks, whole and streamed.
#[test]
fn anthropic_blocks_without_text_are_equal() {
    let server = start_script(AGENT, &["<think>", "hm", "oh", "</think>", "a"], |_| ());
    for (limit, expected) in
        [(1, vec!["text"]), (3, vec!["thinking"]), (9, vec!["thinking", "text"])]
    {
        let body = |stream: bool| {
            json!({ "messages": [{ "role": "user", "content": "go" }], "max_tokens": limit,
                "stream": stream })
        };
        let whole = server.post("/v1/messages", &body(false)).json();
        let blocks = whole["content"].as_array().expect("blocks").iter();
        let whole: Vec<Value> = blocks.map(|block| block["type"].clone()).collect();
        let reply = server.post("/v1/messages", &body(true));
        let events = reply.events().into_iter().map(|event| serde_json::from_str(event).unwrap());
        let streamed: Vec<Value> = events
            .filter(|event: &Value| event["type"] == "content_block_start")
            .map(|event| event["content_block"]["type"].clone())
            .collect();
        assert_eq!((&whole, &whole), (&streamed, &expected.iter().map(|k| json!(k)).collect()));
    }
}
