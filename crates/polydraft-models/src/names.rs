//! Names of tensors.

/// Names of the tensors of a family, without the `.weight` or `.bias` at the end unless stated
/// otherwise ("full name"). Names of tensors inside a layer begin after the layer's number.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Names {
    pub embedding: &'static str,
    /// Learned positions, and the projections around the layers; empty if a family has none.
    pub positions: &'static str,
    pub project_in: &'static str,
    pub project_out: &'static str,
    pub layers: &'static str,
    /// Projections of queries, keys and values, or one that is all three.
    pub query_key_value: &'static [&'static str],
    pub attention_output: &'static str,
    /// Gate of the attention's output, if it has a matrix of its own.
    pub attention_gate: &'static str,
    /// Norms of queries and of keys.
    pub qk_norms: [&'static str; 2],
    /// Attention sinks, one logit per head (full name).
    pub sinks: &'static str,
    pub latent: LatentNames,
    /// The norm before the attention, or after it with
    /// [`NormOrder::Post`](crate::config::NormOrder::Post), then the norm of its output with
    /// [`NormOrder::Sandwich`](crate::config::NormOrder::Sandwich). Layers that are only a
    /// feed-forward block use these names too.
    pub attention_norms: [&'static str; 2],
    pub mlp_norms: [&'static str; 2],
    /// Gate and up projections, or a single matrix: up alone, or both stacked.
    pub mlp_in: &'static [&'static str],
    pub mlp_out: &'static str,
    pub experts: ExpertNames,
    pub per_layer: PerLayerNames,
    /// Factor of the layer's output (full name).
    pub layer_scale: &'static str,
    pub recurrent: RecurrentNames,
    pub mtp: MtpNames,
    pub norm: &'static str,
    pub lm_head: &'static str,
}

/// Names of multi-head latent attention, whose KV cache is compressed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LatentNames {
    /// Down projection, norm and up projection of compressed queries.
    pub query_down: &'static str,
    pub query_norm: &'static str,
    pub query_up: &'static str,
    /// Projection of queries that are not compressed.
    pub query: &'static str,
    /// Down projection to the cached vector and to the rotated part of the keys.
    pub down: &'static str,
    pub norm: &'static str,
    /// Up projection: for each head the rows of keys, then those of values.
    pub up: &'static str,
    /// Separate up projections `[heads, rank, plain]` of keys and `[heads, value, rank]` of values
    /// in GGUF files (full names).
    pub split_up: [&'static str; 2],
}

/// Names of the experts of a layer. `#` stands for an expert's number; a name without it is the
/// full name of a tensor of all experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExpertNames {
    pub router: &'static str,
    /// Bias that is added to scores only to select experts (full name).
    pub correction: &'static str,
    pub mlp_in: &'static [&'static str],
    pub mlp_out: &'static str,
    /// Projections to the experts' width and back, if it differs from the model's.
    pub latent: [&'static str; 2],
    pub layout: Layout,
    pub shared_in: &'static [&'static str],
    pub shared_out: &'static str,
    /// Projection whose sigmoid is the gate of the shared expert.
    pub shared_gate: &'static str,
    /// Weight of the router's norm, for experts in parallel with a feed-forward block (full name).
    pub router_scale: &'static str,
    /// Factors of the experts' outputs (full name).
    pub scales: &'static str,
    /// Norms after the parallel feed-forward block, before the experts and after the experts.
    pub norms: [&'static str; 3],
}

impl ExpertNames {
    /// Names in directories that store all experts in two tensors, gates above up projections. Only
    /// for families whose usual names have one tensor per expert.
    pub fn stacked(&self) -> Option<Self> {
        let usual = &LLAMA_NAMES.experts;
        (self.mlp_in == usual.mlp_in && self.mlp_out == usual.mlp_out).then_some(Self {
            mlp_in: &["mlp.experts.gate_up_proj"],
            mlp_out: "mlp.experts.down_proj",
            layout: Layout::RowsBareName,
            ..*self
        })
    }
}

/// Names of per-layer embeddings.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PerLayerNames {
    /// Table with a row per token: the inputs of all layers.
    pub table: &'static str,
    /// Projection of the embedded token that is added to the row, and its norm.
    pub projection: &'static str,
    pub norm: &'static str,
    /// Gate of a layer's input, projection back to the layer's width, and the norm of the result.
    pub gate: &'static str,
    pub back: &'static str,
    pub after: &'static str,
}

