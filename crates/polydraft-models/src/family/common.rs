//! What families share: a decoder as Llama began it, and windows.

use polydraft_text::{Fields, end_tokens};

use crate::config::{
    Attention, Biases, Config, Experts, FedBack, FeedForward, Groups, NormKind, NormOrder,
    Positions, Rope, Scores, Shared, activation,
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
    let context = fields.size("max_position_embeddings", 1 << 30)?;
    llama_with(family, fields, Rope::read(fields, context)?)
}

/// As [`llama_like`], with heads that are turned in part; by `default` where the file does not say
/// by how much.
pub(super) fn llama_turned(family: &Family, fields: &Fields, default: f64) -> Result<Config> {
    let context = fields.size("max_position_embeddings", 1 << 30)?;
    let hidden = fields.size("hidden_size", 1 << 17)?;
    let heads = fields.size("num_attention_heads", HEADS)?;
    let head = fields.size_or("head_dim", hidden / heads, 1 << 12)?;
    llama_with(family, fields, Rope::partial(fields, context, head, default)?)
}

const HEADS: usize = 1 << 12;
/// No more are read.
pub(super) const LAYERS: usize = 1 << 12;

/// As [`llama_like`], with this rotation.
pub(super) fn llama_with(family: &Family, fields: &Fields, rope: Rope) -> Result<Config> {
    let layers = fields.size("num_hidden_layers", LAYERS)?;
    llama_of(family, fields, rope, layers)
}

/// As [`llama_with`], of so many layers.
pub(super) fn llama_of(
    family: &Family,
    fields: &Fields,
    rope: Rope,
    layers: usize,
) -> Result<Config> {
    let hidden = fields.size("hidden_size", 1 << 17)?;
    let heads = fields.size("num_attention_heads", HEADS)?;
    let context = fields.size("max_position_embeddings", 1 << 30)?;
    let head = fields.size_or("head_dim", hidden / heads, 1 << 12)?;
    // Where all layers have experts, a file need not say a width without.
    let is_dense = fields.given("intermediate_size") || !fields.given("moe_intermediate_size");
    let inner = if is_dense { "intermediate_size" } else { "moe_intermediate_size" };
    Ok(Config {
        architecture: family.architecture,
        vocabulary: fields.size("vocab_size", 1 << 24)?,
        embedding: hidden,
        hidden,
        intermediate: fields.size(inner, 1 << 20)?,
        layers,
        heads,
        key_value_heads: fields.size_or("num_key_value_heads", heads, HEADS)?,
        head,
        context: rope.within(context),
        positions: Positions::Rotary(rope),
        attention: Attention::plain(head),
        norm: NormKind::Rms,
        norm_epsilon: fields.number("rms_norm_eps")?.unwrap_or(1e-6),
        norm_order: NormOrder::Before,
        final_norm: true,
        feed_forward: FeedForward {
            activation: activation(fields, "hidden_act", "silu")?,
            gated: true,
        },
        widened: false,
        experts: None,
        blocks: Vec::new(),
        recurrent: None,
        per_layer: None,
        layer_scales: false,
        biases: Biases::default(),
        residual_scale: 1.0,
        embedding_scale: 1.0,
        logit_scale: 1.0,
        logit_softcap: None,
        tied: fields.flag("tie_word_embeddings", false)?,
        end_tokens: end_tokens(fields)?,
        extra_layers: 0,
        further: Vec::new(),
        fed_back: FedBack::BeforeNorm,
        is_nested: false,
        names: &LLAMA_NAMES,
    })
}

/// Biases of all products of the attention, and of the feed-forward, as Llama's fields say.
pub(super) fn llama_biases(fields: &Fields) -> Result<Biases> {
    let attention = fields.flag("attention_bias", false)?;
    let feed_forward = fields.flag("mlp_bias", false)?;
    Ok(Biases { query_key_value: attention, output: attention, feed_forward })
}

