//! The shape of a decoder from the metadata of a GGUF file, and the names of its tensors.

use polydraft_gguf::{ModelDescription, RopeScaling, RopeSettings};

use polydraft_kernels::Activation;

use super::{
    Attention, Biases, Config, FeedForward, Feedback, NormKind, NormOrder, Positions, QkNorm, Rope,
    Scaling,
};
use crate::names::{
    ExpertNames, LatentNames, Layout, MtpNames, Names, PerLayerNames, Rates, RecurrentNames,
};

/// Names of tensors in GGUF files of any architecture.
pub(crate) const NAMES: Names = Names {
    embedding: "token_embd",
    positions: "",
    project_in: "",
    project_out: "",
    layers: "blk",
    query_key_value: &["attn_q", "attn_k", "attn_v"],
    attention_output: "attn_output",
    attention_gate: "attn_gate",
    qk_norms: ["attn_q_norm", "attn_k_norm"],
    sinks: "attn_sinks.weight",
    latent: LatentNames {
        query_down: "attn_q_a",
        query_norm: "attn_q_a_norm",
        query_up: "attn_q_b",
        query: "attn_q",
        down: "attn_kv_a_mqa",
        norm: "attn_kv_a_norm",
        up: "attn_kv_b",
        split_up: ["attn_k_b.weight", "attn_v_b.weight"],
    },
    attention_norms: ["attn_norm", "post_attention_norm"],
    mlp_norms: ["ffn_norm", "post_ffw_norm"],
    mlp_in: &["ffn_gate", "ffn_up"],
    mlp_out: "ffn_down",
    experts: ExpertNames {
        router: "ffn_gate_inp",
        correction: "exp_probs_b.bias",
        mlp_in: &["ffn_gate_exps", "ffn_up_exps"],
        mlp_out: "ffn_down_exps",
        latent: ["ffn_latent_down", "ffn_latent_up"],
        layout: Layout::Rows,
        shared_in: &["ffn_gate_shexp", "ffn_up_shexp"],
        shared_out: "ffn_down_shexp",
        shared_gate: "ffn_gate_inp_shexp",
        router_scale: "ffn_gate_inp.scale",
        scales: "ffn_down_exps.scale",
        norms: ["post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2"],
    },
    per_layer: PerLayerNames {
        table: "per_layer_token_embd",
        projection: "per_layer_model_proj",
        norm: "per_layer_proj_norm",
        gate: "inp_gate",
        back: "proj",
        after: "post_norm",
    },
    layer_scale: "layer_output_scale.weight",
    recurrent: RecurrentNames {
        into: "attn_qkv",
        gate: "attn_gate",
        strength: "ssm_beta",
        decay: "ssm_alpha",
        rate: "ssm_a",
        rates: Rates::Plain,
        shift: "ssm_dt.bias",
        skip: "ssm_d",
        convolution: "ssm_conv1d",
        norm: "ssm_norm",
        output: "ssm_out",
    },
    mtp: MtpNames {
        token_norm: "nextn.enorm",
        state_norm: "nextn.hnorm",
        join: "nextn.eh_proj",
        state_first: false,
        norm: "nextn.shared_head_norm",
        copies: &["nextn.embed_tokens.", "nextn.shared_head_head."],
    },
    norm: "output_norm",
    lm_head: "output",
};

