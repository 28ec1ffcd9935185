//! Families with recurrent layers: the comparison with transformers fails if a feature is ignored,
//! and invalid fields are rejected.

use crate::cases::{Case, ConfigChanges, TOLERANCE, assert_changes_noticed};
use crate::common::*;
use polydraft_models::{Description, Precision, load};
use serde_json::json;

/// Families with recurrent layers.
#[test]
fn comparison_notices_every_feature_of_hybrids() {
    const LINEAR: &str = "linear_attention";
    const FULL: &str = "full_attention";
    let changes: &[ConfigChanges] = &[
        (
            "qwen3-next",
            &[
                ("num_experts_per_tok", json!(1)),
                ("norm_topk_prob", json!(false)),
                ("rms_norm_eps", json!(1e-2)),
                ("/rope_parameters/partial_rotary_factor", json!(1.0)),
                ("/rope_parameters/rope_theta", json!(90.0)),
                ("linear_heads_in_turn", json!(true)),
            ],
        ),
        ("qwen3-5", &[("rms_norm_eps", json!(1e-2)), ("hidden_act", json!("gelu"))]),
        (
            "qwen3-5-nested",
            &[
                ("/text_config/rms_norm_eps", json!(1e-2)),
                ("/text_config/linear_heads_in_turn", json!(true)),
            ],
        ),
        ("qwen3-5-moe", &[("num_experts_per_tok", json!(1))]),
        ("lfm2", &[("norm_eps", json!(1e-2)), ("/rope_parameters/rope_theta", json!(90.0))]),
        (
            "lfm2-moe",
            &[
                ("num_experts_per_tok", json!(1)),
                ("norm_topk_prob", json!(false)),
                ("routed_scaling_factor", json!(1.0)),
            ],
        ),
        (
            "granite-hybrid",
            &[
                ("rms_norm_eps", json!(1e-2)),
                ("attention_multiplier", json!(null)),
                ("embedding_multiplier", json!(2.0)),
                ("residual_multiplier", json!(1.0)),
                ("logits_scaling", json!(1.0)),
                ("position_embedding_type", json!("nope")),
                ("/rope_parameters/rope_theta", json!(90.0)),
                ("hidden_act", json!("gelu")),
                ("time_step_limit", json!(null)),
                ("time_step_limit", json!([0.5, "Infinity"])),
                ("time_step_limit", json!([0.0, 1.0])),
            ],
        ),
        ("granite-hybrid/no-positions", &[("position_embedding_type", json!("rope"))]),
        (
            "granite-hybrid-moe",
            &[("num_experts_per_tok", json!(1)), ("position_embedding_type", json!("rope"))],
        ),
        (
            "nemotron-h",
            &[
                ("layer_norm_epsilon", json!(1e-2)),
                ("mlp_hidden_act", json!("relu")),
                ("time_step_min", json!(null)),
            ],
        ),
        (
            "nemotron-h-moe",
            &[
                ("num_experts_per_tok", json!(1)),
                ("norm_topk_prob", json!(false)),
                ("routed_scaling_factor", json!(1.0)),
                ("n_group", json!(1)),
                ("topk_group", json!(1)),
                ("mlp_hidden_act", json!("relu")),
            ],
        ),
        (
            "nemotron-h-latent",
            &[
                ("num_experts_per_tok", json!(1)),
                ("routed_scaling_factor", json!(1.0)),
                ("n_group", json!(1)),
                ("mlp_hidden_act", json!("relu")),
                ("layer_norm_epsilon", json!(1e-2)),
            ],
        ),
        (
            "granite-hybrid-attention",
            &[("position_embedding_type", json!(null)), ("residual_multiplier", json!(1.0))],
        ),
    ];
    assert_changes_noticed(changes);
    // Layer types as an interval instead of a list.
    let case = Case::named("qwen3-next");
    change_config(case.directory.path(), |config| {
        assert_eq!(config["layer_types"], json!([LINEAR, FULL]));
        config["layer_types"] = json!(null);
        config["full_attention_interval"] = json!(2);
    });
    assert!(case.worst(&mut case.open(Precision::F32)) < TOLERANCE);
}

