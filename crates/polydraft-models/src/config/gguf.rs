//! The shape of a decoder from the description in a GGUF file, and what tensors are called there.

use polydraft_gguf::{ModelDescription, RopeScaling, RopeSettings};

use polydraft_kernels::Activation;

use super::{
    Attention, Biases, Config, FedBack, FeedForward, HeadNorms, NormKind, NormOrder, Positions,
    Rope, Scaling,
};
use crate::names::{
    ExpertNames, FurtherNames, LatentNames, Layout, Names, PerLayerNames, Rates, RecurrentNames,
};

/// The names of every architecture; those in a layer without its number.
pub(crate) const NAMES: Names = Names {
    embedding: "token_embd",
    positions: "",
    project_in: "",
    project_out: "",
    layers: "blk",
    query_key_value: &["attn_q", "attn_k", "attn_v"],
    output: "attn_output",
    head_norms: ["attn_q_norm", "attn_k_norm"],
    sinks: "attn_sinks.weight",
    latent: LatentNames {
        query_down: "attn_q_a",
        query_norm: "attn_q_a_norm",
        query_up: "attn_q_b",
        query: "attn_q",
        down: "attn_kv_a_mqa",
        norm: "attn_kv_a_norm",
        up: "attn_kv_b",
        apart: ["attn_k_b.weight", "attn_v_b.weight"],
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
        from: "per_layer_model_proj",
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
        past: "ssm_d",
        convolution: "ssm_conv1d",
        norm: "ssm_norm",
        output: "ssm_out",
    },
    further: FurtherNames {
        token_norm: "nextn.enorm",
        state_norm: "nextn.hnorm",
        join: "nextn.eh_proj",
        state_first: false,
        norm: "nextn.shared_head_norm",
        copies: &["nextn.embed_tokens.", "nextn.shared_head_head."],
    },
    norm: "output_norm",
    head: "output",
};

impl Config {
    /// From what a GGUF file says of its model. Tokens that end a sequence are the tokenizer's
    /// there.
    ///
    /// # Errors
    /// What the format allows and no decoder here has: expected and got.
    pub(crate) fn of_gguf(model: &ModelDescription) -> Result<Self, String> {
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
            head: model.key_head,
            context: model.context,
            positions: Positions::Rotary(rope(&model.rope)),
            attention: Attention {
                scale: model.attention_scale,
                softcap: model.attention_softcap,
                head_norms: match model.head_norms {
                    true => HeadNorms::Each,
                    false => HeadNorms::None,
                },
                window: model.window.filter(|_| model.windowed.contains(&true)),
                windowed: model.windowed.clone(),
                window_rope: model.window_rope.as_ref().map(rope),
                ..Attention::plain(model.key_head)
            },
            // Where a weight counts from one, the file has the sum.
            norm: NormKind::Rms,
            norm_epsilon: model.norm_epsilon,
            norm_order: if model.post_norms { NormOrder::Around } else { NormOrder::Before },
            final_norm: true,
            feed_forward: FeedForward {
                activation: if model.gelu { Activation::GeluTanh } else { Activation::Silu },
                gated: true,
            },
            widened: false,
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
            extra_layers: 0,
            further: Vec::new(),
            fed_back: FedBack::BeforeNorm,
            is_nested: false,
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
        ..Rope::plain(settings.base)
    }
}

#[cfg(test)]
mod tests {
    use polydraft_gguf::TensorRole::*;

    use super::NAMES;

    #[test]
    fn names_are_those_of_the_roles() {
        let [query, key, value] = NAMES.query_key_value[..] else { panic!() };
        let named = [
            (NAMES.embedding, TokenEmbedding),
            (query, Query),
            (key, Key),
            (value, Value),
            (NAMES.output, AttentionOutput),
            (NAMES.head_norms[0], QueryNorm),
            (NAMES.head_norms[1], KeyNorm),
            (NAMES.attention_norms[0], AttentionNorm),
            (NAMES.attention_norms[1], AttentionPostNorm),
            (NAMES.mlp_norms[0], FeedForwardNorm),
            (NAMES.mlp_norms[1], FeedForwardPostNorm),
            (NAMES.mlp_in[0], Gate),
            (NAMES.mlp_in[1], Up),
            (NAMES.mlp_out, Down),
            (NAMES.norm, OutputNorm),
            (NAMES.head, Output),
        ];
        for (name, role) in named {
            assert_eq!(name, role.base());
        }
        assert_eq!(Query.weight(3), format!("{}.3.{query}.weight", NAMES.layers));
    }
}