/// As many experts in every layer, of which some compute a token, by softmax, of such a width; no
/// shared one.
pub(super) fn plain_experts(config: &Config, [count, used, width]: [usize; 3]) -> Experts {
    Experts {
        count,
        used,
        intermediate: width,
        latent: None,
        scores: Scores::Softmax,
        normalised: false,
        scale: 1.0,
        corrected: false,
        groups: None,
        shared: None,
        beside: false,
        scaled: false,
        biased: false,
        layers: vec![true; config.layers],
    }
}

/// Experts as DeepSeek V3 began them: by corrected sigmoids, in groups, with shared ones, after
/// some layers without. `defaults` are their number, how many compute a token, and their width.
pub(super) fn sigmoid_experts(
    config: &Config,
    fields: &Fields,
    defaults: [usize; 3],
) -> Result<Experts> {
    let intermediate = fields.size_or("moe_intermediate_size", defaults[2], 1 << 20)?;
    let count = fields.size_or("n_routed_experts", defaults[0], 1 << 12)?;
    let used = fields.size_or("num_experts_per_tok", defaults[1], 1 << 12)?;
    let groups = Groups {
        count: fields.size_or("n_group", 1, 1 << 12)?,
        used: fields.size_or("topk_group", 1, 1 << 12)?,
        best: 2,
    };
    let shared = fields.get::<usize>("n_shared_experts")?.unwrap_or(1).min(1 << 8);
    let dense = fields.get::<usize>("first_k_dense_replace")?.unwrap_or(1);
    Ok(Experts {
        scores: Scores::Sigmoid,
        normalised: fields.flag("norm_topk_prob", true)?,
        scale: fields.number("routed_scaling_factor")?.unwrap_or(1.0),
        corrected: true,
        // Of one group there is nothing to choose.
        groups: Some(groups).filter(|groups| groups.count > 1),
        shared: (shared > 0).then(|| Shared { intermediate: shared * intermediate, gated: false }),
        layers: (0..config.layers).map(|layer| layer >= dense).collect(),
        ..plain_experts(config, [count, used, intermediate])
    })
}

/// Experts as Mixtral has them, as wide as the other models' feed-forward blocks; the used ones'
/// weights sum to one.
pub(super) fn local_experts(config: &Config, fields: &Fields) -> Result<Experts> {
    let count = fields.size_or("num_local_experts", 8, 1 << 12)?;
    let used = fields.size_or("num_experts_per_tok", 2, 1 << 12)?;
    let experts = plain_experts(config, [count, used, config.intermediate]);
    Ok(Experts { normalised: true, ..experts })
}

/// Layers that predict further tokens.
pub(super) fn extra_layers(fields: &Fields) -> Result<usize> {
    Ok(fields.get::<usize>("num_nextn_predict_layers")?.unwrap_or(0).min(1 << 8))
}

/// Which layers `layer_types` lists as of a kind, where it is there; the others have attention to
/// everything.
pub(super) fn layers_of_kind(fields: &Fields, kind: &str) -> Result<Option<Vec<bool>>> {
    let Some(types) = fields.get::<Vec<String>>("layer_types")? else { return Ok(None) };
    let is_of_kind = |listed: &String| match &listed[..] {
        "full_attention" => Ok(false),
        listed if listed == kind => Ok(true),
        other => Err(format!("layer_types: expected full_attention or {kind}, got {other:?}")),
    };
    types.iter().map(is_of_kind).collect::<Result<_>>().map(Some)
}

/// Gives a window to the layers that `layer_types` lists or, where there is no such list, to those
/// that `default` says.
pub(super) fn set_window(
    config: &mut Config,
    fields: &Fields,
    window: Option<usize>,
    default: impl Fn(usize) -> bool,
) -> Result<()> {
    let listed = layers_of_kind(fields, "sliding_attention")?;
    let windowed = listed.unwrap_or_else(|| (0..config.layers).map(default).collect());
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
