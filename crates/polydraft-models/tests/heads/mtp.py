"""Makes the fixtures of tests/mtp.rs: tiny random models with a layer that predicts further tokens (MTP), and what its
step computes with transformers' own decoder layer. Run it with the packages of ../fixtures/requirements.txt; it writes
beside itself. Per model: its directory as published, and expected.safetensors with
  tokens [T]               a text
  logits [S, T - 1, V]     f32; of step s at place i: after the tokens up to i + 1 were decided and the s behind them drafted
"""

import importlib
import json
import pathlib
import sys

import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    Glm4MoeConfig,
    Glm4MoeLiteConfig,
    NemotronHConfig,
    Qwen2Config,
    Qwen3_5TextConfig,
)

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "fixtures"))
from make import VOCABULARY, on_disk, published, randomise, save, tokenizer, write  # noqa: E402

LENGTH, STEPS = 16, 3
SHAPE = dict(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=32,
    # The last is the one that predicts further tokens.
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=64,
    bos_token_id=0,
    eos_token_id=1,
    pad_token_id=None,
    n_routed_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=32,
    first_k_dense_replace=1,
)


def rope():
    return dict(rope_theta=100.0, rope_type="default")


MODELS = {
    "mtp-glm": (
        Glm4MoeConfig(
            **SHAPE,
            num_key_value_heads=2,
            head_dim=16,
            attention_bias=True,
            use_qk_norm=True,
            rope_parameters=rope() | dict(partial_rotary_factor=0.5),
        ),
        "glm4_moe.modeling_glm4_moe.Glm4Moe",
    ),
    "mtp-deepseek": (
        DeepseekV3Config(
            **SHAPE,
            num_key_value_heads=4,
            n_group=2,
            topk_group=1,
            q_lora_rank=16,
            kv_lora_rank=32,
            qk_nope_head_dim=12,
            qk_rope_head_dim=8,
            v_head_dim=10,
            rope_parameters=rope(),
        ),
        "deepseek_v3.modeling_deepseek_v3.DeepseekV3",
    ),
}


# Gated attention behind a layer that keeps a state; what a step leaves is normed.
EXPERTS = ("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "first_k_dense_replace")
MODELS["mtp-qwen"] = (
    Qwen3_5TextConfig(
        **{k: v for k, v in SHAPE.items() if k not in EXPERTS} | dict(num_hidden_layers=3),
        num_key_value_heads=2,
        head_dim=16,
        layer_types=["linear_attention", "full_attention", "full_attention"],
        linear_conv_kernel_dim=3,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        rope_parameters=rope() | dict(partial_rotary_factor=0.5),
    ),
    "",
)
# The state before the token, and names of its own.
MODELS["mtp-mimo"] = (
    Qwen2Config(**{k: v for k, v in SHAPE.items() if k not in EXPERTS}, num_key_value_heads=2, rope_parameters=rope()),
    "",
)
# Two layers of one block each, the first with what is joined and the last with the norm; experts in a narrower width.
MODELS["mtp-nemotron"] = (
    NemotronHConfig(
        **{k: v for k, v in SHAPE.items() if k not in ("num_hidden_layers", "first_k_dense_replace")},
        num_key_value_heads=2,
        head_dim=12,
        layers_block_type=["moe", "linear_attention", "full_attention", "full_attention", "moe"],
        mamba_num_heads=4,
        mamba_head_dim=16,
        ssm_state_size=12,
        n_groups=1,
        moe_shared_expert_intermediate_size=48,
        moe_latent_size=16,
        routed_scaling_factor=1.7,
        layer_norm_epsilon=1e-2,
    ),
    "",
)
# As GLM-4.7-Flash: latent attention.
MODELS["mtp-glm-lite"] = (
    Glm4MoeLiteConfig(
        **{k: v for k, v in SHAPE.items() if k != "first_k_dense_replace"},
        num_key_value_heads=4,
        q_lora_rank=16,
        kv_lora_rank=32,
        qk_nope_head_dim=12,
        qk_rope_head_dim=8,
        v_head_dim=10,
        mlp_layer_types=["dense", "sparse"],
        rope_parameters=rope(),
    ),
    "glm4_moe_lite.modeling_glm4_moe_lite.Glm4MoeLite",
)
MIMO_NAMES = {"enorm": "token_layernorm", "hnorm": "hidden_layernorm", "norm": "final_layernorm", "eh_proj": "input_proj"}
QWEN_NAMES = {
    "enorm": "pre_fc_norm_embedding",
    "hnorm": "pre_fc_norm_hidden",
    "norm": "norm",
    "eh_proj": "fc",
}


def normed(x, weight, epsilon=1e-6):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon) * weight


