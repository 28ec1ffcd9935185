"""Makes tests/heads/assistant: an assistant for the fixture gemma4, and the logits that transformers gives. Run it with
the packages of ../fixtures/requirements.txt; it writes beside itself.

expected.safetensors has
  tokens [T]              a text
  logits [S, T - 1, V]    f32; of step s at place i: after the tokens up to i + 1 were decided, the s behind them drafted
Each place is computed as transformers' own candidate generator does it, with drafted tokens that are given.
"""

import json
import pathlib

import torch
from safetensors.torch import save_file
from transformers import Gemma4AssistantConfig, Gemma4AssistantForCausalLM, Gemma4ForCausalLM, Gemma4TextConfig

HERE = pathlib.Path(__file__).parent
LENGTH, STEPS, TOKENS = 18, 4, 62
SLIDING, FULL = "sliding_attention", "full_attention"


def rope(theta, **more):
    return dict(rope_theta=theta, rope_type="default") | more


def main():
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(3)
    fixture = HERE.parent / "fixtures/gemma4"
    target = Gemma4ForCausalLM.from_pretrained(fixture, dtype=torch.float32, attn_implementation="eager").eval()
    text = Gemma4TextConfig(
        vocab_size=TOKENS,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        global_head_dim=16,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        max_position_embeddings=64,
        sliding_window=5,
        layer_types=[SLIDING, SLIDING, FULL],
        rope_parameters={FULL: rope(200.0, rope_type="proportional", partial_rotary_factor=0.5), SLIDING: rope(50.0)},
        hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=0,
        num_kv_shared_layers=3,
        pad_token_id=None,
        bos_token_id=0,
        eos_token_id=1,
    )
    config = Gemma4AssistantConfig(text_config=text, backbone_hidden_size=target.config.hidden_size, dtype="bfloat16")
    config._attn_implementation = "eager"
    assistant = Gemma4AssistantForCausalLM(config).eval()
    for name, value in [*assistant.named_parameters(), *assistant.named_buffers()]:
        if not (value.dtype.is_floating_point and ("layer_scalar" in name or isinstance(value, torch.nn.Parameter))):
            continue
        noise = torch.randn(value.shape, generator=generator)
        size = 0.6 if "embed" in name else 1.2 / value.shape[-1] ** 0.5
        new = 1.0 + 0.3 * noise if value.dim() == 1 else size * noise
        if name.endswith("q_norm.weight"):
            new = 0.4 * new
        value.data.copy_(new.to(torch.bfloat16).float())

    tokens = torch.randint(2, TOKENS, (LENGTH,), generator=generator)
    embed = target.get_input_embeddings()
    logits = torch.zeros(STEPS, LENGTH - 1, TOKENS)
    with torch.no_grad():
        for place in range(LENGTH - 1):
            seen = tokens[None, : place + 1]
            found = target(seen, output_hidden_states=True, return_shared_kv_states=True, use_cache=False)
            state = found.hidden_states[-1][:, -1:]
            for step in range(min(STEPS, LENGTH - 1 - place)):
                last = tokens[None, place + 1 + step][None]
                out = assistant(
                    inputs_embeds=torch.cat([embed(last), state], dim=-1),
                    attention_mask=torch.ones(1, place + 2, dtype=torch.long),
                    position_ids=torch.tensor([[place + 1]]),
                    shared_kv_states=found.shared_kv_states,
                    use_cache=False,
                )
                logits[step, place], state = out.logits[0, -1], out.last_hidden_state

    folder = HERE / "assistant"
    folder.mkdir(exist_ok=True)
    assistant.save_pretrained(folder)
    for file in folder.iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            file.unlink()
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(fields, indent=1, sort_keys=True) + "\n")
    state = {k: v.to(torch.bfloat16).contiguous() for k, v in assistant.state_dict().items() if k != "lm_head.weight"}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    save_file({"tokens": tokens, "logits": logits}, folder / "expected.safetensors", metadata={"format": "pt"})
    for file in folder.iterdir():
        file.chmod(0o644)
    print(f"logits {logits.std().item():.2f}", {k: tuple(v.shape) for k, v in state.items() if "layers" not in k})


if __name__ == "__main__":
    main()
