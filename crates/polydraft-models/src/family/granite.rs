//! Granite 3: Llama with factors for embeddings, scores, blocks and logits.
//!
//! Source: Granite Team 2024.

use polydraft_text::Fields;

use super::common::{Family, Result, llama_biases, llama_like};
use crate::config::Config;

pub(super) const FAMILY: Family = Family { architecture: "GraniteForCausalLM", read };

fn read(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = llama_like(family, fields)?;
    config.biases = llama_biases(fields)?;
    multipliers(&mut config, fields)?;
    Ok(config)
}

/// Reads the factors that all Granite models have.
pub(super) fn multipliers(config: &mut Config, fields: &Fields) -> Result<()> {
    let factor = |field: &str| Ok::<_, String>(fields.number(field)?.unwrap_or(1.0));
    config.attention.scale = factor("attention_multiplier")?;
    config.embedding_scale = factor("embedding_multiplier")?;
    config.residual_scale = factor("residual_multiplier")?;
    config.logit_scale = 1.0 / factor("logits_scaling")?;
    Ok(())
}
