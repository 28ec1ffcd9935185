//! Cohere 2 (Command R7B, Command A, Aya): attention and feed-forward in parallel after one layer
//! norm, a sliding window in three of four layers, and no positions in the others.
//!
//! Source: Cohere 2025.

use polydraft_text::Fields;

use super::common::{Family, Result, llama_like, set_window, sliding_window};
use crate::config::{Config, NormKind, NormOrder, Positions, RotaryPairs};

pub(super) const FAMILY: Family = Family { architecture: "Cohere2ForCausalLM", read };

fn read(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = llama_like(family, fields)?;
    config.norm = NormKind::LayerScale;
    config.norm_epsilon = fields.number("layer_norm_eps")?.unwrap_or(1e-5);
    config.norm_order = NormOrder::Parallel;
    config.logit_scale = fields.number("logit_scale")?.unwrap_or(0.0625);
    config.tied = fields.flag("tie_word_embeddings", true)?;
    let bias = fields.flag("attention_bias", false)?;
    (config.biases.query_key_value, config.biases.output) = (bias, bias);
    let pattern = fields.size_or("sliding_window_pattern", 4, 1 << 12)?;
    set_window(&mut config, fields, sliding_window(fields)?, |layer| {
        !(layer + 1).is_multiple_of(pattern)
    })?;
    let windowed = config.attention.window.is_some();
    let listed = &config.attention.windowed;
    let rotated = |layer: usize| windowed && listed.get(layer) == Some(&true);
    config.attention.unrotated = (0..config.layers).map(|layer| !rotated(layer)).collect();
    if let Positions::Rotary(rope) = &mut config.positions {
        rope.pairs = RotaryPairs::Neighbours;
    }
    Ok(config)
}
