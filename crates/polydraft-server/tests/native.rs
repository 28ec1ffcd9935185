//! llama.cpp's own route: the texts of completions, in its form.

use crate::common;

use std::time::Duration;

use crate::common::{END, start};
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
        ("adaptive_target", json!(0.3)),
        ("mirostat", json!(2)),
        ("samplers", json!(7)),
    ] {
        let mut body = json!({ "prompt": "a" });
        body[name] = value;
        let reply = server.post("/completion", &body);
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!(name)), "{body}");
    }
}

/// Where vLLM goes on after an end token, llama.cpp forbids it, and says so.
#[test]
fn what_ignores_the_end_never_has_it() {
    let server = start(NOW, |_| ());
    let ask = |ignores: bool| {
        let body = json!({ "prompt": "a", "n_predict": 300, "seed": 2, "ignore_eos": ignores,
            "return_tokens": true, "logit_bias": [[2, -1.5]] });
        server.post("/completion", &body).json()
    };
    let (free, endless) = (ask(false), ask(true));
    assert_eq!(free["stop_type"], "eos");
    assert_eq!(free["generation_settings"]["logit_bias"], json!([{ "token": 2, "bias": -1.5 }]));
    assert_eq!(
        (&endless["stop_type"], &endless["tokens_predicted"]),
        (&json!("limit"), &json!(300))
    );
    assert!(!endless["tokens"].as_array().unwrap().contains(&json!(END)));
    let told = &endless["generation_settings"]["logit_bias"];
    assert_eq!(told, &json!([{ "token": 2, "bias": -1.5 }, { "token": END, "bias": null }]));
    // Where a grammar allows nothing else it comes all the same.
    let server = common::start_bytes();
    let body = json!({ "prompt": "a", "n_predict": 9, "ignore_eos": true,
        "grammar": "root ::= \"ab\"" });
    let reply = server.post("/completion", &body);
    assert_eq!(reply.status, 200, "{reply:?}");
    assert!(reply.json()["content"].as_str().unwrap().starts_with("ab"), "{reply:?}");
}

/// Those of the distribution that a token was sampled from: of the tokens that the filters leave.
#[test]
fn probabilities_after_sampling() {
    let server = start(NOW, |_| ());
    let ask = |changes: Value| {
        let mut body = json!({ "prompt": "c a", "n_predict": 1, "n_probs": 4, "seed": 1,
            "temperature": 1, "post_sampling_probs": true });
        body.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        let told = server.post("/completion", &body).json()["completion_probabilities"].clone();
        assert_eq!(told.as_array().unwrap().len(), 1);
        told[0].clone()
    };
    let of = |told: &Value| -> Vec<(u64, f64)> {
        let all = told["top_probs"].as_array().unwrap().iter();
        all.map(|one| (one["id"].as_u64().unwrap(), one["prob"].as_f64().unwrap())).collect()
    };
    // After "c a" the target says 0.1, 0.6, 0.1, 0.1, 0.1, 0.
    for (changes, expected) in [
        (json!({}), &[(1, 0.6), (0, 0.1), (2, 0.1), (3, 0.1)][..]),
        (json!({ "top_k": 2 }), &[(1, 6.0 / 7.0), (0, 1.0 / 7.0)]),
        (json!({ "min_p": 0.5 }), &[(1, 1.0)]),
        (json!({ "temperature": 0 }), &[(1, 1.0)]),
        (json!({ "temperature": 0.5, "n_probs": 2 }), &[(1, 0.9), (0, 0.025)]),
        (
            json!({ "logit_bias": [["b", false], [END, false]], "n_probs": 3 }),
            &[(0, 1.0 / 3.0), (2, 1.0 / 3.0), (3, 1.0 / 3.0)],
        ),
    ] {
        let told = ask(changes.clone());
        let found = of(&told);
        assert_eq!(found.len(), expected.len(), "{changes}: {told}");
        for ((id, p), (expected_id, expected_p)) in found.iter().zip(expected) {
            assert_eq!(id, expected_id, "{changes}: {told}");
            assert!((p - expected_p).abs() < 1e-6, "{changes}: {told}");
        }
        let own = told["prob"].as_f64().unwrap();
        let listed = found.iter().find(|(id, _)| told["id"] == *id);
        assert!(listed.is_none_or(|(_, p)| (p - own).abs() < 1e-12), "{told}");
        assert!(told["token"].is_string() && told["bytes"].is_array() && told["logprob"].is_null());
    }
    // It is no other output.
    let body = |post: bool| {
        json!({ "prompt": "c a", "n_predict": 40, "n_probs": 3, "seed": 9,
        "post_sampling_probs": post })
    };
    let content = |post| server.post("/completion", &body(post)).json()["content"].clone();
    assert_eq!(content(true), content(false));
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
