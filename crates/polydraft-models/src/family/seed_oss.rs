//! Seed-OSS: Llama with biases on queries, keys and values.
//!
//! Source: ByteDance Seed 2025.

use polydraft_text::Fields;

use super::common::{Family, Result, llama_like};
use crate::config::{Biases, Config};

pub(super) const FAMILY: Family = Family { architecture: "SeedOssForCausalLM", read };

fn read(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = llama_like(family, fields)?;
    config.biases = Biases {
        query_key_value: fields.flag("attention_bias", true)?,
        output: fields.flag("attention_out_bias", false)?,
        feed_forward: fields.flag("mlp_bias", false)?,
    };
    Ok(config)
}