impl Config {
    /// Builds a configuration from the description of a GGUF file. End tokens are left empty: they
    /// are in the tokenizer's metadata.
    ///
    /// # Errors
    /// Features of the format that are not supported, with the expected and the actual value.
    pub(crate) fn from_gguf(model: &ModelDescription) -> Result<Self, String> {
        if model.key_head != model.value_head {
            return Err(format!(
                "{}.attention.value_length: expected the width of a key's head, {}, got {}",
                model.architecture, model.key_head, model.value_head
            ));
        }
        if model.biases.output {
            return Err("tensor output.bias: expected logits without a bias, got one".to_owned());
        }
        let config = Self {
            architecture: model.architecture.name(),
            vocabulary: model.vocabulary,
            embedding: model.hidden,
            hidden: model.hidden,
            intermediate: model.intermediate,
            layers: model.layers,
            heads: model.heads,
            key_value_heads: model.key_value_heads,
            head_dim: model.key_head,
            context: model.context,
            positions: Positions::Rotary(rope(&model.rope)),
            attention: Attention {
                scale: model.attention_scale,
                softcap: model.attention_softcap,
                qk_norm: match model.head_norms {
                    true => QkNorm::PerHead,
                    false => QkNorm::None,
                },
                window: model.window.filter(|_| model.windowed.contains(&true)),
                windowed: model.windowed.clone(),
                window_rope: model.window_rope.as_ref().map(rope),
                ..Attention::plain(model.key_head)
            },
            // Weights that are offsets from one are stored with the one added.
            norm: NormKind::Rms,
            norm_epsilon: model.norm_epsilon,
            norm_order: if model.post_norms { NormOrder::Sandwich } else { NormOrder::Pre },
            final_norm: true,
            feed_forward: FeedForward {
                activation: if model.gelu { Activation::GeluTanh } else { Activation::Silu },
                gated: true,
            },
            double_wide_mlp: false,
            experts: None,
            blocks: Vec::new(),
            recurrent: None,
            per_layer: None,
            layer_scales: false,
            residual_scale: 1.0,
            logit_scale: 1.0,
            biases: Biases {
                query_key_value: model.biases.query_key_value,
                output: model.biases.attention_output,
                feed_forward: model.biases.feed_forward,
            },
            embedding_scale: model.embedding_scale,
            logit_softcap: model.logit_softcap,
            tied: model.tied,
            end_tokens: Vec::new(),
            mtp_modules: 0,
            mtp_layers: Vec::new(),
            feedback: Feedback::BeforeNorm,
            is_multimodal: false,
            names: &NAMES,
        };
        config.check()?;
        Ok(config)
    }
}

fn rope(settings: &RopeSettings) -> Rope {
    let scaling = match settings.scaling {
        RopeScaling::None => Scaling::None,
        RopeScaling::Linear { factor } => Scaling::Linear { factor },
        RopeScaling::Yarn { factor, fast, slow, original } => {
            Scaling::Yarn { factor, fast, slow, original: original as f64, truncate: true }
        }
    };
    Rope {
        scaling,
        divisors: settings.factors.clone().unwrap_or_default(),
        amplitude: settings.amplitude,
        ..Rope::unscaled(settings.base)
    }
}

#[cfg(test)]
mod tests {
    use polydraft_gguf::TensorRole::*;

    use super::NAMES;

    #[test]
    fn tensor_names_match_tensor_roles() {
        let [query, key, value] = NAMES.query_key_value[..] else { panic!() };
        let named = [
            (NAMES.embedding, TokenEmbedding),
            (query, Query),
            (key, Key),
            (value, Value),
            (NAMES.attention_output, AttentionOutput),
            (NAMES.qk_norms[0], QueryNorm),
            (NAMES.qk_norms[1], KeyNorm),
            (NAMES.attention_norms[0], AttentionNorm),
            (NAMES.attention_norms[1], AttentionPostNorm),
            (NAMES.mlp_norms[0], FeedForwardNorm),
            (NAMES.mlp_norms[1], FeedForwardPostNorm),
            (NAMES.mlp_in[0], Gate),
            (NAMES.mlp_in[1], Up),
            (NAMES.mlp_out, Down),
            (NAMES.norm, OutputNorm),
            (NAMES.lm_head, Output),
        ];
        for (name, role) in named {
            assert_eq!(name, role.base());
        }
        assert_eq!(Query.weight(3), format!("{}.3.{query}.weight", NAMES.layers));
    }
}