/// Names of recurrent layers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RecurrentNames {
    /// Input projection of the convolution, and projection of the output gate. If the second has no
    /// name, the first is both, interleaved by key heads.
    pub into: &'static str,
    pub gate: &'static str,
    /// Strengths and decays of the delta rule. If the second has no name, the first is both,
    /// interleaved by key heads.
    pub strength: &'static str,
    pub decay: &'static str,
    /// Rates that decays are multiplied by (full name).
    pub rate: &'static str,
    pub rates: Rates,
    /// Biases that are added to decays (full name).
    pub shift: &'static str,
    /// Factors of the skip connection past a state space (full name).
    pub skip: &'static str,
    pub convolution: &'static str,
    pub norm: &'static str,
    pub output: &'static str,
}

/// Encoding of decay rates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rates {
    /// A stored x is the rate −eˣ.
    Logarithms,
    /// Stored values are the rates.
    Plain,
}

/// Names of the tensors of an MTP layer that other layers do not have.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MtpNames {
    /// Norms of the embedded token and of the hidden state.
    pub token_norm: &'static str,
    pub state_norm: &'static str,
    /// Projection of the two concatenated.
    pub join: &'static str,
    /// Whether the hidden state comes before the token in the concatenation.
    pub state_first: bool,
    /// Norm before the output matrix.
    pub norm: &'static str,
    /// Prefixes of the names of its copies of the model's embedding and output matrix.
    pub copies: &'static [&'static str],
}

/// Layout of the tensors of all experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// `[experts, out, in]`
    Rows,
    /// `[experts, out, in]`, in a tensor whose name does not end in `.weight`.
    RowsBareName,
    /// `[experts, in, out]`, gate and up interleaved; or `[experts, out, in]` in blocks of MXFP4.
    Columns,
    /// `[experts, in, out]`, gates before up projections, in tensors whose names do not end in
    /// `.weight`.
    ColumnsInHalves,
}

impl Names {
    /// Prefix of all names but the output matrix's, with the final dot.
    pub fn prefix(&self) -> &'static str {
        self.layers.split_inclusive('.').next().unwrap_or_default()
    }
}

/// Names of Llama, which most families use.
pub(crate) const LLAMA_NAMES: Names = Names {
    embedding: "model.embed_tokens",
    positions: "",
    project_in: "",
    project_out: "",
    layers: "model.layers",
    query_key_value: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    attention_output: "self_attn.o_proj",
    attention_gate: "self_attn.gate_proj",
    qk_norms: ["self_attn.q_norm", "self_attn.k_norm"],
    sinks: "self_attn.sinks",
    latent: LatentNames {
        query_down: "self_attn.q_a_proj",
        query_norm: "self_attn.q_a_layernorm",
        query_up: "self_attn.q_b_proj",
        query: "self_attn.q_proj",
        down: "self_attn.kv_a_proj_with_mqa",
        norm: "self_attn.kv_a_layernorm",
        up: "self_attn.kv_b_proj",
        split_up: ["", ""],
    },
    attention_norms: ["input_layernorm", ""],
    mlp_norms: ["post_attention_layernorm", ""],
    mlp_in: &["mlp.gate_proj", "mlp.up_proj"],
    mlp_out: "mlp.down_proj",
    experts: ExpertNames {
        router: "mlp.gate",
        correction: "mlp.gate.e_score_correction_bias",
        mlp_in: &["mlp.experts.#.gate_proj", "mlp.experts.#.up_proj"],
        mlp_out: "mlp.experts.#.down_proj",
        latent: ["", ""],
        layout: Layout::Rows,
        shared_in: &["mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"],
        shared_out: "mlp.shared_experts.down_proj",
        shared_gate: "",
        router_scale: "router.scale",
        scales: "router.per_expert_scale",
        norms: [
            "post_feedforward_layernorm_1",
            "pre_feedforward_layernorm_2",
            "post_feedforward_layernorm_2",
        ],
    },
    per_layer: PerLayerNames {
        table: "model.embed_tokens_per_layer",
        projection: "model.per_layer_model_projection",
        norm: "model.per_layer_projection_norm",
        gate: "per_layer_input_gate",
        back: "per_layer_projection",
        after: "post_per_layer_input_norm",
    },
    layer_scale: "layer_scalar",
    recurrent: RecurrentNames {
        into: "linear_attn.in_proj_qkv",
        gate: "linear_attn.in_proj_z",
        strength: "linear_attn.in_proj_b",
        decay: "linear_attn.in_proj_a",
        rate: "linear_attn.A_log",
        rates: Rates::Logarithms,
        shift: "linear_attn.dt_bias",
        skip: "",
        convolution: "linear_attn.conv1d",
        norm: "linear_attn.norm",
        output: "linear_attn.out_proj",
    },
    mtp: MtpNames {
        token_norm: "enorm",
        state_norm: "hnorm",
        join: "eh_proj",
        state_first: false,
        norm: "shared_head.norm",
        copies: &["embed_tokens.", "shared_head.head."],
    },
    norm: "model.norm",
    lm_head: "lm_head",
};
