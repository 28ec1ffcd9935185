//! What tensors are called.

/// What tensors are called, without the `.weight` or `.bias` at the end. Of those inside a layer
/// the part after its number.
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
    /// The norm before the attention, or after it where
    /// [`NormOrder::After`](crate::config::NormOrder::After) says so; then the second one around
    /// it.
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
