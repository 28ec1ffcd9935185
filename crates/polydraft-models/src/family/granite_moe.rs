//! Granite 3 with experts, optionally with a shared expert.
//!
//! Source: Granite Team 2024.

use polydraft_text::Fields;

use super::common::{Family, Result, llama_like, local_experts};
use super::granite::multipliers;
use crate::config::{Config, SharedExpert};
use crate::names::{ExpertNames, LLAMA_NAMES, Names};

pub(super) const FAMILY: Family = Family { architecture: "GraniteMoeForCausalLM", read };
pub(super) const SHARED: Family =
    Family { architecture: "GraniteMoeSharedForCausalLM", read: read_shared };

pub(super) const NAMES: Names = Names {
    experts: ExpertNames {
        router: "block_sparse_moe.router.layer",
        mlp_in: &["block_sparse_moe.input_linear"],
        mlp_out: "block_sparse_moe.output_linear",
        shared_in: &["shared_mlp.input_linear"],
        shared_out: "shared_mlp.output_linear",
        ..LLAMA_NAMES.experts
    },
    ..LLAMA_NAMES
};

fn read(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = llama_like(family, fields)?;
    multipliers(&mut config, fields)?;
    let bias = fields.flag("attention_bias", false)?;
    (config.biases.query_key_value, config.biases.output) = (bias, bias);
    config.experts = Some(local_experts(&config, fields)?);
    config.names = &NAMES;
    Ok(config)
}

fn read_shared(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = read(family, fields)?;
    let width = fields.get::<usize>("shared_intermediate_size")?.unwrap_or(1024);
    if let Some(experts) = config.experts.as_mut().filter(|_| width > 0) {
        let intermediate = fields.size_or("shared_intermediate_size", 1024, 1 << 20)?;
        experts.shared = Some(SharedExpert { intermediate, gated: false });
    }
    Ok(config)
}
