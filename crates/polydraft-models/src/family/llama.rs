//! Llama 1 to 3 and the many models with the same architecture.
//!
//! Source: Touvron et al. 2023; Dubey et al. 2024.

use polydraft_text::Fields;

use super::common::{Family, Result, llama_biases, llama_like};
use crate::config::Config;

pub(super) const FAMILY: Family = Family { architecture: "LlamaForCausalLM", read };

fn read(family: &Family, fields: &Fields) -> Result<Config> {
    let biases = llama_biases(fields)?;
    Ok(Config { biases, ..llama_like(family, fields)? })
}
