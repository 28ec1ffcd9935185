//! Helpers that families share: a Llama-like decoder, experts, and sliding windows.

use polydraft_text::{Fields, end_tokens};

use crate::config::{
    Attention, Biases, Config, ExpertGroups, Experts, FeedForward, Feedback, Lengths, NormKind,
    NormOrder, Positions, QkNorm, QueryScaling, Rope, RouterScores, SharedExpert, activation,
};
use crate::names::LLAMA_NAMES;

pub(crate) type Result<T> = std::result::Result<T, String>;

/// A family of models.
pub(crate) struct Family {
    /// Name of the architecture in `config.json`.
    pub architecture: &'static str,
    /// Reads the fields of `config.json`; errors name the field.
    pub read: fn(&Family, &Fields) -> Result<Config>,
}

/// Reads a decoder like Llama: rotary positions, RMS norms before the blocks, gated feed-forward
/// blocks with SiLU, no biases. Families start from it and change what differs.
pub(crate) fn llama_like(family: &Family, fields: &Fields) -> Result<Config> {
    let context = fields.size("max_position_embeddings", 1 << 30)?;
    llama_with_rope(family, fields, Rope::read(fields, context)?)
}

/// Like [`llama_like`], for partially rotated heads; `default` is the default of the fraction.
pub(super) fn llama_with_partial_rope(
    family: &Family,
    fields: &Fields,
    default: f64,
) -> Result<Config> {
    let context = fields.size("max_position_embeddings", 1 << 30)?;
    let hidden = fields.size("hidden_size", 1 << 17)?;
    let heads = fields.size("num_attention_heads", MAX_HEADS)?;
    let head = fields.size_or("head_dim", hidden / heads, 1 << 12)?;
    llama_with_rope(family, fields, Rope::partial(fields, context, head, default)?)
}

const MAX_HEADS: usize = 1 << 12;
pub(super) const MAX_LAYERS: usize = 1 << 12;

/// Like [`llama_like`], with this rotary embedding.
pub(super) fn llama_with_rope(family: &Family, fields: &Fields, rope: Rope) -> Result<Config> {
    let layers = fields.size("num_hidden_layers", MAX_LAYERS)?;
    llama_with_layers(family, fields, rope, layers)
}

/// Like [`llama_with_rope`], with `layers` layers.
pub(super) fn llama_with_layers(
    family: &Family,
    fields: &Fields,
    rope: Rope,
    layers: usize,
) -> Result<Config> {
    let hidden = fields.size("hidden_size", 1 << 17)?;
    let heads = fields.size("num_attention_heads", MAX_HEADS)?;
    let context = fields.size("max_position_embeddings", 1 << 30)?;
    let head = fields.size_or("head_dim", hidden / heads, 1 << 12)?;
    // If all layers have experts, the dense width may be missing.
    let is_dense =
        fields.contains("intermediate_size") || !fields.contains("moe_intermediate_size");
    let inner = if is_dense { "intermediate_size" } else { "moe_intermediate_size" };
    Ok(Config {
        architecture: family.architecture,
        vocabulary: fields.size("vocab_size", 1 << 24)?,
        embedding: hidden,
        hidden,
        intermediate: fields.size(inner, 1 << 20)?,
        layers,
        heads,
        key_value_heads: fields.size_or("num_key_value_heads", heads, MAX_HEADS)?,
        head_dim: head,
        context: rope.max_context(context),
        positions: Positions::Rotary(rope),
        attention: Attention::plain(head),
        norm: NormKind::Rms,
        norm_epsilon: fields.number("rms_norm_eps")?.unwrap_or(1e-6),
        norm_order: NormOrder::Pre,
        final_norm: true,
        feed_forward: FeedForward {
            activation: activation(fields, "hidden_act", "silu")?,
            gated: true,
        },
        double_wide_mlp: false,
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
        mtp_modules: 0,
        mtp_layers: Vec::new(),
        feedback: Feedback::BeforeNorm,
        is_multimodal: false,
        names: &LLAMA_NAMES,
    })
}

