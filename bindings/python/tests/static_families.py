"""Tiny random models of the families supported by the device loop, with all of their features enabled."""

import torch
import transformers

COMMON = dict(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
    head_dim=8, max_position_embeddings=512, initializer_range=0.3, bos_token_id=None, eos_token_id=None, pad_token_id=None,
)  # fmt: skip
MOE = dict(moe_intermediate_size=32, num_experts=4, num_experts_per_tok=2)
LATENT = dict(
    q_lora_rank=16, kv_lora_rank=8, qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=8, n_routed_experts=4, n_group=2,
    topk_group=1, num_experts_per_tok=2, moe_intermediate_size=32, first_k_dense_replace=1, num_key_value_heads=4, head_dim=4,
)  # fmt: skip
WINDOWS = ["sliding_attention", "full_attention", "sliding_attention"]
FAMILIES = {
    "Qwen3": {}, "Qwen2": {}, "Olmo2": {}, "Phi3": {}, "Gemma2": dict(sliding_window=6, layer_types=WINDOWS),
    "Gemma3Text": dict(sliding_window=6, layer_types=WINDOWS), "Mistral": dict(sliding_window=6), "Qwen3Moe": MOE,
    "Mixtral": dict(num_local_experts=4, num_experts_per_tok=2), "DeepseekV3": LATENT,
    "Glm4Moe": dict(
        n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1, moe_intermediate_size=32, first_k_dense_replace=1,
        use_qk_norm=True,
    ),
    "GptOss": dict(num_local_experts=4, num_experts_per_tok=2, sliding_window=6, layer_types=WINDOWS),
}  # fmt: skip


def tiny_model(family, **settings):
    """Makes a model with three layers and a vocabulary of 64."""
    torch.manual_seed(2)
    config = getattr(transformers, f"{family}Config")(**{**COMMON, **FAMILIES[family], **settings})
    names = [f"{family}ForCausalLM", f"{family.removesuffix('Text')}ForCausalLM"]
    made = next(getattr(transformers, name) for name in names if hasattr(transformers, name))(config).eval()
    if family == "GptOss":
        # No other attention implementation with four-dimensional masks supports its sinks.
        made.set_attn_implementation("eager")
    return made
