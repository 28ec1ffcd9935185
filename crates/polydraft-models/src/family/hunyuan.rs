//! Hunyuan's dense models: norms of each head's queries and keys after their rotation.
//!
//! Source: Tencent 2025.

use polydraft_text::Fields;

use super::common::{Family, Result, llama_like};
use crate::config::{Config, Positions, QkNorm};
use crate::names::{LLAMA_NAMES, Names};

pub(super) const FAMILY: Family = Family { architecture: "HunYuanDenseV1ForCausalLM", read };

const NAMES: Names =
    Names { qk_norms: ["self_attn.query_layernorm", "self_attn.key_layernorm"], ..LLAMA_NAMES };

fn read(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = llama_like(family, fields)?;
    config.norm_epsilon = fields.number("rms_norm_eps")?.unwrap_or(1e-5);
    config.attention.qk_norm = QkNorm::PerHead;
    config.attention.rotated_first = true;
    let bias = fields.flag("attention_bias", false)?;
    (config.biases.query_key_value, config.biases.output) = (bias, bias);
    let head = config.head_dim as f64;
    if let (Positions::Rotary(rope), Some(stretch)) = (&mut config.positions, stretch(fields)?) {
        rope.theta *= stretch.powf(head / (head - 2.0));
    }
    config.names = &NAMES;
    Ok(config)
}

/// Reads `alpha` of the scaling, with which the base of the frequencies grows for all lengths.
fn stretch(fields: &Fields) -> Result<Option<f64>> {
    for name in ["rope_scaling", "rope_parameters"] {
        if let Some(rope) = fields.object(name)? {
            let is_dynamic = ["rope_type", "type"].into_iter().any(|kind| {
                rope.get::<String>(kind).is_ok_and(|kind| kind.as_deref() == Some("dynamic"))
            });
            return if is_dynamic { rope.number("alpha") } else { Ok(None) };
        }
    }
    Ok(None)
}
