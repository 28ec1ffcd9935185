//! Nemotron-H and Nemotron 3: each layer is a single block: a state space, attention without
//! positions, a feed-forward block with ReLU squared, or experts of that kind, possibly with a
//! narrower width. MTP modules have such layers too, usually attention, then experts.
//!
//! Source: NVIDIA 2025 (Nemotron-H; Nemotron 3); Dao, Gu 2024 (Mamba-2).

use polydraft_kernels::StateSpace;
use polydraft_text::Fields;

use super::common::{Family, MAX_LAYERS, Result, llama_with_layers, mtp_modules, sigmoid_experts};
use crate::config::{
    Attention, Biases, Config, FeedForward, Feedback, LayerBlocks, Mixer, MtpLayer, Recurrent,
    Rope, SharedExpert, activation,
};
use crate::names::{ExpertNames, LLAMA_NAMES, MtpNames, Names, RecurrentNames};

pub(super) const FAMILY: Family = Family { architecture: "NemotronHForCausalLM", read };

const NAMES: Names = Names {
    embedding: "backbone.embeddings",
    layers: "backbone.layers",
    query_key_value: &["mixer.q_proj", "mixer.k_proj", "mixer.v_proj"],
    attention_output: "mixer.o_proj",
    attention_norms: ["norm", ""],
    mlp_in: &["mixer.up_proj"],
    mlp_out: "mixer.down_proj",
    experts: ExpertNames {
        router: "mixer.gate",
        correction: "mixer.gate.e_score_correction_bias",
        mlp_in: &["mixer.experts.#.up_proj"],
        mlp_out: "mixer.experts.#.down_proj",
        latent: ["mixer.fc1_latent_proj", "mixer.fc2_latent_proj"],
        shared_in: &["mixer.shared_experts.up_proj"],
        shared_out: "mixer.shared_experts.down_proj",
        ..LLAMA_NAMES.experts
    },
    recurrent: RecurrentNames {
        into: "mixer.in_proj",
        rate: "mixer.A_log",
        shift: "mixer.dt_bias",
        skip: "mixer.D",
        convolution: "mixer.conv1d",
        norm: "mixer.norm",
        output: "mixer.out_proj",
        ..LLAMA_NAMES.recurrent
    },
    mtp: MtpNames { norm: "final_layernorm", copies: &[], ..LLAMA_NAMES.mtp },
    norm: "backbone.norm_f",
    ..LLAMA_NAMES
};

/// Kind of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    StateSpace,
    Attention,
    Dense,
    Experts,
    /// Both in one layer, in the MTP modules of GGUF files.
    AttentionAndExperts,
}

impl Kind {
    fn blocks(self) -> LayerBlocks {
        match self {
            Self::StateSpace | Self::Attention => LayerBlocks::Attention,
            Self::Dense | Self::Experts => LayerBlocks::FeedForward,
            Self::AttentionAndExperts => LayerBlocks::Both,
        }
    }

    fn mtp_layer(self) -> MtpLayer {
        MtpLayer {
            blocks: self.blocks(),
            experts: matches!(self, Self::Experts | Self::AttentionAndExperts),
            recurrent: self == Self::StateSpace,
        }
    }
}

