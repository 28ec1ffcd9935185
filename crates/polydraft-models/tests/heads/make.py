"""Makes the fixtures of tests/heads.rs: a tiny random target, draft heads of every variant for it, and the logits that
the reference implementation gives. Run it with the packages of requirements.txt; it writes beside itself.

target/: a model directory. Per head: its files as published in one of three formats, and expected.safetensors with
  tokens [T]               a text
  logits [S, T - 1, V_d]   f32; of step s at place i: after the tokens up to i + 1 were decided and the s behind them drafted
EAGLE-3 heads are computed by Eagle3DraftModel of speculators; EAGLE-1 heads, which it does not have any more, by a
decoder layer of transformers with the parts that the method leaves out replaced by nothing.
"""

import json
import pathlib

import torch
from safetensors.torch import save_file
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from tokenizers import Tokenizer, decoders, models
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

HERE = pathlib.Path(__file__).parent
CHARACTERS = " abcdefghijklmnopqrstuvwxyz0123456789.,;:!?'\"()-+*/=<>[]{}_#"
VOCABULARY = 2 + len(CHARACTERS)
# Rows of padding, as real models have them.
ROWS = VOCABULARY + 2
DRAFT = 24
LENGTH, STEPS, LAYERS, HIDDEN = 18, 4, 8, 32

LAYER = dict(
    hidden_size=HIDDEN,
    intermediate_size=24,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    vocab_size=ROWS,
    max_position_embeddings=64,
    pad_token_id=None,
    bos_token_id=0,
    eos_token_id=1,
)


def rope(theta, **scaling):
    return dict(rope_theta=theta, rope_type="default") | scaling


# Inputs of layers that are read, variant flags, the layer, and how it is published.
HEADS = {
    # As the authors published theirs: a pickle, nothing said of layers or of the rotation's base.
    "original": dict(layers=[2, 4, 5], flags={}, layer=LlamaConfig(**LAYER, rope_parameters=rope(10000.0))),
    # As SpecForge writes them: layers counted by their outputs, an embedding of its own, biases.
    "specforge": dict(
        layers=[1, 3, 7],
        flags=dict(norm_before_fc=True),
        layer=LlamaConfig(**LAYER, attention_bias=True, rope_parameters=rope(500.0)),
        own_embedding=True,
    ),
    "speculators": dict(
        layers=[1, 4, 8],
        flags=dict(norm_before_residual=True),
        layer=LlamaConfig(
            **LAYER,
            num_hidden_layers=2,
            rope_parameters=rope(100.0, rope_type="linear", factor=3.0),
        ),
    ),
    "speculators-qwen3": dict(
        layers=[0, 2, 5, 6],
        flags=dict(norm_before_residual=False, fc_norm=True, norm_output=True),
        layer=Qwen3Config(**LAYER, rope_parameters=rope(300.0)),
    ),
    # The whole vocabulary, by the target's own output matrix.
    "whole": dict(layers=[2, 4, 5], flags=dict(norm_output=True), layer=LlamaConfig(**LAYER, rope_parameters=rope(1000.0)), whole=True),
}


def randomise(module, generator):
    for name, parameter in module.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() == 1:
            value = (1.0 if "norm" in name else 0.0) + 0.3 * noise
        elif "embed_tokens" in name:
            value = 0.6 * noise
        else:
            value = 1.2 * noise / parameter.shape[1] ** 0.5
        parameter.data.copy_(value.to(torch.bfloat16).float())


def tokenizer():
    tokens = ["<s>", "</s>", *CHARACTERS]
    made = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=[]))
    made.add_special_tokens(["<s>", "</s>"])
    made.decoder = decoders.Fuse()
    return made


def write(path, value):
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")


def save(tensors, path):
    save_file({k: v.contiguous() for k, v in tensors.items()}, path, metadata={"format": "pt"})
    path.chmod(0o644)


def narrow(tensors):
    return {k: v.to(torch.bfloat16) if v.is_floating_point() else v for k, v in tensors.items()}


def features(target, tokens):
    """The residual stream after 0, 1, .., LAYERS layers, then the normed state; each [T, HIDDEN]."""
    last = []
    hook = target.model.layers[-1].register_forward_hook(lambda _, __, out: last.append(out[0] if isinstance(out, tuple) else out))
    with torch.no_grad():
        states = target(torch.tensor([tokens]), output_hidden_states=True, use_cache=False).hidden_states
    hook.remove()
    return [s[0] for s in states[:LAYERS]] + [last[0].reshape(len(tokens), HIDDEN), states[LAYERS][0]]


def eagle3(target, tokens, states, generator, layers, flags, layer, own_embedding=False, whole=False):
    layer._attn_implementation = "eager"
    layer.architectures = ["LlamaForCausalLM"]
    if layer.num_hidden_layers > 2:
        layer.num_hidden_layers = 1
        layer.layer_types = None if layer.model_type == "llama" else ["full_attention"]
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        draft_vocab_size=ROWS if whole else DRAFT,
        eagle_aux_hidden_state_layer_ids=layers,
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=STEPS)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
        ),
        **flags,
    )
    head = Eagle3DraftModel(config).eval()
    randomise(head, generator)
    if not own_embedding:
        head.embed_tokens.weight.data.copy_(target.model.embed_tokens.weight.data)
    if whole:
        head.lm_head.weight.data.copy_(target.lm_head.weight.data)
    else:
        ids = torch.randperm(VOCABULARY, generator=generator)[:DRAFT].sort().values
        head.d2t.copy_(ids - torch.arange(DRAFT))
        head.t2d.zero_()[ids] = True
    logits = []
    hook = head.lm_head.register_forward_hook(lambda _, __, out: logits.append(out[0]))
    joined = torch.cat([states[n] for n in layers], dim=-1)[None, :-1]
    after = torch.tensor([tokens[1:]])
    with torch.no_grad():
        head(joined, after, torch.zeros_like(after), ttt_steps=STEPS)
    hook.remove()
    state = {k: v for k, v in head.state_dict().items() if not k.startswith("verifier_") and "rotary" not in k}
    if not own_embedding:
        state.pop("embed_tokens.weight")
    if whole:
        state.pop("lm_head.weight")
    return config, state, torch.stack(logits)


