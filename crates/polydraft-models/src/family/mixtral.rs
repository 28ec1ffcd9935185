//! Mixtral: Mistral with eight experts per layer, two per token.
//!
//! Source: Jiang et al. 2024.

use polydraft_text::Fields;

use super::common::{Family, Result, llama_like, local_experts, set_window};
use crate::config::Config;
use crate::names::{ExpertNames, LLAMA_NAMES, Names};

pub(super) const FAMILY: Family = Family { architecture: "MixtralForCausalLM", read };

pub(super) const NAMES: Names = Names {
    experts: ExpertNames {
        router: "block_sparse_moe.gate",
        mlp_in: &["block_sparse_moe.experts.#.w1", "block_sparse_moe.experts.#.w3"],
        mlp_out: "block_sparse_moe.experts.#.w2",
        ..LLAMA_NAMES.experts
    },
    ..LLAMA_NAMES
};

fn read(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = llama_like(family, fields)?;
    config.norm_epsilon = fields.number("rms_norm_eps")?.unwrap_or(1e-5);
    let window = fields.get::<usize>("sliding_window")?;
    set_window(&mut config, fields, window, |_| true)?;
    config.experts = Some(local_experts(&config, fields)?);
    config.names = &NAMES;
    Ok(config)
}
