//! Asserts that the comparison with transformers fails if a feature of a configuration or a tensor
//! is ignored.

use crate::cases::{Case, ConfigChanges, TOLERANCE, assert_changes_noticed};
use crate::common::*;
use polydraft_models::{Precision, load};
use serde_json::{Value, json};

/// Changes of config.json that change transformers' logits.
#[test]
fn comparison_notices_every_feature() {
    let changes: &[ConfigChanges] = &[
        ("llama", &[("rms_norm_eps", json!(1e-6)), ("rope_theta", json!(90.0))]),
        ("llama/linear", &[("rope_scaling", json!(null))]),
        (
            "llama/llama3",
            &[("rope_scaling", json!(null)), ("/rope_scaling/high_freq_factor", json!(3.0))],
        ),
        (
            "llama/yarn",
            &[
                ("rope_scaling", json!(null)),
                ("/rope_scaling/attention_factor", json!(1.0)),
                ("/rope_scaling/beta_fast", json!(2.0)),
                ("/rope_scaling/original_max_position_embeddings", json!(100)),
            ],
        ),
        (
            "llama/yarn-mscale",
            &[("/rope_scaling/mscale", json!(null)), ("/rope_scaling/truncate", json!(true))],
        ),
        ("mistral", &[("sliding_window", json!(null)), ("sliding_window", json!(6))]),
        ("mistral/no-window", &[("sliding_window", json!(8))]),
        (
            "qwen2",
            &[
                ("use_sliding_window", json!(false)),
                ("max_window_layers", json!(0)),
                ("max_window_layers", json!(2)),
                ("sliding_window", json!(7)),
            ],
        ),
        ("qwen3", &[("/rope_parameters/rope_theta", json!(900.0))]),
        (
            "gemma2",
            &[
                ("attn_logit_softcapping", json!(null)),
                ("final_logit_softcapping", json!(null)),
                ("query_pre_attn_scalar", json!(16)),
                ("sliding_window", json!(6)),
                ("layer_types", json!(["full_attention", "sliding_attention", "full_attention"])),
                ("hidden_activation", json!("silu")),
            ],
        ),
        (
            "gemma3",
            &[
                ("query_pre_attn_scalar", json!(16)),
                ("sliding_window", json!(6)),
                ("layer_types", json!(["full_attention", "sliding_attention", "full_attention"])),
                ("hidden_activation", json!("silu")),
                ("/rope_parameters/full_attention/rope_theta", json!(900.0)),
                ("/rope_parameters/full_attention/factor", json!(3.0)),
                ("/rope_parameters/sliding_attention/rope_theta", json!(90.0)),
            ],
        ),
        ("gemma3/cap", &[("final_logit_softcapping", json!(null))]),
        (
            "gemma3/old",
            &[
                ("rope_scaling", json!(null)),
                ("rope_local_base_freq", json!(null)),
                ("sliding_window_pattern", json!(2)),
            ],
        ),
        ("opt", &[("activation_function", json!("gelu"))]),
        (
            "opt-plain",
            &[("activation_function", json!("gelu_new")), ("activation_function", json!("relu"))],
        ),
    ];
    assert_changes_noticed(changes);
}

