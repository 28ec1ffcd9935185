//! Llama 1 to 3 and the many models of their shape.
//!
//! Source: Touvron et al. 2023; Dubey et al. 2024.

use polydraft_text::Fields;

use super::common::{Family, Result, llama_like};
use crate::config::{Biases, Config};

pub(super) const FAMILY: Family = Family { architecture: "LlamaForCausalLM", read };

fn read(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = llama_like(family, fields)?;
    let attention = fields.flag("attention_bias", false)?;
    config.biases = Biases {
        query_key_value: attention,
        output: attention,
        feed_forward: fields.flag("mlp_bias", false)?,
    };
    Ok(config)
}
