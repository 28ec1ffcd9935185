//! ERNIE 4.5, dense and with experts: rotation of neighbours; experts are chosen by softmax scores
//! with a bias.
//!
//! Source: Baidu ERNIE Team 2025.

use polydraft_text::Fields;

use super::common::{Family, Result, llama_like, plain_experts};
use crate::config::{Biases, Config, Experts, Positions, RotaryPairs, SharedExpert};
use crate::names::{ExpertNames, LLAMA_NAMES, Names};

pub(super) const FAMILY: Family = Family { architecture: "Ernie4_5ForCausalLM", read };
pub(super) const MOE: Family = Family { architecture: "Ernie4_5_MoeForCausalLM", read: read_moe };

const MOE_NAMES: Names = Names {
    experts: ExpertNames {
        correction: "mlp.moe_statics.e_score_correction_bias",
        ..LLAMA_NAMES.experts
    },
    ..LLAMA_NAMES
};

fn read(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = llama_like(family, fields)?;
    config.norm_epsilon = fields.number("rms_norm_eps")?.unwrap_or(1e-5);
    config.tied = fields.flag("tie_word_embeddings", true)?;
    let bias = fields.flag("use_bias", false)?;
    config.biases = Biases { query_key_value: bias, output: bias, feed_forward: bias };
    if let Positions::Rotary(rope) = &mut config.positions {
        rope.pairs = RotaryPairs::Neighbours;
    }
    Ok(config)
}

fn read_moe(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = read(family, fields)?;
    if config.biases != Biases::default() {
        // The output matrix would have one too.
        return Err("use_bias: expected false in a model with experts, got true".to_owned());
    }
    // Newer files have the second name.
    let size = |name: &str, newer: &str, default: usize| match fields.contains(name) {
        true => fields.size_or(name, default, 1 << 12),
        false => fields.size_or(newer, default, 1 << 12),
    };
    let intermediate = fields.size_or("moe_intermediate_size", 1536, 1 << 20)?;
    let shape = [
        size("moe_num_experts", "num_experts", 64)?,
        size("moe_k", "num_experts_per_tok", 6)?,
        intermediate,
    ];
    let shared = fields.get::<usize>("moe_num_shared_experts")?.unwrap_or(2).min(1 << 8);
    let interval = fields.size_or("moe_layer_interval", 1, 1 << 12)?;
    let first = fields.get::<usize>("moe_layer_start_index")?.unwrap_or(1);
    let last = fields.get::<i64>("moe_layer_end_index")?.unwrap_or(-1);
    let last = usize::try_from(last).unwrap_or(usize::MAX);
    let has =
        |layer: usize| (layer + 1).is_multiple_of(interval) && (first..=last).contains(&layer);
    config.experts = Some(Experts {
        normalised: true,
        corrected: true,
        shared: (shared > 0)
            .then(|| SharedExpert { intermediate: shared * intermediate, gated: false }),
        layers: (0..config.layers).map(has).collect(),
        ..plain_experts(&config, shape)
    });
    config.names = &MOE_NAMES;
    Ok(config)
}