/// Families of 2024 to 2026.
#[test]
fn comparison_notices_every_feature_of_recent_families() {
    const SLIDING: &str = "sliding_attention";
    const FULL: &str = "full_attention";
    let changes: &[ConfigChanges] = &[
        (
            "smollm3",
            &[
                ("no_rope_layers", json!([1, 1, 1, 0])),
                ("sliding_window", json!(6)),
                ("layer_types", json!([SLIDING, FULL, FULL, FULL])),
            ],
        ),
        ("smollm3/no-window", &[("no_rope_layers", json!(null))]),
        (
            "granite",
            &[
                ("attention_multiplier", json!(null)),
                ("embedding_multiplier", json!(2.0)),
                ("residual_multiplier", json!(1.0)),
                ("logits_scaling", json!(1.0)),
            ],
        ),
        ("olmo2", &[("rms_norm_eps", json!(1e-2)), ("/rope_parameters/rope_theta", json!(90.0))]),
        (
            "olmo3",
            &[
                ("sliding_window", json!(6)),
                ("layer_types", json!([FULL, SLIDING, FULL])),
                ("/rope_parameters/full_attention/factor", json!(3.0)),
                ("/rope_parameters/sliding_attention/rope_theta", json!(90.0)),
            ],
        ),
        ("phi3", &[("sliding_window", json!(null)), ("sliding_window", json!(6))]),
        (
            "phi4",
            &[
                ("/rope_parameters/short_factor", json!([1.0, 1.1, 1.3, 1.6, 2.0, 25.0])),
                ("/rope_parameters/original_max_position_embeddings", json!(40)),
                ("/rope_parameters/rope_theta", json!(90.0)),
            ],
        ),
        ("glm", &[("/rope_parameters/partial_rotary_factor", json!(1.0))]),
        ("glm4", &[("/rope_parameters/partial_rotary_factor", json!(1.0))]),
        ("ministral", &[("sliding_window", json!(6)), ("layer_types", json!([FULL, SLIDING]))]),
        (
            "ministral3",
            &[
                ("/rope_parameters/llama_4_scaling_beta", json!(null)),
                ("/rope_parameters/llama_4_scaling_beta", json!(0.8)),
                ("/rope_parameters/factor", json!(3.0)),
            ],
        ),
        (
            "cohere2",
            &[
                ("logit_scale", json!(0.7)),
                ("layer_norm_eps", json!(1e-2)),
                ("sliding_window", json!(6)),
                ("layer_types", json!([SLIDING, SLIDING, FULL, FULL])),
            ],
        ),
        (
            "exaone4",
            &[
                ("sliding_window", json!(6)),
                ("layer_types", json!([SLIDING, FULL, FULL])),
                ("sliding_window", json!(null)),
            ],
        ),
        ("exaone4/no-window", &[("sliding_window", json!(5))]),
        ("seed-oss", &[("rms_norm_eps", json!(1e-2)), ("hidden_act", json!("gelu"))]),
        ("arcee", &[("hidden_act", json!("relu")), ("hidden_act", json!("silu"))]),
        (
            "gemma3-nested",
            &[
                ("/text_config/query_pre_attn_scalar", json!(16)),
                ("/text_config/sliding_window", json!(6)),
            ],
        ),
        ("mistral3", &[("/text_config/sliding_window", json!(6))]),
        ("qwen2-vl", &[("rms_norm_eps", json!(1e-2))]),
    ];
    assert_changes_noticed(changes);
}

/// Families with experts.
#[test]
fn comparison_notices_every_feature_of_experts() {
    let changes: &[ConfigChanges] = &[
        ("mixtral", &[("num_experts_per_tok", json!(1)), ("sliding_window", json!(6))]),
        (
            "qwen2-moe",
            &[
                ("num_experts_per_tok", json!(3)),
                ("norm_topk_prob", json!(true)),
                ("sliding_window", json!(6)),
                ("layer_types", json!(["full_attention", "full_attention"])),
            ],
        ),
        ("qwen3-moe", &[("num_experts_per_tok", json!(2)), ("norm_topk_prob", json!(false))]),
        ("olmoe", &[("num_experts_per_tok", json!(1)), ("norm_topk_prob", json!(true))]),
        (
            "glm4-moe",
            &[
                ("num_experts_per_tok", json!(1)),
                ("norm_topk_prob", json!(false)),
                ("routed_scaling_factor", json!(1.0)),
                ("n_group", json!(1)),
                ("topk_group", json!(1)),
                ("/rope_parameters/partial_rotary_factor", json!(1.0)),
            ],
        ),
        (
            "gpt-oss",
            &[
                ("num_experts_per_tok", json!(1)),
                ("sliding_window", json!(6)),
                ("layer_types", json!(["full_attention", "full_attention"])),
                ("/rope_parameters/truncate", json!(true)),
            ],
        ),
        (
            "deepseek-v2",
            &[
                ("num_experts_per_tok", json!(1)),
                ("routed_scaling_factor", json!(1.0)),
                ("topk_method", json!("greedy")),
                ("topk_group", json!(2)),
                ("/rope_parameters/mscale_all_dim", json!(0.9)),
                ("/rope_parameters/mscale", json!(0.9)),
            ],
        ),
        (
            "deepseek-v3",
            &[
                ("num_experts_per_tok", json!(1)),
                ("norm_topk_prob", json!(false)),
                ("routed_scaling_factor", json!(1.0)),
                ("n_group", json!(1)),
                ("topk_group", json!(1)),
                ("rope_interleave", json!(false)),
            ],
        ),
        (
            "granite-moe",
            &[
                ("num_experts_per_tok", json!(1)),
                ("attention_multiplier", json!(null)),
                ("embedding_multiplier", json!(2.0)),
                ("residual_multiplier", json!(1.0)),
                ("logits_scaling", json!(1.0)),
            ],
        ),
        ("granite-moe-shared", &[("num_experts_per_tok", json!(1))]),
    ];
    assert_changes_noticed(changes);
}