/// Reads Llama's fields for biases of attention and of feed-forward blocks.
pub(super) fn llama_biases(fields: &Fields) -> Result<Biases> {
    let attention = fields.flag("attention_bias", false)?;
    let feed_forward = fields.flag("mlp_bias", false)?;
    Ok(Biases { query_key_value: attention, output: attention, feed_forward })
}

/// Experts in every layer, with softmax scores and no shared expert: `count` experts of inner width
/// `width`; `used` of them compute each token.
pub(super) fn plain_experts(config: &Config, [count, used, width]: [usize; 3]) -> Experts {
    Experts {
        count,
        used,
        intermediate: width,
        latent: None,
        scores: RouterScores::Softmax,
        normalised: false,
        scale: 1.0,
        corrected: false,
        groups: None,
        shared: None,
        parallel: false,
        scaled: false,
        biased: false,
        layers: vec![true; config.layers],
    }
}

/// Reads experts as in DeepSeek V3: sigmoid scores with a bias for the selection, groups, shared
/// experts, and dense first layers. `defaults` are the number of experts, the number that compute a
/// token, and their inner width.
pub(super) fn sigmoid_experts(
    config: &Config,
    fields: &Fields,
    defaults: [usize; 3],
) -> Result<Experts> {
    let intermediate = fields.size_or("moe_intermediate_size", defaults[2], 1 << 20)?;
    // Sarvam's published files have the second name of either.
    let either = |names: [&'static str; 2]| match fields.contains(names[0]) {
        true => names[0],
        false => names[1],
    };
    let count = either(["n_routed_experts", "num_experts"]);
    let count = fields.size_or(count, defaults[0], 1 << 12)?;
    let used = fields.size_or("num_experts_per_tok", defaults[1], 1 << 12)?;
    let groups = ExpertGroups {
        count: fields.size_or("n_group", 1, 1 << 12)?,
        used: fields.size_or("topk_group", 1, 1 << 12)?,
        best_scores: 2,
    };
    let shared = either(["n_shared_experts", "num_shared_experts"]);
    let shared = fields.get::<usize>(shared)?.unwrap_or(1).min(1 << 8);
    let dense = fields.get::<usize>("first_k_dense_replace")?.unwrap_or(1);
    Ok(Experts {
        scores: RouterScores::Sigmoid,
        normalised: fields.flag("norm_topk_prob", true)?,
        scale: fields.number("routed_scaling_factor")?.unwrap_or(1.0),
        corrected: true,
        // A single group is no restriction.
        groups: Some(groups).filter(|groups| groups.count > 1),
        shared: (shared > 0)
            .then(|| SharedExpert { intermediate: shared * intermediate, gated: false }),
        layers: (0..config.layers).map(|layer| layer >= dense).collect(),
        ..plain_experts(config, [count, used, intermediate])
    })
}

/// Reads experts as in Mixtral: as wide as a dense feed-forward block, with normalised scores.
pub(super) fn local_experts(config: &Config, fields: &Fields) -> Result<Experts> {
    let count = fields.size_or("num_local_experts", 8, 1 << 12)?;
    let used = fields.size_or("num_experts_per_tok", 2, 1 << 12)?;
    let experts = plain_experts(config, [count, used, config.intermediate]);
    Ok(Experts { normalised: true, ..experts })
}

/// Reads the number of MTP modules.
pub(super) fn mtp_modules(fields: &Fields) -> Result<usize> {
    Ok(fields.get::<usize>("num_nextn_predict_layers")?.unwrap_or(0).min(1 << 8))
}

/// For each layer, whether `layer_types` lists it as `kind`; the others must have full attention.
/// `None` if there is no list.
pub(super) fn layers_of_kind(fields: &Fields, kind: &str) -> Result<Option<Vec<bool>>> {
    let Some(types) = fields.get::<Vec<String>>("layer_types")? else { return Ok(None) };
    let is_of_kind = |listed: &String| match &listed[..] {
        "full_attention" => Ok(false),
        listed if listed == kind => Ok(true),
        other => Err(format!("layer_types: expected full_attention or {kind}, got {other:?}")),
    };
    types.iter().map(is_of_kind).collect::<Result<_>>().map(Some)
}

