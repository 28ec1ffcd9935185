//! Mistral: Llama with a sliding window in all layers, which later versions dropped
//! (`"sliding_window": null`).
//!
//! Source: Jiang et al. 2023.

use polydraft_text::Fields;

use super::common::{Family, Result, llama_like, set_window, sliding_window};
use crate::config::Config;

pub(super) const FAMILY: Family = Family { architecture: "MistralForCausalLM", read };

fn read(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = llama_like(family, fields)?;
    set_window(&mut config, fields, sliding_window(fields)?, |_| true)?;
    Ok(config)
}