def eagle1(target, tokens, states, generator):
    config = LlamaConfig(**LAYER, num_hidden_layers=1, rope_parameters=rope(10000.0))
    config._attn_implementation = "eager"
    layer, fc, rotary = LlamaDecoderLayer(config, 0), torch.nn.Linear(2 * HIDDEN, HIDDEN), LlamaRotaryEmbedding(config)
    layer.input_layernorm = torch.nn.Identity()
    randomise(layer, generator)
    randomise(fc, generator)
    # There is no norm before the output matrix to keep logits small.
    fc.weight.data.mul_(0.25)
    # Of step s the state at place i, and of the keys those of the first step up to i and those of
    # later ones at i alone.
    state, count, cache, logits = states[-1][None, :-1], len(tokens) - 1, DynamicCache(), []
    mask = torch.full((count, count), float("-inf")).triu(1)
    diagonal = torch.full((count, count), float("-inf")).fill_diagonal_(0.0)
    for step in range(STEPS):
        after = torch.tensor([tokens[1 + step :] + [0] * step])
        place = torch.arange(count)[None] + step
        with torch.no_grad():
            joined = fc(torch.cat([target.model.embed_tokens(after), state], dim=-1))
            out = layer(
                joined,
                attention_mask=mask[None, None],
                position_ids=place,
                past_key_values=cache,
                use_cache=True,
                position_embeddings=rotary(joined, place),
            )
            state = out[0] if isinstance(out, tuple) else out
            logits.append(target.lm_head(state)[0])
        mask = torch.cat([mask, diagonal], dim=1)
    named = {f"layers.0.{k}": v for k, v in layer.state_dict().items()}
    return config, named | {f"fc.{k}": v for k, v in fc.state_dict().items()}, torch.stack(logits)


def plain(layer, **more):
    """A flat config.json with the old names of the rotation."""
    names = ["hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size"]
    names += ["max_position_embeddings", "rms_norm_eps", "hidden_act", "num_hidden_layers", "attention_bias"]
    return {name: getattr(layer, name) for name in names} | dict(architectures=["LlamaForCausalLM"]) | more


def publish(name, folder, config, state):
    layer = config.transformer_layer_config
    midlayer = {k.replace("layers.0.", "midlayer."): v for k, v in state.items()}
    if name == "original":
        write(folder / "config.json", plain(layer, draft_vocab_size=DRAFT))
        torch.save({k: v.to(torch.float16) if v.is_floating_point() else v for k, v in midlayer.items()}, folder / "pytorch_model.bin")
        return
    if name in ("specforge", "whole"):
        inner = {"eagle_aux_hidden_state_layer_ids": [n - 1 for n in config.eagle_aux_hidden_state_layer_ids]}
        inner |= {"use_aux_hidden_state": True}
        inner |= {flag: True for flag in ("norm_before_fc", "norm_output") if getattr(config, flag)}
        more = dict(architectures=["LlamaForCausalLMEagle3"], rope_theta=layer.rope_parameters["rope_theta"])
        write(folder / "config.json", plain(layer, draft_vocab_size=config.draft_vocab_size, eagle_config=inner, **more))
        save(narrow(midlayer), folder / "model.safetensors")
        return
    fields = json.loads(config.to_json_string(use_diff=False))
    write(folder / "config.json", fields)
    save(narrow(state), folder / "model.safetensors")


def main():
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(11)
    config = LlamaConfig(**LAYER, num_hidden_layers=LAYERS, rope_parameters=rope(1000.0))
    config._attn_implementation = "eager"
    target = LlamaForCausalLM(config).eval()
    randomise(target, generator)
    folder = HERE / "target"
    folder.mkdir(exist_ok=True)
    write(folder / "config.json", plain(config, rope_theta=1000.0, eos_token_id=1, bos_token_id=0, tie_word_embeddings=False))
    tokenizer().save(str(folder / "tokenizer.json"))
    save(narrow(target.state_dict()), folder / "model.safetensors")
    tokens = torch.randint(2, VOCABULARY, (LENGTH,), generator=generator).tolist()
    states = features(target, tokens)
    for name, choices in HEADS.items():
        folder = HERE / name
        folder.mkdir(exist_ok=True)
        made, state, logits = eagle3(target, tokens, states, generator, **choices)
        publish(name, folder, made, state)
        save({"tokens": torch.tensor(tokens), "logits": logits.float()}, folder / "expected.safetensors")
        print(name, "logits", round(logits.std().item(), 2))
    folder = HERE / "eagle1"
    folder.mkdir(exist_ok=True)
    made, state, logits = eagle1(target, tokens, states, generator)
    write(folder / "config.json", plain(made))
    save(narrow(state), folder / "model.safetensors")
    save({"tokens": torch.tensor(tokens), "logits": logits.float()}, folder / "expected.safetensors")
    print("eagle1 logits", round(logits.std().item(), 2))


main()