/// Sets a sliding window in the layers that `layer_types` lists, or without a list in those for
/// which `default` is true.
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

/// For each layer, whether `mlp_layer_types` lists it as `sparse`; `default` without a list.
pub(super) fn sparse_layers(fields: &Fields, default: &[bool]) -> Result<Vec<bool>> {
    const FIELD: &str = "mlp_layer_types";
    let Some(types) = fields.get::<Vec<String>>(FIELD)? else { return Ok(default.to_vec()) };
    let is_sparse = |listed: &String| match &listed[..] {
        "dense" => Ok(false),
        "sparse" => Ok(true),
        other => Err(format!("{FIELD}: expected dense or sparse, got {other:?}")),
    };
    types.iter().map(is_sparse).collect()
}

/// Rotary embeddings of the layers with full attention, and of those with a window, from an object
/// for each kind of layer in `rope_parameters`.
fn rotations_by_kind(fields: &Fields, context: usize, head: usize) -> Result<[Rope; 2]> {
    const FIELD: &str = "rope_parameters";
    let all = fields.object(FIELD)?;
    let of_kind = |kind: &str| {
        let Some(object) = all.as_ref().map(|all| all.object(kind)).transpose()?.flatten() else {
            return Rope::partial(fields, context, head, 1.0);
        };
        let theta = object.number("rope_theta")?.unwrap_or(10_000.0);
        if object.get::<String>("rope_type")?.as_deref() == Some("proportional") {
            return Rope::proportional(&object, theta, head);
        }
        let part = object.number("partial_rotary_factor")?.unwrap_or(1.0);
        let rotated = (head as f64 * part) as usize;
        let rope = Rope::new(theta, Some((FIELD, object)), Lengths::new(context))?;
        Ok(Rope { dimensions: Some(rotated).filter(|rotated| *rotated != head), ..rope })
    };
    Ok([of_kind("full_attention")?, of_kind("sliding_attention")?])
}

/// Like [`llama_with_rope`], with a rotary embedding for each kind of layer, heads of 128 numbers
/// by default and norms of their queries and keys. Returns the embedding of layers with a window
/// too.
pub(super) fn llama_with_rotations(family: &Family, fields: &Fields) -> Result<(Config, Rope)> {
    let context = fields.size("max_position_embeddings", 1 << 30)?;
    let head = fields.size_or("head_dim", 128, 1 << 12)?;
    let [full, windowed] = rotations_by_kind(fields, context, head)?;
    let mut config = llama_with_rope(family, fields, full)?;
    config.head_dim = head;
    config.attention.scale = (head as f64).powf(-0.5);
    config.attention.qk_norm = QkNorm::PerHead;
    let bias = fields.flag("attention_bias", false)?;
    (config.biases.query_key_value, config.biases.output) = (bias, bias);
    Ok((config, windowed))
}

/// Reads the factor of queries that depends on their position, from the RoPE scaling.
pub(super) fn query_scaling(fields: &Fields) -> Result<Option<QueryScaling>> {
    let rope = match fields.object("rope_scaling")? {
        Some(scaling) => Some(scaling),
        None => fields.object("rope_parameters")?,
    };
    let Some(rope) = rope else { return Ok(None) };
    let Some(beta) = rope.number("llama_4_scaling_beta")? else { return Ok(None) };
    let original = rope.size("original_max_position_embeddings", 1 << 30)?;
    Ok(Some(QueryScaling { beta, original }))
}

/// Reads `sliding_window`. A missing field is the default, null is no window.
pub(super) fn sliding_window(fields: &Fields) -> Result<Option<usize>> {
    const DEFAULT: usize = 4096;
    match fields.get::<usize>("sliding_window")? {
        None if fields.contains("sliding_window") => Ok(None),
        _ => fields.size_or("sliding_window", DEFAULT, 1 << 30).map(Some),
    }
}
