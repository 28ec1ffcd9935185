//! gpt-oss: experts with biases and a clamped gate in four bits, attention sinks, and a sliding
//! window in every other layer.
//!
//! Source: OpenAI 2025.

use polydraft_kernels::Activation;
use polydraft_text::Fields;

use super::common::{Family, Result, llama_like, plain_experts, set_window, sliding_window};
use crate::config::{Config, Experts, FeedForward, Positions, Rope};
use crate::names::{ExpertNames, LLAMA_NAMES, Layout, Names};

pub(super) const FAMILY: Family = Family { architecture: "GptOssForCausalLM", read };

const NAMES: Names = Names {
    experts: ExpertNames {
        router: "mlp.router",
        mlp_in: &["mlp.experts.gate_up_proj"],
        mlp_out: "mlp.experts.down_proj",
        layout: Layout::Columns,
        ..LLAMA_NAMES.experts
    },
    ..LLAMA_NAMES
};

fn read(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = llama_like(family, fields)?;
    config.norm_epsilon = fields.number("rms_norm_eps")?.unwrap_or(1e-5);
    if !fields.contains("rope_theta")
        && fields.object("rope_parameters")?.is_none_or(|rope| !rope.contains("rope_theta"))
        && let Positions::Rotary(Rope { theta, .. }) = &mut config.positions
    {
        *theta = 150_000.0;
    }
    for (field, known) in [("swiglu_limit", 7.0), ("swiglu_alpha", 1.702)] {
        if let Some(got) = fields.number(field)?.filter(|got| *got != known) {
            return Err(format!("{field}: expected {known}, got {got}"));
        }
    }
    config.feed_forward = FeedForward { activation: Activation::Clamped, gated: true };
    let bias = fields.flag("attention_bias", true)?;
    (config.biases.query_key_value, config.biases.output) = (bias, bias);
    config.attention.sinks = true;
    set_window(&mut config, fields, sliding_window(fields)?, |layer| layer % 2 == 0)?;
    let experts = plain_experts(
        &config,
        [
            fields.size_or("num_local_experts", 128, 1 << 12)?,
            fields.size_or("num_experts_per_tok", 4, 1 << 12)?,
            config.intermediate,
        ],
    );
    config.experts = Some(Experts { normalised: true, biased: true, ..experts });
    config.names = &NAMES;
    Ok(config)
}