fn read(family: &Family, fields: &Fields) -> Result<Config> {
    const WIDEST: usize = 1 << 12;
    let kinds = layer_kinds(fields, ["layers_block_type", "hybrid_override_pattern"], None)?;
    let is = |kind: Kind| kinds.iter().map(|other| *other == kind).collect::<Vec<bool>>();
    let mut config = llama_with_layers(family, fields, Rope::unscaled(10_000.0), kinds.len())?;
    config.head_dim = fields.size_or("head_dim", 128, WIDEST)?;
    config.key_value_heads = fields.size_or("num_key_value_heads", 8, WIDEST)?;
    config.attention = Attention::plain(config.head_dim);
    config.attention.unrotated = vec![true; config.layers];
    config.norm_epsilon = fields.number("layer_norm_epsilon")?.unwrap_or(1e-5);
    config.feed_forward =
        FeedForward { activation: activation(fields, "mlp_hidden_act", "relu2")?, gated: false };
    let biased = fields.flag("mlp_bias", false)?;
    config.biases = Biases { feed_forward: biased, ..Biases::default() };
    config.blocks = kinds.iter().map(|kind| kind.blocks()).collect();
    config.mtp_modules = mtp_modules(fields)?;
    if config.mtp_modules > 0 {
        let names = ["mtp_layers_block_type", "mtp_hybrid_override_pattern"];
        let kinds = layer_kinds(fields, names, Some(&[Kind::Attention, Kind::Experts]))?;
        config.mtp_layers = kinds.into_iter().map(Kind::mtp_layer).collect();
        config.feedback = Feedback::AfterNorm;
    }
    let has_experts =
        kinds.contains(&Kind::Experts) || config.mtp_layers.iter().any(|layer| layer.experts);
    if has_experts {
        if biased {
            return Err("mlp_bias: expected none where there are experts, got one".to_owned());
        }
        let mut experts = sigmoid_experts(&config, fields, [8, 2, 7688])?;
        let intermediate = fields.size_or("moe_shared_expert_intermediate_size", 7688, 1 << 20)?;
        experts.shared = Some(SharedExpert { intermediate, gated: false });
        experts.latent = match fields.get::<usize>("moe_latent_size")? {
            None => None,
            Some(_) => Some(fields.size("moe_latent_size", 1 << 17)?),
        };
        experts.layers = is(Kind::Experts);
        config.experts = Some(experts);
    }
    if kinds.contains(&Kind::StateSpace) {
        config.recurrent = Some(Recurrent {
            mixer: state_space(fields)?,
            kernel: fields.size_or("conv_kernel", 4, 1 << 8)?,
            layers: is(Kind::StateSpace),
        });
    }
    config.names = &NAMES;
    Ok(config)
}

/// Reads the kinds of layers from the field `names`, a list of names, or else from the field
/// `letters`, a string with a letter per layer. `default` is used if both are missing.
fn layer_kinds(
    fields: &Fields,
    [names, letters]: [&str; 2],
    default: Option<&[Kind]>,
) -> Result<Vec<Kind>> {
    let parse = |field: &str, name: &str| match name {
        "M" | "mamba" | "linear_attention" => Ok(Kind::StateSpace),
        "*" | "attention" | "full_attention" => Ok(Kind::Attention),
        "-" | "mlp" => Ok(Kind::Dense),
        "E" | "moe" => Ok(Kind::Experts),
        "attention_and_moe" if default.is_some() => Ok(Kind::AttentionAndExperts),
        other => Err(format!("{field}: expected mamba, attention, mlp or moe, got {other:?}")),
    };
    let listed: Vec<Kind> = match fields.get::<Vec<String>>(names)? {
        Some(listed) => listed.iter().map(|name| parse(names, name)).collect::<Result<_>>()?,
        None => match (fields.get::<String>(letters)?, default) {
            (None, None) => return Err(format!("{letters}: expected a string, got none")),
            (None, Some(default)) => default.to_vec(),
            (Some(pattern), _) => {
                let mut bytes = [0u8; 4];
                let letter = |letter: char| parse(letters, letter.encode_utf8(&mut bytes));
                pattern.chars().map(letter).collect::<Result<_>>()?
            }
        },
    };
    match listed.len() {
        1..=MAX_LAYERS => Ok(listed),
        got => Err(format!("{letters}: expected 1 to {MAX_LAYERS} layers, got {got}")),
    }
}

fn state_space(fields: &Fields) -> Result<Mixer> {
    const WIDEST: usize = 1 << 12;
    let act = fields.get::<String>("mamba_hidden_act")?.unwrap_or_else(|| "silu".to_owned());
    if act != "silu" {
        return Err(format!("mamba_hidden_act: expected silu, got {act:?}"));
    }
    Ok(Mixer::StateSpace {
        rule: StateSpace {
            groups: fields.size_or("n_groups", 8, WIDEST)?,
            heads: fields.size_or("mamba_num_heads", 128, 1 << 14)?,
            state: fields.size_or("ssm_state_size", 128, WIDEST)?,
            value: fields.size_or("mamba_head_dim", 64, WIDEST)?,
        },
        steps: [fields.number("time_step_min")?.unwrap_or(0.001) as f32, f32::INFINITY],
        biased: fields.flag("use_bias", false)?,
        convolution_biased: fields.flag("use_conv_bias", true)?,
    })
}
