"""Makes the fixtures of tests/mtp.rs with several modules, one for each further token: tiny random models, and what
transformers' MtpModel computes with them. Run it with the packages of ../fixtures/requirements.txt and transformers 5.24; it
writes beside itself. Per model: its directory as published, and expected.safetensors as mtp.py describes. Where module k has
no state yet, because at most k tokens are decided, its logits are zeros.
"""

import json
import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM, Glm4MoeConfig, Qwen2Config
from transformers.modeling_layers import MtpModel

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "fixtures"))
from make import VOCABULARY, on_disk, published, randomise, save, tokenizer, write  # noqa: E402
from mtp import EXPERTS, LENGTH, MIMO_NAMES, SHAPE, rope  # noqa: E402

MODULES = 3
OWN = {"enorm", "hnorm", "eh_proj", "post_norm"}

MODELS = {
    "mtp-glm-three": Glm4MoeConfig(
        **SHAPE | dict(num_hidden_layers=1, first_k_dense_replace=0),
        num_key_value_heads=2,
        head_dim=16,
        attention_bias=True,
        use_qk_norm=True,
        rope_parameters=rope() | dict(partial_rotary_factor=0.5),
        num_nextn_predict_layers=MODULES,
    ),
    "mtp-mimo-three": Qwen2Config(
        **{k: v for k, v in SHAPE.items() if k not in EXPERTS} | dict(num_hidden_layers=1),
        num_key_value_heads=2,
        rope_parameters=rope(),
    ),
}


def steps(model, modules, tokens):
    """Logits of every module at every place: each reads what the one before it has of the token before."""
    out = torch.zeros(MODULES, len(tokens) - 1, VOCABULARY)
    with torch.no_grad():
        hidden = model.model(torch.tensor([tokens]), use_cache=False).last_hidden_state
        for place in range(len(tokens) - 1):
            states = hidden[:, : place + 1]
            for step in range(min(MODULES, len(tokens) - place - 1)):
                ids = torch.tensor([tokens[1 + step : place + 2 + step]])
                places = torch.arange(1 + step, place + 2 + step)[None]
                states = modules.forward_layer(step, states, places, None, input_ids=ids)
                if place >= step:
                    out[step, place] = modules._project_to_logits(states[:, -1])[0]
    return out


def main():
    torch.set_num_threads(1)
    for number, (name, config) in enumerate(MODELS.items()):
        generator = torch.Generator().manual_seed(400 + number)
        is_mimo = name.startswith("mtp-mimo")
        config._attn_implementation = "eager"
        if is_mimo:
            config.num_mtp_layers = MODULES
            config.mtp_layer_types = ["full_attention"] * MODULES
            config.mtp_hidden_states_first = True
        model = AutoModelForCausalLM.from_config(config).eval()
        randomise(model, generator, 0.25)
        state = on_disk(model)
        # The numbers of the model's own layers begin at 0, those of the modules behind them.
        whole = type(config)(**config.to_dict() | dict(num_hidden_layers=1 + MODULES, layer_types=None))
        whole._attn_implementation = "eager"
        whole = AutoModelForCausalLM.from_config(whole).eval()
        randomise(whole, generator, 0.25)
        modules = MtpModel(model, MODULES).eval()
        begin = config.num_hidden_layers
        with torch.no_grad():
            for k, layer in enumerate(modules.layers):
                layer.mtp_block.load_state_dict(whole.model.layers[begin + k].state_dict())
                bf16 = lambda x: x.to(torch.bfloat16).float()
                for part in ("enorm", "hnorm", "post_norm"):
                    weight = getattr(layer, part).weight
                    # GLM's modules pass on what is before their last norm, and transformers what is behind it: the
                    # next norm makes these equal if the norm has no weights.
                    fixed = part == "post_norm" and not is_mimo and k + 1 < MODULES
                    weight.copy_(torch.ones(32) if fixed else bf16(1 + 0.3 * torch.randn(32, generator=generator)))
                layer.eh_proj.weight.copy_(bf16(torch.randn((32, 64), generator=generator) / 8))
        for key, value in on_disk(whole).items():
            if any(key.startswith(f"model.layers.{begin + k}.") for k in range(MODULES)):
                state[key] = value
        names = {"enorm": "enorm", "hnorm": "hnorm", "eh_proj": "eh_proj", "post_norm": "shared_head.norm"}
        if is_mimo:
            names = MIMO_NAMES | {"post_norm": MIMO_NAMES["norm"]}
        for k, layer in enumerate(modules.layers):
            for part in sorted(OWN):
                value = getattr(layer, part).weight.detach().to(torch.bfloat16)
                state[f"model.layers.{begin + k}.{names[part]}.weight"] = value
        fields = published(config, type(model).__name__, False)
        for field in ("num_mtp_layers", "mtp_layer_types", "mtp_hidden_states_first"):
            fields.pop(field, None)
        fields["num_nextn_predict_layers"] = MODULES
        if is_mimo:
            for k in range(MODULES):
                own, inside = f"model.layers.{begin + k}.", f"model.mtp_layers.{k}."
                state = {key.replace(own, inside): value for key, value in state.items()}
            fields["architectures"] = ["MiMoForCausalLM"]
        folder = HERE / name
        folder.mkdir(exist_ok=True)
        write(folder / "config.json", fields)
        tokenizer().save(str(folder / "tokenizer.json"))
        save(state, folder / "model.safetensors")
        tokens = torch.randint(2, VOCABULARY, (LENGTH,), generator=generator).tolist()
        logits = steps(model, modules, tokens)
        save({"tokens": torch.tensor(tokens), "logits": logits}, folder / "expected.safetensors")
        print(f"{name}: logits {logits.std():.2f}")


if __name__ == "__main__":
    main()