/// Families of 2026, and older small ones.
#[test]
fn comparison_notices_every_feature_of_families_of_2026() {
    let full = json!(["full_attention", "full_attention"]);
    let changes: &[ConfigChanges] = &[
        ("internlm3", &[("rms_norm_eps", json!(1e-1))]),
        ("exaone3", &[("/rope_parameters/factor", json!(2.0))]),
        ("cwm", &[("sliding_window", json!(6)), ("layer_types", full.clone())]),
        ("gemma", &[("hidden_act", json!("silu")), ("rms_norm_eps", json!(1e-1))]),
        (
            "starcoder2",
            &[
                ("sliding_window", json!(null)),
                ("hidden_act", json!("relu")),
                ("norm_epsilon", json!(1e-1)),
            ],
        ),
        ("hunyuan-dense", &[("/rope_parameters/alpha", json!(1.0))]),
        ("ernie4-5", &[("/rope_parameters/rope_theta", json!(10.0))]),
        ("ernie4-5-moe", &[("moe_k", json!(1))]),
        (
            "glm4-moe-lite",
            &[
                ("routed_scaling_factor", json!(1.0)),
                ("topk_group", json!(1)),
                ("rope_interleave", json!(false)),
            ],
        ),
        ("youtu", &[("rope_interleave", json!(false))]),
        ("sarvam-moe", &[("routed_scaling_factor", json!(1.0)), ("topk_group", json!(1))]),
        ("sarvam-mla", &[("/rope_parameters/mscale_all_dim", json!(0.0))]),
        ("solar-open", &[("norm_topk_prob", json!(false))]),
        (
            "granite-swa",
            &[
                ("sliding_window", json!(6)),
                ("attention_multiplier", json!(1.0)),
                ("layer_rope_theta", json!([1000.0, 100.0, 100.0])),
                ("layer_rope_theta", json!([100.0, 100.0, 0])),
            ],
        ),
        ("granite-moe-swa", &[("sliding_window", json!(6)), ("num_experts_per_tok", json!(1))]),
        (
            "mellum",
            &[
                ("sliding_window", json!(6)),
                ("norm_topk_prob", json!(false)),
                ("/rope_parameters/full_attention/factor", json!(1.0)),
                ("/rope_parameters/sliding_attention/rope_theta", json!(1000.0)),
            ],
        ),
        ("minimax-m2", &[("rotary_dim", json!(16)), ("num_experts_per_tok", json!(1))]),
        (
            "mistral4",
            &[
                ("/rope_parameters/llama_4_scaling_beta", json!(null)),
                ("norm_topk_prob", json!(false)),
                ("topk_group", json!(1)),
            ],
        ),
        (
            "afmoe",
            &[
                ("mup_enabled", json!(false)),
                ("route_scale", json!(1.0)),
                ("sliding_window", json!(6)),
                ("layer_types", full),
            ],
        ),
        (
            "lfm3",
            &[
                ("sliding_window", json!(6)),
                ("/rope_parameters/full_attention/partial_rotary_factor", json!(1.0)),
                ("/rope_parameters/sliding_attention/rope_theta", json!(1000.0)),
            ],
        ),
    ];
    assert_changes_noticed(changes);
}

