//! What families share: a decoder as Llama began it, and windows.

use polydraft_text::{Fields, end_tokens};

use crate::config::{
    Attention, Biases, Config, FeedForward, NormKind, NormOrder, Positions, Rope, activation,
};
use crate::names::LLAMA_NAMES;

pub(crate) type Result<T> = std::result::Result<T, String>;

/// A family of models.
pub(crate) struct Family {
    /// As `config.json` names it.
    pub architecture: &'static str,
    /// From the fields of `config.json`; an error names the field.
    pub read: fn(&Family, &Fields) -> Result<Config>,
}

/// A decoder as Llama began it: rotary positions, RMS norms before the blocks, a gated feed-forward
/// with SiLU, no bias. What the families around it share; they change what differs.
pub(crate) fn llama_like(family: &Family, fields: &Fields) -> Result<Config> {
    const HEADS: usize = 1 << 12;
    let hidden = fields.size("hidden_size", 1 << 17)?;
    let heads = fields.size("num_attention_heads", HEADS)?;
    let context = fields.size("max_position_embeddings", 1 << 30)?;
    let head = fields.size_or("head_dim", hidden / heads, 1 << 12)?;
    Ok(Config {
        architecture: family.architecture,
        vocabulary: fields.size("vocab_size", 1 << 24)?,
        embedding: hidden,
        hidden,
        intermediate: fields.size("intermediate_size", 1 << 20)?,
        layers: fields.size("num_hidden_layers", 1 << 12)?,
        heads,
        key_value_heads: fields.size_or("num_key_value_heads", heads, HEADS)?,
        head,
        context,
        positions: Positions::Rotary(Rope::read(fields, context)?),
        attention: Attention {
            scale: (head as f64).powf(-0.5),
            softcap: None,
            head_norms: false,
            window: None,
            windowed: Vec::new(),
            window_rope: None,
        },
        norm: NormKind::Rms,
        norm_epsilon: fields.number("rms_norm_eps")?.unwrap_or(1e-6),
        norm_order: NormOrder::Before,
        final_norm: true,
        feed_forward: FeedForward {
            activation: activation(fields, "hidden_act", "silu")?,
            gated: true,
        },
        biases: Biases::default(),
        embedding_scale: 1.0,
        logit_softcap: None,
        tied: fields.flag("tie_word_embeddings", false)?,
        end_tokens: end_tokens(fields)?,
        names: &LLAMA_NAMES,
    })
}

/// Gives a window to the layers that `layer_types` lists or, where there is no such list, to those
/// that `default` says.
pub(super) fn set_window(
    config: &mut Config,
    fields: &Fields,
    window: Option<usize>,
    default: impl Fn(usize) -> bool,
) -> Result<()> {
    let windowed = match fields.get::<Vec<String>>("layer_types")? {
        None => (0..config.layers).map(default).collect(),
        Some(types) => types
            .iter()
            .map(|kind| match kind.as_str() {
                "full_attention" => Ok(false),
                "sliding_attention" => Ok(true),
                other => Err(format!(
                    "layer_types: expected full_attention or sliding_attention, got {other:?}"
                )),
            })
            .collect::<Result<Vec<bool>>>()?,
    };
    config.attention.window = window.filter(|_| windowed.contains(&true));
    config.attention.windowed = windowed;
    Ok(())
}

/// `sliding_window`, which has a default only where it is missing: null is none.
pub(super) fn sliding_window(fields: &Fields) -> Result<Option<usize>> {
    const DEFAULT: usize = 4096;
    match fields.get::<usize>("sliding_window")? {
        None if fields.given("sliding_window") => Ok(None),
        _ => fields.size_or("sliding_window", DEFAULT, 1 << 30).map(Some),
    }
}
