//! Mellum 2: Qwen3-MoE with a sliding window in some layers, which have a rotation of their own.
//!
//! Source: JetBrains 2026.

use polydraft_text::Fields;

use super::common::{
    Family, Result, llama_with_rotations, set_window, sliding_window, sparse_layers,
};
use super::qwen_moe::{NAMES, experts};
use crate::config::{Config, Experts};

pub(super) const FAMILY: Family = Family { architecture: "MellumForCausalLM", read };

fn read(family: &Family, fields: &Fields) -> Result<Config> {
    let (mut config, windowed) = llama_with_rotations(family, fields)?;
    set_window(&mut config, fields, sliding_window(fields)?, |_| false)?;
    config.attention.window_rope = config.attention.window.map(|_| windowed);
    let experts = experts(&config, fields, [64, 8, 896])?;
    let normalised = fields.flag("norm_topk_prob", true)?;
    let layers = sparse_layers(fields, &experts.layers)?;
    config.experts = Some(Experts { normalised, layers, ..experts });
    config.names = &NAMES;
    Ok(config)
}