def steps(model, whole, further, tokens, epsilon, feeds_normed, state_first):
    """Logits of every step at every place: the layer over all that is decided, then over what it drafts itself."""
    embed = model.get_input_embeddings()
    with torch.no_grad():
        hidden = model.model(torch.tensor([tokens]), use_cache=False).last_hidden_state[0]

    def join(states, ids):
        e = normed(embed(torch.tensor(ids)), further["enorm"], epsilon)
        both = [e, normed(states, further["hnorm"], epsilon)]
        return torch.cat(both[::-1] if state_first else both, dim=-1) @ further["eh_proj"].T

    def run(x):
        places = torch.arange(len(x))[None]
        mask = torch.full((len(x), len(x)), float("-inf")).triu(1)[None, None]
        if not hasattr(whole, "rotary_emb"):
            for layer in whole.layers[-2:]:
                x = layer(x[None], attention_mask=mask, position_ids=places)[0]
            return x
        angles = whole.rotary_emb(x[None], places)
        return whole.layers[-1](x[None], attention_mask=mask, position_ids=places, position_embeddings=angles)[0]

    out = torch.zeros(STEPS, len(tokens) - 1, VOCABULARY)
    with torch.no_grad():
        for place in range(len(tokens) - 1):
            x = join(hidden[: place + 1], tokens[1 : place + 2])
            for step in range(STEPS):
                y = run(x)
                out[step, place] = normed(y[-1], further["norm"], epsilon) @ model.lm_head.weight.T
                after = place + 2 + step
                if after >= len(tokens):
                    break
                left = normed(y[-1:], further["norm"], epsilon) if feeds_normed else y[-1:]
                x = torch.cat([x, join(left, tokens[after : after + 1])])
    return out


def main():
    torch.set_num_threads(1)
    for number, (name, (config, _)) in enumerate(MODELS.items()):
        if len(sys.argv) > 1 and name not in sys.argv[1:]:
            continue
        generator = torch.Generator().manual_seed(100 + number)
        config._attn_implementation = "eager"
        whole = AutoModelForCausalLM.from_config(config).eval()
        randomise(whole, generator, 0.25)
        state = on_disk(whole)
        fields = published(config, type(whole).__name__, False)
        is_qwen, is_mimo, is_nemotron = (name == f"mtp-{of}" for of in ("qwen", "mimo", "nemotron"))
        last = config.num_hidden_layers - (2 if is_nemotron else 1)
        own = f"model.layers.{last}."
        trunk_fields = {"num_hidden_layers": last}
        if is_qwen or is_mimo:
            trunk_fields["layer_types"] = config.layer_types[:last]
        if name == "mtp-glm-lite":
            trunk_fields["mlp_layer_types"] = config.mlp_layer_types[:last]
        if is_nemotron:
            trunk_fields = {"layers_block_type": config.layers_block_type[:last]}
        trunk_config = type(config)(**config.to_dict() | trunk_fields)
        trunk_config._attn_implementation = "eager"
        trunk = AutoModelForCausalLM.from_config(trunk_config).eval()
        extra = (own, f"model.layers.{last + 1}.")
        trunk.load_state_dict({k: v for k, v in whole.state_dict().items() if not k.startswith(extra)})
        bf16 = lambda x: x.to(torch.bfloat16).float()
        normal = lambda *shape: torch.randn(shape, generator=generator)
        further = {
            "enorm": bf16(1 + 0.3 * normal(32)),
            "hnorm": bf16(1 + 0.3 * normal(32)),
            "norm": bf16(1 + 0.3 * normal(32)),
            "eh_proj": bf16(normal(32, 64) / 8),
        }
        if is_qwen:
            state = {k.replace(own, "mtp.layers.0."): v for k, v in state.items()}
            for part, value in further.items():
                stored = value - 1.0 if "norm" in part else value
                state[f"mtp.{QWEN_NAMES[part]}.weight"] = stored.to(torch.bfloat16)
                further[part] = (bf16(stored) + 1.0) if "norm" in part else value
        elif is_mimo:
            state = {k.replace(own, "model.mtp_layers.0."): v for k, v in state.items()}
            for part, value in further.items():
                state[f"model.mtp_layers.0.{MIMO_NAMES[part]}.weight"] = value.to(torch.bfloat16)
            fields["architectures"] = ["MiMoForCausalLM"]
        elif is_nemotron:
            for i in (0, 1):
                begin = f"backbone.layers.{last + i}."
                state = {k.replace(begin, f"mtp.layers.{i}."): v for k, v in state.items()}
            for part, value in further.items():
                at = "1.final_layernorm" if part == "norm" else f"0.{part}"
                state[f"mtp.layers.{at}.weight"] = value.to(torch.bfloat16)
            # As published: a letter a layer.
            letters = {"moe": "E", "linear_attention": "M", "full_attention": "*"}
            trunk_fields = {"hybrid_override_pattern": "".join(letters[kind] for kind in config.layers_block_type[:last])}
            fields["mtp_hybrid_override_pattern"] = "*E"
            del fields["layers_block_type"], fields["mtp_layers_block_type"]
        else:
            names = {"norm": "shared_head.norm"}
            for part, value in further.items():
                state[f"{own}{names.get(part, part)}.weight"] = value.to(torch.bfloat16)
            state[f"{own}embed_tokens.weight"] = state["model.embed_tokens.weight"].clone()
            state[f"{own}shared_head.head.weight"] = state["lm_head.weight"].clone()
        folder = HERE / name
        folder.mkdir(exist_ok=True)
        further_layers = {"mtp_num_hidden_layers": 1} if is_qwen else {"num_nextn_predict_layers": 1}
        fields |= trunk_fields | further_layers
        write(folder / "config.json", fields)
        tokenizer().save(str(folder / "tokenizer.json"))
        save(state, folder / "model.safetensors")
        tokens = torch.randint(2, VOCABULARY, (LENGTH,), generator=generator).tolist()
        epsilon = config.layer_norm_epsilon if is_nemotron else config.rms_norm_eps
        logits = steps(trunk, whole.model, further, tokens, epsilon, is_qwen or is_mimo or is_nemotron, is_mimo)
        save({"tokens": torch.tensor(tokens), "logits": logits}, folder / "expected.safetensors")
        print(f"{name}: logits {logits.std():.2f}")


if __name__ == "__main__":
    main()
