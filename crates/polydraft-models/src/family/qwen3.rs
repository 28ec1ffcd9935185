//! Qwen3: Qwen2 without biases, with norms of each head's queries and keys.
//!
//! Source: Yang et al. 2025.

use super::qwen2::upper_windows;
use polydraft_text::Fields;

use super::common::{Family, Result, llama_like};
use crate::config::{Config, QkNorm};

pub(super) const FAMILY: Family = Family { architecture: "Qwen3ForCausalLM", read };

fn read(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = llama_like(family, fields)?;
    config.head_dim = fields.size_or("head_dim", 128, 1 << 12)?;
    config.attention.scale = (config.head_dim as f64).powf(-0.5);
    config.attention.qk_norm = QkNorm::PerHead;
    let bias = fields.flag("attention_bias", false)?;
    (config.biases.query_key_value, config.biases.output) = (bias, bias);
    upper_windows(&mut config, fields)?;
    Ok(config)
}
