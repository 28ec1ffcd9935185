//! Mellum 2: Qwen3-MoE with a sliding window in some layers, which have a rotation of their own.
//!
//! Source: JetBrains 2026.

use polydraft_text::Fields;

use super::common::{
    Family, Result, llama_with_rope, rotations_by_kind, set_window, sliding_window, sparse_layers,
};
use super::qwen_moe::{NAMES, experts};
use crate::config::{Config, Experts, QkNorm};

pub(super) const FAMILY: Family = Family { architecture: "MellumForCausalLM", read };

fn read(family: &Family, fields: &Fields) -> Result<Config> {
    let context = fields.size("max_position_embeddings", 1 << 30)?;
    let head = fields.size_or("head_dim", 128, 1 << 12)?;
    let [full, windowed] = rotations_by_kind(fields, context, head)?;
    let mut config = llama_with_rope(family, fields, full)?;
    config.head_dim = head;
    config.attention.scale = (head as f64).powf(-0.5);
    config.attention.qk_norm = QkNorm::PerHead;
    let bias = fields.flag("attention_bias", false)?;
    (config.biases.query_key_value, config.biases.output) = (bias, bias);
    set_window(&mut config, fields, sliding_window(fields)?, |_| false)?;
    config.attention.window_rope = config.attention.window.map(|_| windowed);
    let experts = experts(&config, fields, [64, 8, 896])?;
    let normalised = fields.flag("norm_topk_prob", true)?;
    let layers = sparse_layers(fields, &experts.layers)?;
    config.experts = Some(Experts { normalised, layers, ..experts });
    config.names = &NAMES;
    Ok(config)
}
