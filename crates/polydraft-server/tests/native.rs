//! llama.cpp's own route: outputs of completions, in its form.

use crate::common;

use std::time::Duration;

use crate::common::{END, start};
use serde_json::{Value, json};

const NOW: Duration = Duration::ZERO;

#[test]
fn completion_equals_openai_completions() {
    let server = start(NOW, |_| ());
    let post = |body: Value| {
        let reply = server.post("/completion", &body);
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()
    };
    let answer = post(json!({ "prompt": "a b", "seed": 7, "n_predict": 12, "return_tokens": true,
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
    let reported = answer["completion_probabilities"].as_array().unwrap();
    for (number, token) in reported.iter().enumerate() {
        assert_eq!(token["id"], choice["token_ids"][number]);
        assert_eq!(token["logprob"], choice["logprobs"]["token_logprobs"][number]);
        assert_eq!(token["top_logprobs"].as_array().unwrap().len(), 2);
    }
    // Ignored parameters are reported.
    let reply = server.post(
        "/completion",
        &json!({ "prompt": "a", "n_predict": 1,
        "cache_prompt": true, "samplers": ["top_k", "temp"], "n_keep": -1 }),
    );
    assert!(reply.head.contains("x-polydraft-ignored: cache_prompt, n_keep, samplers"));
    // All forms of prompts.
    let content = |prompt: Value| {
        let answer = post(json!({ "prompt": prompt, "seed": 7, "n_predict": 5 }));
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
        post(json!({ "prompt": "a", "n_predict": 3, "n_cmpl": 2 })).as_array().unwrap().len(),
        2
    );
    let fields = json!({ "prompt": "a", "n_predict": 3,
        "response_fields": ["content", "generation_settings/n_predict", "nothing"] });
    let selected = post(fields);
    assert_eq!(selected.as_object().unwrap().len(), 2);
    assert_eq!(selected["generation_settings/n_predict"], 3);
}

#[test]
fn logit_bias_and_stop_forms() {
    let server = start(NOW, |_| ());
    let post = |body: Value| server.post("/completion", &body).json();
    let biases = json!([[2, false], ["d", -100], [END, false], [5, -100.0]]);
    let body = json!({ "prompt": "a", "temperature": 0, "n_predict": 6, "logit_bias": biases });
    assert_eq!(post(body)["content"].as_str().unwrap().trim(), "b a b a b a");
    let biases = json!({ "2": -100, "d": false, "end": -100, "5": -100 });
    let body = json!({ "prompt": "a", "temperature": 0, "n_predict": 4, "logit_bias": biases });
    assert_eq!(post(body)["content"].as_str().unwrap().trim(), "b a b a");
    let body = json!({ "prompt": "a", "temperature": 0, "n_predict": 30, "stop": ["b"] });
    let answer = post(body);
    assert_eq!((&answer["stop_type"], &answer["stopping_word"]), (&json!("word"), &json!("b")));
    // −1 is up to the end of the context, and a negative seed means a random one.
    let answer = post(json!({ "prompt": "a", "n_predict": -1, "ignore_eos": true, "seed": -1 }));
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

/// vLLM continues after an end token; llama.cpp forbids it, and lists the bias.
#[test]
fn ignore_eos_forbids_the_end_token() {
    let server = start(NOW, |_| ());
    let post = |ignores: bool| {
        let body = json!({ "prompt": "a", "n_predict": 300, "seed": 2, "ignore_eos": ignores,
            "return_tokens": true, "logit_bias": [[2, -1.5]] });
        server.post("/completion", &body).json()
    };
    let (unlimited, endless) = (post(false), post(true));
    assert_eq!(unlimited["stop_type"], "eos");
    assert_eq!(
        unlimited["generation_settings"]["logit_bias"],
        json!([{ "token": 2, "bias": -1.5 }])
    );
    assert_eq!(
        (&endless["stop_type"], &endless["tokens_predicted"]),
        (&json!("limit"), &json!(300))
    );
    assert!(!endless["tokens"].as_array().unwrap().contains(&json!(END)));
    let reported = &endless["generation_settings"]["logit_bias"];
    assert_eq!(reported, &json!([{ "token": 2, "bias": -1.5 }, { "token": END, "bias": null }]));
    // If a grammar allows nothing else, the end token is still sampled.
    let server = common::start_byte_tokens();
    let body = json!({ "prompt": "a", "n_predict": 9, "ignore_eos": true,
        "grammar": "root ::= \"ab\"" });
    let reply = server.post("/completion", &body);
    assert_eq!(reply.status, 200, "{reply:?}");
    assert!(reply.json()["content"].as_str().unwrap().starts_with("ab"), "{reply:?}");
}

/// Probabilities in the distribution that was sampled: of the tokens that the filters keep.
#[test]
fn post_sampling_probs_are_those_of_the_sampled_distribution() {
    let server = start(NOW, |_| ());
    let post = |changes: Value| {
        let mut body = json!({ "prompt": "c a", "n_predict": 1, "n_probs": 4, "seed": 1,
            "temperature": 1, "post_sampling_probs": true });
        body.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        let reported = server.post("/completion", &body).json()["completion_probabilities"].clone();
        assert_eq!(reported.as_array().unwrap().len(), 1);
        reported[0].clone()
    };
    let top_probs = |reported: &Value| -> Vec<(u64, f64)> {
        let all = reported["top_probs"].as_array().unwrap().iter();
        all.map(|one| (one["id"].as_u64().unwrap(), one["prob"].as_f64().unwrap())).collect()
    };
    // The target's distribution after "c a" is 0.1, 0.6, 0.1, 0.1, 0.1, 0.
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
        let reported = post(changes.clone());
        let found = top_probs(&reported);
        assert_eq!(found.len(), expected.len(), "{changes}: {reported}");
        for ((id, p), (expected_id, expected_p)) in found.iter().zip(expected) {
            assert_eq!(id, expected_id, "{changes}: {reported}");
            assert!((p - expected_p).abs() < 1e-6, "{changes}: {reported}");
        }
        let probability = reported["prob"].as_f64().unwrap();
        let listed = found.iter().find(|(id, _)| reported["id"] == *id);
        assert!(listed.is_none_or(|(_, p)| (p - probability).abs() < 1e-12), "{reported}");
        assert!(
            reported["token"].is_string()
                && reported["bytes"].is_array()
                && reported["logprob"].is_null()
        );
    }
    // The output is the same with both kinds of probabilities.
    let body = |post: bool| {
        json!({ "prompt": "c a", "n_predict": 40, "n_probs": 3, "seed": 9,
        "post_sampling_probs": post })
    };
    let content = |post| server.post("/completion", &body(post)).json()["content"].clone();
    assert_eq!(content(true), content(false));
}

/// A filter that `samplers` leaves out is off, and another order is reported.
#[test]
fn samplers_turn_off_filters_left_out() {
    let server = start(NOW, |_| ());
    let post = |body: Value| server.post("/completion", &body);
    let body = |samplers: Value| {
        json!({ "prompt": "a", "seed": 5, "n_predict": 30, "temperature": 1.0, "top_k": 1,
            "samplers": samplers })
    };
    let unlimited = json!({ "prompt": "a", "seed": 5, "n_predict": 30, "temperature": 1.0 });
    let [unlimited, limited, all, none] = [
        post(unlimited),
        post(body(json!(null))),
        post(body(json!(["temperature", "top_k"]))),
        post(body(json!(["temperature"]))),
    ];
    assert_eq!(none.json()["content"], unlimited.json()["content"]);
    assert_eq!(all.json()["content"], limited.json()["content"]);
    assert_ne!(limited.json()["content"], unlimited.json()["content"]);
    assert!(all.ignored().is_empty());
    let other = post(body(json!(["top_k", "temperature"])));
    assert_eq!(other.ignored(), ["samplers"]);
}

#[test]
fn completion_stream_equals_full_answer() {
    let server = start(NOW, |_| ());
    let mut body = json!({ "prompt": "a b", "seed": 11, "n_predict": 40, "n_probs": 1,
        "return_tokens": true });
    let full = server.post("/completion", &body).json();
    body["stream"] = true.into();
    let reply = server.post("/completion", &body);
    let chunks: Vec<Value> =
        reply.events().iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    let (last, chunks) = chunks.split_last().unwrap();
    let text: String = chunks.iter().map(|chunk| chunk["content"].as_str().unwrap()).collect();
    assert_eq!(full["content"], text);
    let all = |name: &str| -> Value {
        chunks.iter().flat_map(|chunk| chunk[name].as_array().unwrap().clone()).collect()
    };
    assert_eq!(full["tokens"], all("tokens"));
    assert_eq!(full["completion_probabilities"], all("completion_probabilities"));
    assert!(chunks.iter().all(|chunk| chunk["stop"] == false));
    assert_eq!((&last["stop"], &last["content"]), (&json!(true), &json!("")));
    for name in ["stop_type", "tokens_predicted", "prompt", "generation_settings"] {
        assert_eq!(last[name], full[name], "{name}");
    }
}
