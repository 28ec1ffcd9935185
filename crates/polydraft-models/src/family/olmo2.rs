//! OLMo 2 and 3: norms after the blocks, and norms of queries and keys across heads; OLMo 3 has a
//! sliding window in three of four layers, whose RoPE frequencies are never scaled.
//!
//! Source: OLMo Team 2024 and 2025.

use polydraft_text::Fields;

use super::common::{Family, Result, llama_biases, llama_like, set_window, sliding_window};
use crate::config::{Config, Lengths, NormOrder, Positions, QkNorm, Rope};
use crate::names::{LLAMA_NAMES, Names};

pub(super) const FAMILY: Family = Family { architecture: "Olmo2ForCausalLM", read };
pub(super) const OLMO3: Family = Family { architecture: "Olmo3ForCausalLM", read: read_olmo3 };

const NAMES: Names = Names {
    attention_norms: ["post_attention_layernorm", ""],
    mlp_norms: ["post_feedforward_layernorm", ""],
    ..LLAMA_NAMES
};

fn read(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = llama_like(family, fields)?;
    let attention = llama_biases(fields)?.output;
    (config.biases.query_key_value, config.biases.output) = (attention, attention);
    config.norm_epsilon = fields.number("rms_norm_eps")?.unwrap_or(1e-5);
    config.norm_order = NormOrder::BlockOutput;
    config.attention.qk_norm = QkNorm::AcrossHeads;
    config.names = &NAMES;
    Ok(config)
}

fn read_olmo3(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = read(family, fields)?;
    let window = sliding_window(fields)?;
    set_window(&mut config, fields, window, |layer| !(layer + 1).is_multiple_of(4))?;
    let [all, windowed] = rotations(fields, config.context)?;
    config.positions = Positions::Rotary(all);
    config.attention.window_rope = config.attention.window.map(|_| windowed);
    Ok(config)
}

/// Rotary embeddings of the layers with full attention, and of those with a window. Files have an
/// object per kind of layer, or one for all, whose scaling applies to full attention only.
fn rotations(fields: &Fields, context: usize) -> Result<[Rope; 2]> {
    const NEW: &str = "rope_parameters";
    let theta = fields.number("rope_theta")?.unwrap_or(500_000.0);
    let by_kind = fields.object(NEW)?;
    let rotation = |kind: &str, scaling: Option<Fields>| {
        let new = by_kind.as_ref().map(|all| all.object(kind)).transpose()?.flatten();
        let (name, object) = match (new, scaling) {
            (Some(new), _) => (NEW, Some(new)),
            (None, old) => ("rope_scaling", old),
        };
        let theta = object.map(|o| o.number("rope_theta")).transpose()?.flatten().unwrap_or(theta);
        Rope::new(theta, object.map(|object| (name, object)), Lengths::new(context))
    };
    let scaling = fields.object("rope_scaling")?;
    Ok([rotation("full_attention", scaling)?, rotation("sliding_attention", None)?])
}
