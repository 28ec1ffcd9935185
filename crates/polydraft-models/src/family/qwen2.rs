//! Qwen2 and Qwen2.5: Llama with biases on queries, keys and values, and a sliding window in the
//! upper layers that published models switch off. MiMo: Qwen2 with an MTP module.
//!
//! Sources: Yang et al. 2024; Xiaomi 2025 (MiMo).

use polydraft_text::Fields;

use super::common::{Family, Result, llama_like, mtp_modules, set_window, sliding_window};
use crate::config::{Config, Feedback};
use crate::names::{LLAMA_NAMES, MtpNames, Names};

pub(super) const FAMILY: Family = Family { architecture: "Qwen2ForCausalLM", read };
pub(super) const MIMO: Family = Family { architecture: "MiMoForCausalLM", read: read_mimo };

const MIMO_NAMES: Names = Names {
    mtp: MtpNames {
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
    config.mtp_modules = mtp_modules(fields)?;
    config.feedback = Feedback::AfterNorm;
    config.names = &MIMO_NAMES;
    Ok(config)
}

/// Reads the sliding window of the layers from `max_window_layers` on.
pub(super) fn upper_windows(config: &mut Config, fields: &Fields) -> Result<()> {
    let window = match fields.flag("use_sliding_window", false)? {
        true => sliding_window(fields)?,
        false => None,
    };
    let first = fields.get("max_window_layers")?.unwrap_or(28);
    set_window(config, fields, window, |layer| layer >= first)
}
