//! Roles of messages other than OpenAI's: the model's chat template decides.

use crate::common::{TestServer, start_with_template};
use serde_json::{Value, json};

/// Rejects the role `judge`, omits `ghost`, and writes the content of others.
const TEMPLATE: &str = "{% for m in messages %}\
    {% if m.role == 'judge' %}{{ raise_exception('no judges here') }}{% endif %}\
    {% if m.role == 'poet' %}{{ m.content | tojson }} d {% endif %}\
    {% if m.role not in ['ghost', 'poet'] %}{{ m.content }} {% endif %}{% endfor %}";

fn body(role: &str, content: Value) -> Value {
    let messages =
        json!([{ "role": "system", "content": "b" }, { "role": role, "content": content }]);
    json!({ "messages": messages, "max_tokens": 8, "seed": 3 })
}

fn rejected(server: &TestServer, path: &str, body: Value) -> Value {
    let reply = server.post(path, &body);
    assert_eq!(reply.status, 400, "{reply:?}");
    reply.json()["error"].clone()
}

#[test]
fn custom_roles_are_passed_to_the_template() {
    let server = start_with_template(TEMPLATE, |_| ());
    let answer = |body: &Value| {
        let reply = server.post("/v1/chat/completions", body);
        assert_eq!(reply.status, 200, "{reply:?}");
        let answer = reply.json();
        (answer["choices"][0]["message"].clone(), answer["usage"]["prompt_tokens"].clone())
    };
    let custom = answer(&body("critic", json!("a c")));
    assert_eq!(custom, answer(&body("user", json!("a c"))));
    // In either form of the content.
    assert_eq!(custom, answer(&body("critic", json!([{ "type": "text", "text": "a c" }]))));
    // A template may change the content.
    assert_eq!(server.post("/v1/chat/completions", &body("poet", json!("a\nc"))).status, 200);
    let applied = server.post("/apply-template", &body("critic", json!("a c"))).json();
    assert_eq!(applied["prompt"], "b a c ");
}

#[test]
fn reports_roles_that_the_template_rejects_or_omits() {
    let server = start_with_template(TEMPLATE, |_| ());
    let path = "/v1/chat/completions";
    let error = rejected(&server, path, body("judge", json!("a")));
    let expected = (&json!("messages"), &json!("invalid_request_error"));
    assert_eq!((&error["param"], &error["type"]), expected);
    assert!(error["message"].as_str().unwrap().contains("no judges here"), "{error}");
    // Omitted messages are reported, in full and streamed answers.
    let mut ghost = body("ghost", json!("a"));
    let reply = server.post(path, &ghost);
    assert_eq!((reply.status, reply.ignored()), (200, vec!["messages[1]"]), "{reply:?}");
    assert_eq!(reply.json()["usage"]["prompt_tokens"], 1);
    ghost["stream"] = true.into();
    assert_eq!(server.post(path, &ghost).ignored(), ["messages[1]"]);
    assert!(server.post(path, &body("critic", json!("a"))).ignored().is_empty());
    assert_eq!(rejected(&server, path, body("", json!("a")))["param"], "messages[1].role");
    let error = rejected(&server, path, body("critic", json!([{ "type": "text" }])));
    assert_eq!(error["message"], "a part of type \"text\" needs a string as its text");
    let mut budget = body("critic", json!("a"));
    budget["thinking_token_budget"] = "x".into();
    let error = rejected(&server, path, budget);
    assert!(error["message"].as_str().unwrap().starts_with("thinking_token_budget: "), "{error}");
    // Other interfaces have fixed roles.
    let error = rejected(&server, "/v1/messages", body("critic", json!("a")));
    assert!(error["message"].as_str().unwrap().contains("critic"), "{error}");
    let items = json!({ "input": [{ "role": "critic", "content": "a" }] });
    assert_eq!(rejected(&server, "/v1/responses", items)["param"], "input[0].role");
}

#[test]
fn strict_rejects_custom_roles() {
    let server = start_with_template(TEMPLATE, |options| options.strict = true);
    let error = rejected(&server, "/v1/chat/completions", body("critic", json!("a")));
    assert_eq!(error["param"], "messages[1].role");
    assert!(error["message"].as_str().unwrap().contains("developer"), "{error}");
    assert_eq!(server.post("/v1/chat/completions", &body("user", json!("a"))).status, 200);
}

/// Items that a provider made, and outputs that answer no call, as Codex 0.171.0 sends them, are
/// left out and named.
#[test]
fn items_of_other_kinds_are_left_out() {
    let server = start_with_template(TEMPLATE, |_| ());
    let input = json!([
        { "role": "user", "content": "fn" },
        { "type": "web_search_call", "id": "ws_1", "status": "completed" },
        { "type": "function_call_output", "name": "goal_objective", "namespace": "agent",
          "output": "greet all" }
    ]);
    let reply = server.post(
        "/v1/responses",
        &json!({ "input": input, "max_output_tokens": 4, "temperature": 0 }),
    );
    let expected = vec!["input[1] (web_search_call)", "input[2] (function_call_output)"];
    assert_eq!((reply.status, reply.ignored()), (200, expected), "{reply:?}");
    let alone = json!({ "input": "fn", "max_output_tokens": 4, "temperature": 0 });
    let alone = server.post("/v1/responses", &alone).json();
    assert_eq!(reply.json()["output"][0]["content"], alone["output"][0]["content"]);
    // An output of a call needs its number.
    let input = json!([{ "type": "function_call_output", "output": "a" }]);
    let reply = server.post("/v1/responses", &json!({ "input": input }));
    assert_eq!(reply.status, 400, "{reply:?}");
}

/// Agents send several messages of a user in a row, which templates of Mistral and Gemma reject:
/// there they are one. Other errors stay.
#[test]
fn messages_in_a_row_are_joined_where_roles_must_alternate() {
    let template = "{% for m in messages %}\
        {% if loop.index0 > 0 and m.role == messages[loop.index0 - 1].role %}\
        {{ raise_exception('roles must alternate') }}{% endif %}\
        {% if m.role == 'judge' %}{{ raise_exception('no judges here') }}{% endif %}\
        {{ m.role }}: {{ m.content }};{% endfor %}";
    let server = start_with_template(template, |_| ());
    let message = |role: &str, content: &str| json!({ "role": role, "content": content });
    let all = [message("user", "a"), message("user", "b"), message("assistant", "c")];
    let reply = server.post("/apply-template", &json!({ "messages": all })).json();
    assert_eq!(reply["prompt"], "user: a\n\nb;assistant: c;");
    let judges = [message("judge", "a"), message("judge", "b")];
    let error = rejected(&server, "/apply-template", json!({ "messages": judges }));
    assert!(error["message"].as_str().unwrap().contains("no judges here"), "{error}");
}
