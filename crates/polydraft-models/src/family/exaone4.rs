//! EXAONE 4: norms after the blocks and of each head's queries and keys; the 32B model has a
//! sliding window in three of four layers, and no positions in the others.
//!
//! Source: LG AI Research 2025.

use polydraft_text::Fields;

use super::common::{Family, Result, llama_like, set_window};
use crate::config::{Config, NormOrder, QkNorm};
use crate::names::{LLAMA_NAMES, Names};

pub(super) const FAMILY: Family = Family { architecture: "Exaone4ForCausalLM", read };

const NAMES: Names = Names {
    attention_norms: ["post_attention_layernorm", ""],
    mlp_norms: ["post_feedforward_layernorm", ""],
    ..LLAMA_NAMES
};

fn read(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = llama_like(family, fields)?;
    config.norm_epsilon = fields.number("rms_norm_eps")?.unwrap_or(1e-5);
    config.norm_order = NormOrder::BlockOutput;
    config.attention.qk_norm = QkNorm::PerHead;
    let window = fields.get::<usize>("sliding_window")?;
    let pattern = match window.is_some() && fields.get::<Vec<String>>("layer_types")?.is_none() {
        true => pattern(fields, config.layers)?,
        false => vec![false; config.layers],
    };
    set_window(&mut config, fields, window, |layer| pattern[layer])?;
    if window.is_some() {
        let windowed = &config.attention.windowed;
        config.attention.unrotated = windowed.iter().map(|windowed| !windowed).collect();
    }
    config.names = &NAMES;
    Ok(config)
}

/// For each layer, whether it has the sliding window. `sliding_window_pattern` is a number n, for
/// all but every n-th layer, or a repeated string with L for layers with a window; then the last
/// layer has none.
fn pattern(fields: &Fields, layers: usize) -> Result<Vec<bool>> {
    const FIELD: &str = "sliding_window_pattern";
    if let Ok(Some(letters)) = fields.get::<String>(FIELD) {
        let letters: Vec<char> = letters.chars().collect();
        if letters.is_empty() || letters.iter().any(|letter| !['L', 'G'].contains(letter)) {
            return Err(format!("{FIELD}: expected letters L and G, or a number"));
        }
        let local = |layer: usize| letters[layer % letters.len()] == 'L' && layer + 1 < layers;
        return Ok((0..layers).map(local).collect());
    }
    let pattern = fields.size_or(FIELD, 4, 1 << 12)?;
    Ok((0..layers).map(|layer| !(layer + 1).is_multiple_of(pattern)).collect())
}
