//! Granite Swash: Granite with attention sinks, a sliding window in three of four layers, and a
//! rotation of its own in each layer; dense or with experts.
//!
//! Source: IBM Granite Team 2026.

use polydraft_text::Fields;

use super::common::{Family, Result, set_window};
use super::{granite, granite_moe};
use crate::config::{Config, Positions, SharedExpert};
use crate::names::{ExpertNames, Layout, Names};

pub(super) const FAMILY: Family = Family { architecture: "GraniteSWAForCausalLM", read };
pub(super) const MOE: Family = Family { architecture: "GraniteMoeSWAForCausalLM", read: read_moe };

const MOE_NAMES: Names = Names {
    experts: ExpertNames {
        router: "block_sparse_moe.router",
        mlp_in: &["block_sparse_moe.experts.gate_up_proj"],
        mlp_out: "block_sparse_moe.experts.down_proj",
        layout: Layout::RowsBareName,
        ..granite_moe::NAMES.experts
    },
    ..granite_moe::NAMES
};

fn read(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = (granite::FAMILY.read)(family, fields)?;
    config.norm_epsilon = fields.number("rms_norm_eps")?.unwrap_or(1e-5);
    config.tied = fields.flag("tie_word_embeddings", true)?;
    set_sinks_and_windows(&mut config, fields)?;
    Ok(config)
}

fn read_moe(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = (granite_moe::FAMILY.read)(family, fields)?;
    let shared = fields.get::<usize>("shared_intermediate_size")?.unwrap_or(0).min(1 << 20);
    if let Some(experts) = config.experts.as_mut().filter(|_| shared > 0) {
        experts.shared = Some(SharedExpert { intermediate: shared, gated: false });
    }
    set_sinks_and_windows(&mut config, fields)?;
    config.names = &MOE_NAMES;
    Ok(config)
}

fn set_sinks_and_windows(config: &mut Config, fields: &Fields) -> Result<()> {
    config.attention.sinks = true;
    let window = match fields.contains("sliding_window") {
        true => fields.get::<usize>("sliding_window")?,
        false => Some(128),
    };
    set_window(config, fields, window, |layer| !layer.is_multiple_of(4))?;
    let Some(bases) = fields.get::<Vec<f64>>("layer_rope_theta")? else { return Ok(()) };
    let (layers, got) = (config.layers, bases.len());
    if got != layers {
        return Err(format!(
            "layer_rope_theta: expected {layers} entries, one per layer, got {got}"
        ));
    }
    let Positions::Rotary(rope) = &config.positions else { return Ok(()) };
    let with_base = |windowed: bool| {
        let own: Vec<f64> = (0..layers)
            .filter(|layer| config.is_windowed(*layer) == windowed && bases[*layer] > 0.0)
            .map(|layer| bases[layer])
            .collect();
        match own.iter().find(|base| **base != own[0]) {
            Some(other) => Err(format!(
                "layer_rope_theta: expected one base for the layers with a window, and one for the \
                 others, got {} and {other}",
                own[0]
            )),
            None => {
                let theta = own.first().copied().unwrap_or(rope.theta);
                Ok(crate::config::Rope { theta, ..rope.clone() })
            }
        }
    };
    let (full, windowed) = (with_base(false)?, with_base(true)?);
    config.attention.unrotated = bases.iter().map(|base| *base == 0.0).collect();
    config.attention.window_rope = config.attention.window.map(|_| windowed);
    config.positions = Positions::Rotary(full);
    Ok(())
}
