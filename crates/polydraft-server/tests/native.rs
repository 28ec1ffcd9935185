//! llama.cpp's own route: the texts of completions, in its form.

mod common;

use std::time::Duration;

use common::{END, start};
use serde_json::{Value, json};

const NOW: Duration = Duration::ZERO;

#[test]
fn it_says_what_completions_say() {
    let server = start(NOW, |_| ());
    let ask = |body: Value| {
        let reply = server.post("/completion", &body);
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()
    };
    let answer = ask(json!({ "prompt": "a b", "seed": 7, "n_predict": 12, "return_tokens": true,
        "n_probs": 2, "cache_prompt": true, "id_slot": -1,
        "samplers": ["top_k", "top_p", "temperature"] }));
    let same = server.complete(json!({ "prompt": "a b", "seed": 7, "max_tokens": 12,
        "return_token_ids": true, "logprobs": 2 }));
    let choice = &same["choices"][0];
    assert_eq!(answer["content"], choice["text"]);
    assert_eq!(answer["tokens"], choice["token_ids"]);
    assert_eq!((&answer["stop"], &answer["prompt"]), (&json!(true), &json!("a b")));
    assert_eq!(answer["tokens_evaluated"], 2);
    assert_eq!(answer["tokens_predicted"], same["usage"]["completion_tokens"]);
    assert_eq!(answer["timings"]["predicted_n"], answer["tokens_predicted"]);
    let length = choice["finish_reason"] == "length";
    assert_eq!(answer["stop_type"], if length { "limit" } else { "eos" });
    assert_eq!(answer["generation_settings"]["n_predict"], 12);
    let told = answer["completion_probabilities"].as_array().unwrap();
    for (number, token) in told.iter().enumerate() {
        assert_eq!(token["id"], choice["token_ids"][number]);
        assert_eq!(token["logprob"], choice["logprobs"]["token_logprobs"][number]);
        assert_eq!(token["top_logprobs"].as_array().unwrap().len(), 2);
    }
    // What nothing is done about is named.
    let reply = server.post(
        "/completion",
        &json!({ "prompt": "a", "n_predict": 1,
        "cache_prompt": true, "samplers": ["top_k", "temp"], "n_keep": -1 }),
    );
    assert!(reply.head.contains("x-polydraft-ignored: cache_prompt, n_keep, samplers"));
    // Prompts in all their forms.
    let content = |prompt: Value| {
        let answer = ask(json!({ "prompt": prompt, "seed": 7, "n_predict": 5 }));
        match answer.as_array() {
            Some(all) => all.iter().map(|one| one["content"].clone()).collect(),
            None => vec![answer["content"].clone()],
        }
    };
    let text = content(json!("a b a"));
    for same in [json!([0, 1, 0]), json!([0, "b", 0]), json!({ "prompt_string": "a b a" })] {
        assert_eq!(content(same.clone()), text, "{same}");
        assert_eq!(content(json!([same, "a b a"]))[1], text[0]);
    }
    assert_eq!(content(json!(["a b a"])), text);
    assert_eq!(
        ask(json!({ "prompt": "a", "n_predict": 3, "n_cmpl": 2 })).as_array().unwrap().len(),
        2
    );
    let fields = json!({ "prompt": "a", "n_predict": 3,
        "response_fields": ["content", "generation_settings/n_predict", "nothing"] });
    let chosen = ask(fields);
    assert_eq!(chosen.as_object().unwrap().len(), 2);
    assert_eq!(chosen["generation_settings/n_predict"], 3);
}

#[test]
fn biases_and_ends_in_its_forms() {
    let server = start(NOW, |_| ());
    let ask = |body: Value| server.post("/completion", &body).json();
    let biases = json!([[2, false], ["d", -100], [END, false], [5, -100.0]]);
    let body = json!({ "prompt": "a", "temperature": 0, "n_predict": 6, "logit_bias": biases });
    assert_eq!(ask(body)["content"].as_str().unwrap().trim(), "b a b a b a");
    let biases = json!({ "2": -100, "d": false, "end": -100, "5": -100 });
    let body = json!({ "prompt": "a", "temperature": 0, "n_predict": 4, "logit_bias": biases });
    assert_eq!(ask(body)["content"].as_str().unwrap().trim(), "b a b a");
    let body = json!({ "prompt": "a", "temperature": 0, "n_predict": 30, "stop": ["b"] });
    let answer = ask(body);
    assert_eq!((&answer["stop_type"], &answer["stopping_word"]), (&json!("word"), &json!("b")));
    // −1 is up to the end of the context, and a seed below 0 is none.
    let answer = ask(json!({ "prompt": "a", "n_predict": -1, "ignore_eos": true, "seed": -1 }));
    assert_eq!(answer["tokens_predicted"], 511);
    for (name, value) in [
        ("prompt", json!(null)),
        ("prompt", json!([0, null])),
        ("prompt", json!({ "prompt_string": "a", "multimodal_data": ["x"] })),
        ("logit_bias", json!([[0, true]])),
        ("post_sampling_probs", json!(true)),
        ("mirostat", json!(2)),
        ("samplers", json!(7)),
    ] {
        let mut body = json!({ "prompt": "a" });
        body[name] = value;
        let reply = server.post("/completion", &body);
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!(name)), "{body}");
    }
}

/// A filter that `samplers` leaves out does nothing, and an order that is not ours is said.
#[test]
fn samplers_choose_among_filters() {
    let server = start(NOW, |_| ());
    let ask = |body: Value| server.post("/completion", &body);
    let body = |samplers: Value| {
        json!({ "prompt": "a", "seed": 5, "n_predict": 30, "temperature": 1.0, "top_k": 1,
            "samplers": samplers })
    };
    let free = json!({ "prompt": "a", "seed": 5, "n_predict": 30, "temperature": 1.0 });
    let [free, cut, all, none] = [
        ask(free),
        ask(body(json!(null))),
        ask(body(json!(["temperature", "top_k"]))),
        ask(body(json!(["temperature"]))),
    ];
    assert_eq!(none.json()["content"], free.json()["content"]);
    assert_eq!(all.json()["content"], cut.json()["content"]);
    assert_ne!(cut.json()["content"], free.json()["content"]);
    assert!(all.ignored().is_empty());
    let other = ask(body(json!(["top_k", "temperature"])));
    assert_eq!(other.ignored(), ["samplers"]);
}

#[test]
fn a_stream_says_what_the_whole_says() {
    let server = start(NOW, |_| ());
    let mut body = json!({ "prompt": "a b", "seed": 11, "n_predict": 40, "n_probs": 1,
        "return_tokens": true });
    let whole = server.post("/completion", &body).json();
    body["stream"] = true.into();
    let reply = server.post("/completion", &body);
    let chunks: Vec<Value> =
        reply.events().iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    let (last, chunks) = chunks.split_last().unwrap();
    let text: String = chunks.iter().map(|chunk| chunk["content"].as_str().unwrap()).collect();
    assert_eq!(whole["content"], text);
    let all = |name: &str| -> Value {
        chunks.iter().flat_map(|chunk| chunk[name].as_array().unwrap().clone()).collect()
    };
    assert_eq!(whole["tokens"], all("tokens"));
    assert_eq!(whole["completion_probabilities"], all("completion_probabilities"));
    assert!(chunks.iter().all(|chunk| chunk["stop"] == false));
    assert_eq!((&last["stop"], &last["content"]), (&json!(true), &json!("")));
    for name in ["stop_type", "tokens_predicted", "prompt", "generation_settings"] {
        assert_eq!(last[name], whole[name], "{name}");
    }
}
