//! Qwen2 and Qwen2.5: Llama with biases on queries, keys and values, and a sliding window in the
//! upper layers that published models switch off. MiMo: the same, with a layer that predicts
//! further tokens.
//!
//! Sources: Yang et al. 2024; Xiaomi 2025 (MiMo).

use polydraft_text::Fields;

use super::common::{Family, Result, extra_layers, llama_like, set_window, sliding_window};
use crate::config::{Config, FedBack};
use crate::names::{FurtherNames, LLAMA_NAMES, Names};

pub(super) const FAMILY: Family = Family { architecture: "Qwen2ForCausalLM", read };
pub(super) const MIMO: Family = Family { architecture: "MiMoForCausalLM", read: read_mimo };

const MIMO_NAMES: Names = Names {
    further: FurtherNames {
        token_norm: "token_layernorm",
        state_norm: "hidden_layernorm",
        join: "input_proj",
        state_first: true,
        norm: "final_layernorm",
        copies: &[],
    },
    ..LLAMA_NAMES
};

fn read(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = llama_like(family, fields)?;
    config.biases.query_key_value = true;
    upper_windows(&mut config, fields)?;
    Ok(config)
}

fn read_mimo(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = read(family, fields)?;
    config.extra_layers = extra_layers(fields)?;
    config.fed_back = FedBack::AfterNorm;
    config.names = &MIMO_NAMES;
    Ok(config)
}

/// The window of the layers from `max_window_layers` on.
pub(super) fn upper_windows(config: &mut Config, fields: &Fields) -> Result<()> {
    let window = match fields.flag("use_sliding_window", false)? {
        true => sliding_window(fields)?,
        false => None,
    };
    let first = fields.get("max_window_layers")?.unwrap_or(28);
    set_window(config, fields, window, |layer| layer >= first)
}