/// Gemma 4, in which some layers attend to the keys and values of others.
#[test]
fn comparison_notices_every_feature_of_gemma4() {
    const FULL: &str = "/rope_parameters/full_attention";
    let full = |field: &str| format!("{FULL}/{field}");
    let [theta, part, kind, factor] =
        ["rope_theta", "partial_rotary_factor", "rope_type", "factor"].map(full);
    let changes: &[ConfigChanges] = &[
        (
            "gemma4",
            &[
                ("sliding_window", json!(6)),
                ("hidden_activation", json!("silu")),
                ("final_logit_softcapping", json!(null)),
                ("rms_norm_eps", json!(1e-1)),
                (&theta, json!(10.0)),
                (&part, json!(0.25)),
                (&kind, json!("default")),
                ("/rope_parameters/sliding_attention/rope_theta", json!(900.0)),
            ],
        ),
        (
            "gemma4-moe",
            &[
                ("sliding_window", json!(6)),
                ("top_k_experts", json!(1)),
                ("hidden_activation", json!("silu")),
            ],
        ),
        (
            "gemma4-nested",
            &[
                ("/text_config/sliding_window", json!(6)),
                ("/text_config/hidden_activation", json!("silu")),
            ],
        ),
        ("gemma4-unified", &[(&part, json!(0.25)), ("sliding_window", json!(6))]),
        ("gemma4-unified/stretched", &[(&factor, json!(1.0)), (&part, json!(0.5))]),
    ];
    assert_changes_noticed(changes);
}

/// Missing fields have transformers' defaults, and the last layer has full attention.
#[test]
fn missing_fields_of_gemma4_have_transformers_defaults() {
    let changed = |fields: &[(&str, Value)]| {
        let case = Case::named("gemma4-unified");
        change_config(case.directory.path(), |config| {
            for (field, value) in fields {
                config[*field] = value.clone();
            }
        });
        (alone(&mut case.open(Precision::F32), &case.tokens), case)
    };
    let defaults = json!({
        "full_attention": {
            "rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25,
        },
        "sliding_attention": { "rope_type": "default", "rope_theta": 1e4 },
    });
    let [missing, explicit] = [json!(null), defaults].map(|rotations| {
        changed(&[("rope_parameters", rotations), ("sliding_window", json!(1024))])
    });
    assert_eq!(missing.0, explicit.0);
    let window = changed(&[("rope_parameters", json!(null)), ("sliding_window", json!(null))]);
    assert_eq!(window.0, missing.0);
    let (_, case) = changed(&[("layer_types", json!(["sliding_attention", "sliding_attention"]))]);
    assert!(case.worst(&mut case.open(Precision::F32)) < TOLERANCE);
}