/// Older names of layer types and sizes, and `Infinity` as a bound.
#[test]
fn reads_older_granite_hybrid_configurations() {
    let case = Case::named("granite-hybrid-moe");
    change_config(case.directory.path(), |config| {
        config["layer_types"] = json!(["mamba", "attention"]);
        config["mamba_d_head"] = json!("auto");
        config["time_step_limit"] = json!([0.0, "#"]);
    });
    let path = case.directory.path().join("config.json");
    let text = std::fs::read_to_string(&path).unwrap().replace("\"#\"", "Infinity");
    assert!(text.contains(" Infinity") || text.contains(",Infinity"));
    std::fs::write(&path, text).unwrap();
    assert!(case.worst(&mut case.open(Precision::F32)) < TOLERANCE);
}

/// Fields that determine the tensors and their shapes are rejected by the tensors' names.
#[test]
fn errors_name_tensors_that_contradict_state_space_fields() {
    for (field, value, expected) in [
        ("mamba_n_groups", json!(3), "expected a divisor of its 4 heads, got 3"),
        ("mamba_n_groups", json!(1), "layers.0.mamba."),
        ("mamba_n_groups", json!(0), "mamba_n_groups"),
        ("mamba_n_heads", json!(5), "mamba_d_head"),
        ("mamba_n_heads", json!(128), "mamba_d_head"),
        ("mamba_d_head", json!(8), "mamba_d_head"),
        ("mamba_d_head", json!("wide"), "mamba_d_head"),
        ("mamba_expand", json!(3), "mamba_d_head"),
        ("mamba_d_state", json!(13), "layers.0.mamba."),
        ("mamba_d_conv", json!(3), "layers.0.mamba.conv1d.weight"),
        ("mamba_conv_bias", json!(false), "layers.0.mamba.conv1d.bias"),
        ("mamba_proj_bias", json!(false), "_proj.bias"),
        ("time_step_limit", json!([1.0, 0.5]), "time_step_limit: expected two ascending"),
        ("time_step_limit", json!("Infinity"), "time_step_limit: expected two ascending"),
        ("layer_types", json!(["mamba", "attention"]), "layer_types: expected 3 entries"),
        ("layer_types", json!(["mamba", "attention", "moe"]), "got \"moe\""),
        ("layer_types", json!(null), "expected a layer with attention"),
        ("num_local_experts", json!(4), "num_experts_per_tok"),
        ("shared_intermediate_size", json!(32), "shared_mlp.input_linear.weight"),
    ] {
        let case = Case::named("granite-hybrid");
        change_config(case.directory.path(), |config| config[field] = value.clone());
        let error = load(case.directory.path(), Precision::F32.into()).unwrap_err().to_string();
        assert!(error.contains(expected), "{field} = {value}: {error}");
    }
}

#[test]
fn reads_the_second_name_of_lfm2s_inner_width() {
    let case = Case::named("lfm2");
    change_config(case.directory.path(), |config| {
        let inner = config.as_object_mut().unwrap().remove("intermediate_size").unwrap();
        config["block_ff_dim"] = inner;
    });
    assert!(case.worst(&mut case.open(Precision::F32)) < TOLERANCE);
}

