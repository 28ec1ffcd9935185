//! Gemma 3, text only: Gemma 2 without soft caps, with norms of each head's queries and keys; five
//! of six layers have a sliding window, with higher RoPE frequencies that are never scaled.
//!
//! Source: Gemma Team 2025.

use polydraft_text::Fields;

use super::common::{Family, Result, set_window, sliding_window};
use super::gemma2;
use crate::config::{Config, Lengths, Positions, QkNorm, Rope};

pub(super) const FAMILY: Family = Family { architecture: "Gemma3ForCausalLM", read };

fn read(family: &Family, fields: &Fields) -> Result<Config> {
    if fields.flag("use_bidirectional_attention", false)? {
        return Err("use_bidirectional_attention: expected false, got true".to_owned());
    }
    let mut config = gemma2::gemma_like(family, fields)?;
    // The field for a cap of scores is ignored, as in transformers and llama.cpp.
    config.logit_softcap = fields.number("final_logit_softcapping")?;
    config.attention.qk_norm = QkNorm::PerHead;
    let pattern = fields.size_or("sliding_window_pattern", 6, 1 << 12)?;
    set_window(&mut config, fields, sliding_window(fields)?, |layer| {
        !(layer + 1).is_multiple_of(pattern)
    })?;
    let [all, windowed] = rotations(fields, config.context)?;
    config.positions = Positions::Rotary(all);
    config.attention.window_rope = config.attention.window.map(|_| windowed);
    Ok(config)
}

/// Rotary embeddings of the layers with full attention, and of those with a window. New files have
/// an object per kind of layer, old ones separate fields.
fn rotations(fields: &Fields, context: usize) -> Result<[Rope; 2]> {
    const NEW: &str = "rope_parameters";
    let by_kind = fields.object(NEW)?;
    let rotation = |kind: &str, old: &str, default: f64, scaled: bool| {
        let new = by_kind.as_ref().map(|all| all.object(kind)).transpose()?.flatten();
        if let Some(new) = new {
            let theta = new.number("rope_theta")?.unwrap_or(default);
            return Rope::new(theta, Some((NEW, new)), Lengths::new(context));
        }
        let scaling = if scaled { fields.object("rope_scaling")? } else { None };
        let theta = fields.number(old)?.unwrap_or(default);
        Rope::new(theta, scaling.map(|scaling| ("rope_scaling", scaling)), Lengths::new(context))
    };
    Ok([
        rotation("full_attention", "rope_theta", 1_000_000.0, true)?,
        rotation("sliding_attention", "rope_local_base_freq", 10_000.0, false)?,
    ])
}
