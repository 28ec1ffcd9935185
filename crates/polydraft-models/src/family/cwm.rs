//! CWM: Llama 3 with a sliding window in three of four layers.
//!
//! Source: FAIR CodeGen team 2025.

use polydraft_text::Fields;

use super::common::{Family, Result, llama_like, set_window};
use crate::config::Config;

pub(super) const FAMILY: Family = Family { architecture: "CwmForCausalLM", read };

fn read(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = llama_like(family, fields)?;
    config.norm_epsilon = fields.number("rms_norm_eps")?.unwrap_or(1e-5);
    config.biases.feed_forward = fields.flag("mlp_bias", false)?;
    let window = match fields.contains("sliding_window") {
        true => fields.get::<usize>("sliding_window")?.filter(|window| *window > 0),
        false => Some(8192),
    };
    set_window(&mut config, fields, window, |layer| !layer.is_multiple_of(4))?;
    Ok(config)
}