/// One letter per layer, as published.
#[test]
fn reads_layer_patterns_and_rejects_invalid_ones() {
    for (name, pattern) in
        [("nemotron-h", "M-*-M"), ("nemotron-h-moe", "ME*"), ("nemotron-h-latent", "EM*")]
    {
        let case = Case::named(name);
        change_config(case.directory.path(), |config| {
            config["layers_block_type"] = json!(null);
            config["hybrid_override_pattern"] = json!(pattern);
        });
        assert!(case.worst(&mut case.open(Precision::F32)) < TOLERANCE, "{name}");
    }
    for (name, field, value, expected) in [
        ("nemotron-h", "hybrid_override_pattern", json!("M-*-"), "num_hidden_layers: expected 5"),
        ("nemotron-h", "hybrid_override_pattern", json!("M-*M-"), "layers.4.mixer.up_proj"),
        (
            "nemotron-h",
            "hybrid_override_pattern",
            json!("M---M"),
            "expected a layer with attention",
        ),
        ("nemotron-h", "hybrid_override_pattern", json!("M-*XM"), "moe, got \"X\""),
        ("nemotron-h", "hybrid_override_pattern", json!(""), "expected 1 to 4096 layers, got 0"),
        ("nemotron-h", "hybrid_override_pattern", json!(null), "expected a string, got none"),
        ("nemotron-h", "hybrid_override_pattern", json!("M-*EM"), "mlp_bias: expected none"),
        ("nemotron-h-moe", "moe_latent_size", json!(16), "mixer.fc1_latent_proj.weight"),
        ("nemotron-h-latent", "moe_latent_size", json!(24), "mixer.fc1_latent_proj.weight"),
        ("nemotron-h-latent", "moe_latent_size", json!(null), "mixer.experts.0.up_proj.weight"),
        ("nemotron-h-latent", "moe_latent_size", json!(0), "moe_latent_size: expected"),
        ("nemotron-h-moe", "mamba_hidden_act", json!("gelu"), "mamba_hidden_act: expected silu"),
        ("nemotron-h-moe", "n_groups", json!(3), "expected a divisor of its 4 heads, got 3"),
        ("nemotron-h-moe", "moe_shared_expert_intermediate_size", json!(32), "shared_experts."),
    ] {
        let case = Case::named(name);
        change_config(case.directory.path(), |config| {
            if name == "nemotron-h" {
                config["layers_block_type"] = json!(null);
            }
            config[field] = value.clone();
        });
        let error = load(case.directory.path(), Precision::F32.into()).unwrap_err().to_string();
        assert!(error.contains(expected), "{field} = {value}: {error}");
    }
}

/// MTP layers are not read.
#[test]
fn mtp_layers_of_nemotron_h_are_ignored() {
    let case = Case::named("nemotron-h-moe");
    let path = case.directory.path().join("model.safetensors");
    let mut tensors = read_tensors(&path);
    tensors.insert("mtp.layers.0.norm.weight".into(), Tensor::zeros(&[32], Dtype::F32));
    write_tensors(&tensors, &path);
    assert!(case.worst(&mut case.open(Precision::F32)) < TOLERANCE);
    tensors.insert("backbone.layers.0.mixer.E".into(), Tensor::zeros(&[32], Dtype::F32));
    write_tensors(&tensors, &path);
    let error = load(case.directory.path(), Precision::F32.into()).unwrap_err().to_string();
    assert!(error.contains("mixer.E"), "{error}");
}

/// Descriptions give the size of states and the numbers of parameters.
#[test]
fn description_counts_state_bytes_and_parameters() {
    let read = |name| Description::read(Case::named(name).directory.path()).unwrap();
    let found = read("granite-hybrid");
    let tensors =
        read_tensors(&Case::named("granite-hybrid").directory.path().join("model.safetensors"));
    let numbers: usize = tensors.values().map(|tensor| tensor.values().len()).sum();
    assert_eq!(found.parameters, numbers as u64);
    // Two layers with three tokens of the convolution, and four heads of 16 by 12.
    assert_eq!(found.config.state_bytes(), 2 * 4 * (3 * (64 + 2 * 2 * 12) + 4 * 16 * 12));
    let found = read("granite-hybrid-moe");
    assert_eq!(found.config.state_bytes(), 4 * (2 * (64 + 2 * 16) + 8 * 8 * 16));
    // Two of four experts in each of two layers.
    assert_eq!(found.parameters - found.active_parameters, 2 * 2 * 3 * 32 * 32);
    assert_eq!(read("granite-hybrid-attention").config.state_bytes(), 0);
    let found = read("nemotron-h");
    assert_eq!(found.config.state_bytes(), 2 * 4 * (3 * (64 + 2 * 2 * 12) + 4 * 16 * 12));
    // Keys and values of one layer of five.
    assert_eq!(found.config.cache_bytes(4), 4 * 2 * 2 * 12);
    let found = read("nemotron-h-moe");
    assert_eq!(found.parameters - found.active_parameters, 4 * 2 * 32 * 32);
    // Four of six experts, in a narrower width.
    let found = read("nemotron-h-latent");
    assert_eq!(found.parameters - found.active_parameters, 4 * 2 * 16 * 24);
}
