//! StarCoder2: layer norms, biases, a feed-forward block without a gate, a sliding window.
//!
//! Source: Lozhkov et al. 2024.

use polydraft_text::Fields;

use super::common::{Family, Result, llama_like, set_window};
use crate::config::{Biases, Config, FeedForward, NormKind, activation};
use crate::names::{LLAMA_NAMES, Names};

pub(super) const FAMILY: Family = Family { architecture: "Starcoder2ForCausalLM", read };

const NAMES: Names = Names { mlp_in: &["mlp.c_fc"], mlp_out: "mlp.c_proj", ..LLAMA_NAMES };

fn read(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = llama_like(family, fields)?;
    let activation = activation(fields, "hidden_act", "gelu_pytorch_tanh")?;
    config.feed_forward = FeedForward { activation, gated: false };
    config.norm = NormKind::Layer;
    config.norm_epsilon = fields.number("norm_epsilon")?.unwrap_or(1e-5);
    config.tied = fields.flag("tie_word_embeddings", true)?;
    let bias = fields.flag("use_bias", true)?;
    config.biases = Biases { query_key_value: bias, output: bias, feed_forward: bias };
    let window = fields.get::<usize>("sliding_window")?;
    set_window(&mut config, fields, window, |_| window.is_some())?;
    config.names = &NAMES;
    Ok(config)
}
