//! Ministral: Mistral with a sliding window in the listed layers. Ministral 3: Mistral with YaRN,
//! and queries that are scaled by position.
//!
//! Source: Mistral AI 2024 and 2025.

use polydraft_text::Fields;

use super::common::{Family, Result, llama_like, query_scaling, set_window, sliding_window};
use crate::config::Config;

pub(super) const FAMILY: Family = Family { architecture: "MinistralForCausalLM", read };
pub(super) const MINISTRAL3: Family =
    Family { architecture: "Ministral3ForCausalLM", read: read_ministral3 };

fn read(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = llama_like(family, fields)?;
    let window = sliding_window(fields)?;
    set_window(&mut config, fields, window, |_| window.is_some())?;
    Ok(config)
}

fn read_ministral3(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = llama_like(family, fields)?;
    let window = fields.get::<usize>("sliding_window")?;
    set_window(&mut config, fields, window, |_| true)?;
    config.attention.query_scaling = query_scaling(fields)?;
    Ok(config)
}
