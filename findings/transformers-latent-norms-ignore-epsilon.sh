#!/usr/bin/env bash
# transformers 5.24.0: in families with multi-head latent attention the norms of compressed queries, keys and values have an
# epsilon of 1e-6, whatever `rms_norm_eps` says. DeepSeek's files have 1e-6 there too, so nothing shows; GLM-4.7-Flash has
# 1e-5, and its other norms follow it. With the file's number in all norms, as in every other family, the logits of a tiny random
# model were off by 5e-6, and those of its layer that predicts further tokens by 3.5e-5, instead of 5e-7.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check transformers==5.24.0 torch==2.13.0
cd "$folder"
venv/bin/python - <<'PYTHON'
from importlib.metadata import version

from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, Glm4MoeLiteConfig, Glm4MoeLiteForCausalLM

SHAPE = dict(
    vocab_size=16, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
    n_routed_experts=2, num_experts_per_tok=1, moe_intermediate_size=8, q_lora_rank=8, kv_lora_rank=8, qk_nope_head_dim=4,
    qk_rope_head_dim=4, v_head_dim=4, pad_token_id=None,
)
print("transformers", version("transformers"))
for config, kind in [(Glm4MoeLiteConfig, Glm4MoeLiteForCausalLM), (DeepseekV3Config, DeepseekV3ForCausalLM)]:
    default = config().rms_norm_eps
    layer = kind(config(**SHAPE, rms_norm_eps=1e-2)).model.layers[0]
    attention = layer.self_attn
    found = [norm.variance_epsilon for norm in (layer.input_layernorm, attention.q_a_layernorm, attention.kv_a_layernorm)]
    print(f"{kind.__name__}: rms_norm_eps by default {default:g}; asked for 0.01: layer, queries, keys and values", *found)
    assert found == [1e-2, 1e-6, 1e-6], found
PYTHON
# Seen on 2026-11-30:
# transformers 5.24.0
# Glm4MoeLiteForCausalLM: rms_norm_eps by default 1e-05; asked for 0.01: layer, queries, keys and values 0.01 1e-06 1e-06
# DeepseekV3ForCausalLM: rms_norm_eps by default 1e-06; asked for 0.01: layer, queries, keys and values 0.01 1e-06 1e-06
