//! InternLM3 and IQuest-Coder: Llama under another name.
//!
//! Source: Shanghai AI Laboratory 2025; IQuest Research 2026.

use polydraft_text::Fields;

use super::common::{Family, Result, llama_biases, llama_like};
use crate::config::{Biases, Config};

pub(super) const FAMILY: Family = Family { architecture: "InternLM3ForCausalLM", read };
pub(super) const IQUEST: Family =
    Family { architecture: "IQuestCoderForCausalLM", read: read_iquest };

fn read(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = llama_like(family, fields)?;
    config.norm_epsilon = fields.number("rms_norm_eps")?.unwrap_or(1e-5);
    let Biases { query_key_value, feed_forward, .. } = llama_biases(fields)?;
    // Older files name them otherwise.
    let attention = fields.flag("qkv_bias", query_key_value)?;
    let feed_forward = fields.flag("bias", feed_forward)?;
    if attention != feed_forward {
        return Err(format!(
            "qkv_bias: expected {feed_forward}, the value of bias, got {attention}"
        ));
    }
    config.biases = Biases { query_key_value: attention, output: attention, feed_forward };
    Ok(config)
}

fn read_iquest(family: &Family, fields: &Fields) -> Result<Config> {
    if let Some(cap) = fields.number("clip_qkv")? {
        return Err(format!("clip_qkv: expected null, got {cap}"));
    }
    if fields.flag("use_sliding_window", false)? {
        return Err("use_sliding_window: expected false, got true".to_owned());
    }
    let biases = llama_biases(fields)?;
    let norm_epsilon = fields.number("rms_norm_eps")?.unwrap_or(1e-5);
    Ok(Config { biases, norm_epsilon, ..llama_like(family, fields)? })
}
