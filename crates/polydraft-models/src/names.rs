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
    /// Queries, keys and values, or all of them in one.
    pub query_key_value: &'static [&'static str],
    pub output: &'static str,
    /// Norms of a head's queries and keys.
    pub head_norms: [&'static str; 2],
    /// What every head gives to nothing, with its end.
    pub sinks: &'static str,
    pub latent: LatentNames,
    /// The norm before the attention, or after it where
    /// [`NormOrder::After`](crate::config::NormOrder::After) says so; then the second one around
    /// it. Those of a layer that is a feed-forward block alone too.
    pub attention_norms: [&'static str; 2],
    pub mlp_norms: [&'static str; 2],
    /// Gate and up, or the one matrix where there is no gate or it has both.
    pub mlp_in: &'static [&'static str],
    pub mlp_out: &'static str,
    pub experts: ExpertNames,
    pub per_layer: PerLayerNames,
    /// What the layer's output is multiplied by, with its end.
    pub layer_scale: &'static str,
    pub recurrent: RecurrentNames,
    pub further: FurtherNames,
    pub norm: &'static str,
    pub head: &'static str,
}

/// Of attention whose KV cache is compressed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LatentNames {
    /// Down, norm and up again where queries are compressed too; else the queries'.
    pub query_down: &'static str,
    pub query_norm: &'static str,
    pub query_up: &'static str,
    pub query: &'static str,
    /// The vector that is cached, with the part of the keys that is turned.
    pub down: &'static str,
    pub norm: &'static str,
    /// Of each head the keys' rows, then the values'.
    pub up: &'static str,
    /// In files that have them apart: `[heads, rank, plain]` and `[heads, value, rank]`, with their
    /// ends.
    pub apart: [&'static str; 2],
}

/// Of the experts of a layer. `#` stands for an expert's number; where there is none, a tensor has
/// all of them, and its whole name stands here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExpertNames {
    pub router: &'static str,
    /// What is added to scores to choose by, with its end.
    pub correction: &'static str,
    pub mlp_in: &'static [&'static str],
    pub mlp_out: &'static str,
    /// Down to the width in which they work and up again, where that is not the model's.
    pub latent: [&'static str; 2],
    pub layout: Layout,
    pub shared_in: &'static [&'static str],
    pub shared_out: &'static str,
    /// The product whose sigmoid the shared expert is multiplied by.
    pub shared_gate: &'static str,
    /// Where experts are beside a feed-forward block: the weight of the router's norm, with its
    /// end,
    pub router_scale: &'static str,
    /// what each expert is multiplied by, with its end,
    pub scales: &'static str,
    /// and the norms after the block, before the experts and after them.
    pub norms: [&'static str; 3],
}

impl ExpertNames {
    /// What experts are called that a directory has in two tensors, gates above the others, where
    /// the family's usual names are of one each.
    pub fn stacked(&self) -> Option<Self> {
        let usual = &LLAMA_NAMES.experts;
        (self.mlp_in == usual.mlp_in && self.mlp_out == usual.mlp_out).then_some(Self {
            mlp_in: &["mlp.experts.gate_up_proj"],
            mlp_out: "mlp.experts.down_proj",
            layout: Layout::Bare,
            ..*self
        })
    }
}

/// Of per-layer inputs.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PerLayerNames {
    /// Of each token a row for all layers,
    pub table: &'static str,
    /// the product of the embedded token that is added to it, and that one's norm.
    pub from: &'static str,
    pub norm: &'static str,
    /// In a layer: what decides how much of it counts, the way back to the layer's width, and the
    /// norm of that.
    pub gate: &'static str,
    pub back: &'static str,
    pub after: &'static str,
}

/// Of a layer that keeps a state.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RecurrentNames {
    /// The product that the convolution reads, and what gates the output; where the second has no
    /// name, the first has both by heads of keys.
    pub into: &'static str,
    pub gate: &'static str,
    /// The strengths and the decays of the delta rule; where the second has no name, the first has
    /// both by heads of keys.
    pub strength: &'static str,
    pub decay: &'static str,
    /// What decays are multiplied by, with its end,
    pub rate: &'static str,
    pub rates: Rates,
    /// and what is added to them, with its end.
    pub shift: &'static str,
    /// What a state space's values are multiplied by on their way past the state, with its end.
    pub past: &'static str,
    pub convolution: &'static str,
    pub norm: &'static str,
    pub output: &'static str,
}

/// How rates of decay are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rates {
    /// x is for −eˣ.
    Logarithms,
    /// As they are.
    Plain,
}

/// Of a layer that predicts further tokens, what it has besides a layer's tensors.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FurtherNames {
    /// The norms of the embedded token and of the state that it is joined with.
    pub token_norm: &'static str,
    pub state_norm: &'static str,
    /// The product of both side by side,
    pub join: &'static str,
    /// the state before the token.
    pub state_first: bool,
    /// The norm before the output matrix.
    pub norm: &'static str,
    /// What begins the names of its copies of the model's embedding and output matrix.
    pub copies: &'static [&'static str],
}

/// How the tensors of all experts lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// `[experts, out, in]`
    Rows,
    /// The same under names without an end.
    Bare,
    /// `[experts, in, out]`, gate and up in turn; or `[experts, out, in]` in blocks of MXFP4.
    Columns,
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
    query_key_value: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    output: "self_attn.o_proj",
    head_norms: ["self_attn.q_norm", "self_attn.k_norm"],
    sinks: "self_attn.sinks",
    latent: LatentNames {
        query_down: "self_attn.q_a_proj",
        query_norm: "self_attn.q_a_layernorm",
        query_up: "self_attn.q_b_proj",
        query: "self_attn.q_proj",
        down: "self_attn.kv_a_proj_with_mqa",
        norm: "self_attn.kv_a_layernorm",
        up: "self_attn.kv_b_proj",
        apart: ["", ""],
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
        from: "model.per_layer_model_projection",
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
        past: "",
        convolution: "linear_attn.conv1d",
        norm: "linear_attn.norm",
        output: "linear_attn.out_proj",
    },
    further: FurtherNames {
        token_norm: "enorm",
        state_norm: "hnorm",
        join: "eh_proj",
        state_first: false,
        norm: "shared_head.norm",
        copies: &["embed_tokens.", "shared_head.head."],
    },
    norm: "model.norm",
    head: "lm_head",
};
