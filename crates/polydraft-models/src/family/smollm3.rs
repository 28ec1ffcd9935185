//! SmolLM3: Llama without positions in every fourth layer.
//!
//! Source: Bakouch et al. 2025.

use polydraft_text::Fields;

use super::common::{Family, Result, llama_biases, llama_like, set_window, sliding_window};
use crate::config::Config;

pub(super) const FAMILY: Family = Family { architecture: "SmolLM3ForCausalLM", read };

fn read(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = llama_like(family, fields)?;
    config.tied = fields.flag("tie_word_embeddings", true)?;
    config.biases = llama_biases(fields)?;
    let interval = fields.size_or("no_rope_layer_interval", 4, 1 << 12)?;
    config.attention.unrotated = match fields.get::<Vec<u8>>("no_rope_layers")? {
        // 1 is a layer with rotation, despite the name of the field.
        Some(listed) if listed.len() >= config.layers => {
            listed[..config.layers].iter().map(|rotated| *rotated == 0).collect()
        }
        Some(listed) => {
            let (expected, got) = (config.layers, listed.len());
            return Err(format!("no_rope_layers: expected {expected} entries, got {got}"));
        }
        None => (0..config.layers).map(|layer| (layer + 1).is_multiple_of(interval)).collect(),
    };
    // A list of layers overrides `use_sliding_window`.
    let listed = fields.get::<Vec<String>>("layer_types")?.is_some();
    let window = match listed || fields.flag("use_sliding_window", false)? {
        true => sliding_window(fields)?,
        false => None,
    };
    let unrotated = config.attention.unrotated.clone();
    set_window(&mut config, fields, window, |layer| unrotated[layer])?;
    Ok(config)
}
