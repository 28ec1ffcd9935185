//! Arcee (AFM): Llama with a feed-forward block of ReLU squared, without a gate.
//!
//! Source: Arcee AI 2025.

use polydraft_text::Fields;

use super::common::{Family, Result, llama_biases, llama_like};
use crate::config::{Config, FeedForward, activation};
use crate::names::{LLAMA_NAMES, Names};

pub(super) const FAMILY: Family = Family { architecture: "ArceeForCausalLM", read };

const NAMES: Names = Names { mlp_in: &["mlp.up_proj"], ..LLAMA_NAMES };

fn read(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = llama_like(family, fields)?;
    config.norm_epsilon = fields.number("rms_norm_eps")?.unwrap_or(1e-5);
    config.biases = llama_biases(fields)?;
    let activation = activation(fields, "hidden_act", "relu2")?;
    config.feed_forward = FeedForward { activation, gated: false };
    config.names = &NAMES;
    Ok(config)
}
