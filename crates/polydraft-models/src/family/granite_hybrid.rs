//! Granite 4: most layers are state spaces, the others have attention, mostly without positions; a
//! dense block for every token, with or without experts.
//!
//! Source: Granite Team 2025; Dao, Gu 2024 (Mamba-2).

use polydraft_kernels::StateSpace;
use polydraft_text::Fields;

use super::common::{Family, Result, llama_like, local_experts};
use super::granite::multipliers;
use super::granite_moe;
use super::state_spaces::step_limits;
use crate::config::{Config, Mixer, Recurrent, SharedExpert};
use crate::names::{Names, RecurrentNames};

pub(super) const FAMILY: Family = Family { architecture: "GraniteMoeHybridForCausalLM", read };

const NAMES: Names = Names {
    mlp_in: &["shared_mlp.input_linear"],
    mlp_out: "shared_mlp.output_linear",
    recurrent: RecurrentNames {
        into: "mamba.in_proj",
        rate: "mamba.A_log",
        shift: "mamba.dt_bias",
        skip: "mamba.D",
        convolution: "mamba.conv1d",
        norm: "mamba.norm",
        output: "mamba.out_proj",
        ..granite_moe::NAMES.recurrent
    },
    ..granite_moe::NAMES
};

fn read(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = llama_like(family, fields)?;
    multipliers(&mut config, fields)?;
    let bias = fields.flag("attention_bias", false)?;
    (config.biases.query_key_value, config.biases.output) = (bias, bias);
    let shared = fields.size_or("shared_intermediate_size", 1024, 1 << 20)?;
    match fields.get::<usize>("num_local_experts")?.unwrap_or(8) {
        0 => config.intermediate = shared,
        _ => {
            let shared = Some(SharedExpert { intermediate: shared, gated: false });
            let mut experts = local_experts(&config, fields)?;
            experts.shared = shared;
            config.experts = Some(experts);
        }
    }
    if fields.get::<String>("position_embedding_type")?.as_deref() != Some("rope") {
        config.attention.unrotated = vec![true; config.layers];
    }
    let layers = recurrent_layers(&config, fields)?;
    if layers.contains(&true) {
        let (mixer, kernel) =
            (state_space(&config, fields)?, fields.size_or("mamba_d_conv", 4, 1 << 8)?);
        config.recurrent = Some(Recurrent { mixer, kernel, layers });
    }
    config.names = &NAMES;
    Ok(config)
}

/// Recurrent layers as listed; all if there is no list.
fn recurrent_layers(config: &Config, fields: &Fields) -> Result<Vec<bool>> {
    let types = match fields.get::<Vec<String>>("layer_types")? {
        Some(types) => types,
        None => fields
            .get("layers_block_type")?
            .unwrap_or_else(|| vec!["mamba".to_owned(); config.layers]),
    };
    let is_recurrent = |listed: &String| match &listed[..] {
        "mamba" | "linear_attention" => Ok(true),
        "attention" | "full_attention" => Ok(false),
        other => Err(format!("layer_types: expected mamba or attention, got {other:?}")),
    };
    types.iter().map(is_recurrent).collect()
}

fn state_space(config: &Config, fields: &Fields) -> Result<Mixer> {
    const WIDEST: usize = 1 << 12;
    let heads = fields.size_or("mamba_n_heads", 128, 1 << 14)?;
    let inner = fields.size_or("mamba_expand", 2, 1 << 8)? * config.hidden;
    let is_auto =
        fields.get::<serde_json::Value>("mamba_d_head")?.is_none_or(|value| value == "auto");
    let value = if is_auto { inner / heads } else { fields.size("mamba_d_head", WIDEST)? };
    if value * heads != inner {
        return Err(format!(
            "mamba_d_head: expected mamba_expand * hidden_size / mamba_n_heads = \
             {inner} / {heads}, got {value}"
        ));
    }
    Ok(Mixer::StateSpace {
        rule: StateSpace {
            groups: fields.size_or("mamba_n_groups", 1, 1 << 12)?,
            heads,
            state: fields.size_or("mamba_d_state", 256, WIDEST)?,
            value,
        },
        steps: step_limits(fields)?,
        biased: fields.flag("mamba_proj_bias", false)?,
        convolution_biased: fields.flag("mamba_conv_bias", true)?,
    })
}
