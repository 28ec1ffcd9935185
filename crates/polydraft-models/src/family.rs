//! The families of models: how each one's `config.json` is read, and what its tensors are called.
//!
//! A new family is a file here and an entry in [`FAMILIES`]; the decoder itself knows none of them
//! by name.

mod gemma2;
mod gemma3;
mod llama;
mod mistral;
mod opt;
mod qwen2;
mod qwen3;

use polydraft_text::{Fields, end_tokens};

use crate::Config;
use crate::config::{
    Activation, Attention, Biases, FeedForward, NormKind, NormOrder, Positions, Rope,
};

type Result<T> = std::result::Result<T, String>;

/// A family of models.
pub(crate) struct Family {
    /// As `config.json` names it.
    pub architecture: &'static str,
    /// From the fields of `config.json`; an error names the field.
    pub read: fn(&Family, &Fields) -> Result<Config>,
}

/// Every family that can be loaded.
pub(crate) const FAMILIES: &[Family] = &[
    llama::FAMILY,
    mistral::FAMILY,
    qwen2::FAMILY,
    qwen3::FAMILY,
    gemma2::FAMILY,
    gemma3::FAMILY,
    opt::FAMILY,
];

/// The architectures that can be loaded, as `config.json` names them.
pub fn architectures() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|family| family.architecture)
}

/// What tensors are called, without the `.weight` or `.bias` at the end. Of those inside a layer
/// the part behind its number.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Names {
    pub embedding: &'static str,
    /// Learned positions, and the projections around the layers; empty where a family has none.
    pub positions: &'static str,
    pub project_in: &'static str,
    pub project_out: &'static str,
    pub layers: &'static str,
    pub query_key_value: [&'static str; 3],
    pub output: &'static str,
    /// Norms of a head's queries and keys.
    pub head_norms: [&'static str; 2],
    /// The norm before the attention, or behind it where [`NormOrder::After`] says so; then the
    /// second one around it.
    pub attention_norms: [&'static str; 2],
    pub mlp_norms: [&'static str; 2],
    /// Gate and up, or the one matrix where there is no gate.
    pub mlp_in: &'static [&'static str],
    pub mlp_out: &'static str,
    pub norm: &'static str,
    pub head: &'static str,
}

impl Names {
    /// What all but the head's begin with, its point included.
    pub fn prefix(&self) -> &'static str {
        self.layers.split_inclusive('.').next().unwrap_or_default()
    }
}

/// The names that Llama began and most families keep.
pub(crate) const LLAMA_NAMES: Names = Names {
    embedding: "model.embed_tokens",
    positions: "",
    project_in: "",
    project_out: "",
    layers: "model.layers",
    query_key_value: ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    output: "self_attn.o_proj",
    head_norms: ["self_attn.q_norm", "self_attn.k_norm"],
    attention_norms: ["input_layernorm", ""],
    mlp_norms: ["post_attention_layernorm", ""],
    mlp_in: &["mlp.gate_proj", "mlp.up_proj"],
    mlp_out: "mlp.down_proj",
    norm: "model.norm",
    head: "lm_head",
};

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
            activation: Activation::read(fields, "hidden_act", "silu")?,
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
fn set_window(
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
fn sliding_window(fields: &Fields) -> Result<Option<usize>> {
    const DEFAULT: usize = 4096;
    match fields.get::<usize>("sliding_window")? {
        None if fields.given("sliding_window") => Ok(None),
        _ => fields.size_or("sliding_window", DEFAULT, 1 << 30).map(Some),
    }
}
