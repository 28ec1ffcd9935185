//! MiniMax-M2: experts with sigmoid scores in every layer, norms of queries and keys across heads.
//!
//! Source: MiniMax 2025.

use polydraft_text::Fields;

use super::common::{Family, Result, llama_with_partial_rope, local_experts};
use super::mixtral;
use crate::config::{Config, Experts, Positions, QkNorm, RouterScores};
use crate::names::{ExpertNames, Names};

pub(super) const FAMILY: Family = Family { architecture: "MiniMaxM2ForCausalLM", read };

const NAMES: Names = Names {
    experts: ExpertNames {
        correction: "block_sparse_moe.e_score_correction_bias",
        ..mixtral::NAMES.experts
    },
    ..mixtral::NAMES
};

fn read(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = llama_with_partial_rope(family, fields, 1.0)?;
    let rotated = fields.get::<usize>("rotary_dim")?;
    if let (Positions::Rotary(rope), Some(rotated)) = (&mut config.positions, rotated) {
        rope.dimensions = Some(rotated).filter(|rotated| *rotated != config.head_dim);
    }
    config.attention.qk_norm = QkNorm::AcrossHeads;
    let experts = local_experts(&config, fields)?;
    config.experts = Some(Experts { scores: RouterScores::Sigmoid, corrected: true, ..experts });
    config.names = &NAMES;
    Ok(config)
}
