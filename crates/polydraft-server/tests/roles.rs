//! Roles of messages that are none of OpenAI's: the model's chat template has the last word.

use crate::common::{Running, start_templated};
use serde_json::{Value, json};

/// One that refuses the role `judge`, leaves out `ghost`, and writes what others say.
const TEMPLATE: &str = "{% for m in messages %}\
    {% if m.role == 'judge' %}{{ raise_exception('no judges here') }}{% endif %}\
    {% if m.role == 'poet' %}{{ m.content | tojson }} d {% endif %}\
    {% if m.role not in ['ghost', 'poet'] %}{{ m.content }} {% endif %}{% endfor %}";

fn body(role: &str, content: Value) -> Value {
    let messages =
        json!([{ "role": "system", "content": "b" }, { "role": role, "content": content }]);
    json!({ "messages": messages, "max_tokens": 8, "seed": 3 })
}

fn refused(server: &Running, path: &str, body: Value) -> Value {
    let reply = server.post(path, &body);
    assert_eq!(reply.status, 400, "{reply:?}");
    reply.json()["error"].clone()
}

#[test]
fn the_template_reads_them() {
    let server = start_templated(TEMPLATE, |_| ());
    let answer = |body: &Value| {
        let reply = server.post("/v1/chat/completions", body);
        assert_eq!(reply.status, 200, "{reply:?}");
        let answer = reply.json();
        (answer["choices"][0]["message"].clone(), answer["usage"]["prompt_tokens"].clone())
    };
    let own = answer(&body("critic", json!("a c")));
    assert_eq!(own, answer(&body("user", json!("a c"))));
    // Whatever the content's form.
    assert_eq!(own, answer(&body("critic", json!([{ "type": "text", "text": "a c" }]))));
    // A template may write it otherwise than it was sent.
    assert_eq!(server.post("/v1/chat/completions", &body("poet", json!("a\nc"))).status, 200);
    let applied = server.post("/apply-template", &body("critic", json!("a c"))).json();
    assert_eq!(applied["prompt"], "b a c ");
}

#[test]
fn the_template_may_refuse_them_or_leave_them_out() {
    let server = start_templated(TEMPLATE, |_| ());
    let path = "/v1/chat/completions";
    let error = refused(&server, path, body("judge", json!("a")));
    let expected = (&json!("messages"), &json!("invalid_request_error"));
    assert_eq!((&error["param"], &error["type"]), expected);
    assert!(error["message"].as_str().unwrap().contains("no judges here"), "{error}");
    // What the model does not read is told, whole or as a stream.
    let mut ghost = body("ghost", json!("a"));
    let reply = server.post(path, &ghost);
    assert_eq!((reply.status, reply.ignored()), (200, vec!["messages[1]"]), "{reply:?}");
    assert_eq!(reply.json()["usage"]["prompt_tokens"], 1);
    ghost["stream"] = true.into();
    assert_eq!(server.post(path, &ghost).ignored(), ["messages[1]"]);
    assert!(server.post(path, &body("critic", json!("a"))).ignored().is_empty());
    assert_eq!(refused(&server, path, body("", json!("a")))["param"], "messages[1].role");
    // The other interfaces have roles of their own.
    let wrong = refused(&server, "/v1/messages", body("critic", json!("a")));
    assert!(wrong["message"].as_str().unwrap().contains("critic"), "{wrong}");
    let items = json!({ "input": [{ "role": "critic", "content": "a" }] });
    assert_eq!(refused(&server, "/v1/responses", items)["param"], "input[0].role");
}

#[test]
fn a_strict_server_has_openais_alone() {
    let server = start_templated(TEMPLATE, |options| options.strict = true);
    let error = refused(&server, "/v1/chat/completions", body("critic", json!("a")));
    assert_eq!(error["param"], "messages[1].role");
    assert!(error["message"].as_str().unwrap().contains("developer"), "{error}");
    assert_eq!(server.post("/v1/chat/completions", &body("user", json!("a"))).status, 200);
}