/// Fields that determine the tensors and their shapes are rejected by the tensors' names.
#[test]
fn errors_name_tensors_that_contradict_gemma4_fields() {
    let heads = |head: usize| json!({ "1": { "head_dim": head, "num_key_value_heads": 1 } });
    for (name, field, value, expected) in [
        ("gemma4", "num_kv_shared_layers", json!(1), "layers.3.self_attn.k_proj.weight"),
        ("gemma4", "num_kv_shared_layers", json!(3), "layers.2.mlp.gate_proj.weight"),
        ("gemma4", "num_kv_shared_layers", json!(4), "num_kv_shared_layers: expected a layer"),
        ("gemma4", "num_kv_shared_layers", json!(5), "num_kv_shared_layers: expected fewer"),
        ("gemma4", "attention_k_eq_v", json!(false), "layers.0.self_attn.v_proj.weight"),
        ("gemma4", "use_double_wide_mlp", json!(false), "layers.3.mlp.gate_proj.weight"),
        ("gemma4", "hidden_size_per_layer_input", json!(0), "per_layer"),
        ("gemma4", "hidden_size_per_layer_input", json!(16), "embed_tokens_per_layer"),
        ("gemma4", "vocab_size_per_layer_input", json!(40), "embed_tokens_per_layer"),
        ("gemma4", "enable_moe_block", json!(true), "num_experts: expected a number"),
        ("gemma4", "use_bidirectional_attention", json!("all"), "expected null or vision"),
        ("gemma4", "per_layer_config", heads(16), "per_layer_config: "),
        ("gemma4-moe", "enable_moe_block", json!(false), "experts.down_proj"),
        ("gemma4-moe", "top_k_experts", json!(5), "expected at most 4, got 5"),
        ("gemma4-unified", "per_layer_config", heads(12), "layers.1.self_attn.q_proj.weight"),
        ("gemma4-unified", "num_attention_heads", json!(5), "num_key_value_heads"),
        ("gemma4-unified", "rope_parameters", json!(7), "rope_parameters"),
    ] {
        let case = Case::named(name);
        change_config(case.directory.path(), |config| config[field] = value.clone());
        let error = load(case.directory.path(), Precision::F32.into()).unwrap_err().to_string();
        assert!(error.contains(expected), "{name}: {field} = {value}: {error}");
    }
}

/// Changing any tensor changes the output.
#[test]
fn comparison_notices_every_tensor() {
    let mut unnoticed = Vec::new();
    for folder in fixtures() {
        let case = Case::read(&folder, None);
        let path = case.directory.path().join("model.safetensors");
        let tensors = read_tensors(&path);
        for name in tensors.keys() {
            let mut changed = tensors.clone();
            let old = &tensors[name];
            // Reordering keeps sizes and means, so only a comparison of positions can notice it.
            let mut values = old.values();
            if let [one] = &mut values[..] {
                *one *= 1.5;
            }
            let rotated: Vec<f32> = values
                .iter()
                .cycle()
                .skip(values.len() / 2 + 1)
                .take(values.len())
                .copied()
                .collect();
            changed.insert(name.clone(), Tensor::new(&rotated, &old.shape, Dtype::BF16));
            write_tensors(&changed, &path);
            let last = case.logits.last().unwrap();
            let worst = distance(&alone(&mut case.open(Precision::F32), &case.tokens), last);
            // Softmax is invariant to a term that all keys share.
            let unturned = ["opt", "opt-post-norm", "opt-plain"].contains(&&case.name[..])
                || ["cohere2", "smollm3"].contains(&&case.name[..])
                    && (name.contains("layers.1.") || name.contains("layers.3."));
            // Key and value projections of layers that use another layer's cache are not read.
            let borrowed = case.name == "gemma4-nested"
                && ["k_proj", "v_proj", "k_norm"].iter().any(|part| name.contains(part))
                && name.contains("layers.3.");
            // A norm follows the last layer's scale.
            let last =
                [("gemma4", 4), ("gemma4-moe", 1), ("gemma4-nested", 3), ("gemma4-unified", 1)];
            let last = last.iter().find(|(fixture, _)| *fixture == case.name);
            let last = last
                .is_some_and(|(_, layer)| name.ends_with(&format!("layers.{layer}.layer_scalar")));
            let invisible = name.ends_with("k_proj.bias") && unturned
                || last
                || name.starts_with("vision_tower.")
                || borrowed;
            // The changed expert may compute other tokens.
            let noticed = |worst: f32| worst > 10.0 * TOLERANCE;
            let mut model = case.open(Precision::F32);
            let mut elsewhere = (1..).zip(&case.logits).map(|(length, expected)| {
                distance(&alone(&mut model, &case.tokens[..length]), expected)
            });
            if !invisible && !noticed(worst) && !elsewhere.any(noticed) {
                unnoticed.push(format!("{}: {name}: {worst:e}", case.name));
            }
        }
    }
    assert!(unnoticed.is_empty(), "{unnoticed:#?}");
}
