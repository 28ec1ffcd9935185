//! Qwen2 and Qwen2.5: Llama with biases on queries, keys and values, and a sliding window in the
//! upper layers that published models switch off.
//!
//! Source: Yang et al. 2024.

use polydraft_text::Fields;

use super::common::{Family, Result, llama_like, set_window, sliding_window};
use crate::config::Config;

pub(super) const FAMILY: Family = Family { architecture: "Qwen2ForCausalLM", read };

fn read(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = llama_like(family, fields)?;
    config.biases.query_key_value = true;
    upper_windows(&mut config, fields)?;
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
