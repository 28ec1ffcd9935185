"""Makes the fixtures of tests/blocks.rs: heads that predict blocks, in every format and variant, for the random target
of heads/target, and the logits that their published forward passes give. Run it with the packages of
../fixtures/requirements.txt; it writes beside itself.

Per head: its files as published, and expected.safetensors with
  tokens [T]                 a text
  logits [T - L, L, V]       f32; at place i and level s: after the tokens up to i were decided, and the s behind them
                             drafted; -inf for tokens that are not drafted
The layers are Qwen3's of transformers; what attention sees is written out with a mask.
"""

import json
import pathlib

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import LlamaForCausalLM, Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP, Qwen3RMSNorm, Qwen3RotaryEmbedding, rotate_half

HERE = pathlib.Path(__file__).parent
TOKENS, ROWS, HIDDEN, LENGTH, DRAFT = 62, 64, 32, 20, 24
# A row that no token of the tokenizer has.
MASK = 63
FULL, SLIDING = "full_attention", "sliding_attention"

LAYER = dict(
    hidden_size=HIDDEN,
    intermediate_size=24,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    vocab_size=ROWS,
    max_position_embeddings=64,
    num_hidden_layers=2,
)

# Layers by their outputs, positions of a block, and what else there is.
HEADS = {
    # As its authors publish: all that it shares is the target's.
    "dflash": dict(layers=[0, 3, 6], block=5, theta=1000.0),
    # As speculators writes: a smaller vocabulary, an output matrix and an embedding of its own, biases, windows.
    "dflash-speculators": dict(
        layers=[2, 5], block=4, theta=100.0, small=True, own=True, bias=True, types=[SLIDING, FULL], window=4, causal=True, format="dflash"
    ),
    "dflash-causal": dict(layers=[1, 7], block=4, theta=50.0, causal=True),
    # Layers with a window look back only, where nothing else is said.
    "dflash-windows": dict(layers=[2, 3], block=4, theta=50.0, types=[FULL, SLIDING], window=5),
    # As its authors publish: the last token's position predicts too.
    "dspark": dict(layers=[1, 4], block=4, theta=1000.0, rank=6, anchor=True, confidence=True),
    "dspark-speculators": dict(layers=[2, 5], block=4, theta=300.0, rank=5, small=True, confidence=True, format="dspark"),
    "dflash2": dict(layers=[0, 3, 6], block=5, theta=1000.0, taps=3, group=4, select=6, top=7, scale=0.7, embedding=1.3),
    "dflash2-capped": dict(layers=[4], block=3, theta=1000.0, taps=2, group=8, select=4, top=5, cap=3.0),
}


class Attention(nn.Module):
    def __init__(self, config, bias):
        super().__init__()
        size = [config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim]
        self.q_proj = nn.Linear(HIDDEN, size[0], bias)
        self.k_proj = nn.Linear(HIDDEN, size[1], bias)
        self.v_proj = nn.Linear(HIDDEN, size[1], bias)
        self.o_proj = nn.Linear(size[0], HIDDEN, bias)
        self.q_norm, self.k_norm = Qwen3RMSNorm(config.head_dim), Qwen3RMSNorm(config.head_dim)
        self.width = config.head_dim

    def forward(self, x, context, cos, sin, seen):
        """x [B, H], context [C, H], the angles of C + B positions, and what each of B sees of those."""

        def split(y):
            return y.view(len(y), -1, self.width)

        def turn(y, at):
            return y * cos[at, None] + rotate_half(y) * sin[at, None]

        count = len(context)
        both = torch.cat([context, x])
        q = turn(self.q_norm(split(self.q_proj(x))), slice(count, None))
        k = turn(self.k_norm(split(self.k_proj(both))), slice(None))
        v = split(self.v_proj(both))
        k, v = (y.repeat_interleave(q.shape[1] // y.shape[1], dim=1) for y in (k, v))
        scores = torch.einsum("bhd,chd->hbc", q, k) / self.width**0.5
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        return self.o_proj(torch.einsum("hbc,chd->bhd", weights, v).flatten(1))


class Convolution(nn.Module):
    def __init__(self, taps, group):
        super().__init__()
        self.base_kernel = nn.Parameter(torch.zeros(2, taps, HIDDEN))
        self.kernel_projection = nn.Linear(HIDDEN, 2 * taps * (HIDDEN // group), bias=False)
        self.group = group

    def moving(self, x):
        taps = self.base_kernel.shape[1]
        return self.kernel_projection(x).view(len(x), 2, taps, -1).repeat_interleave(self.group, dim=-1)

    def forward(self, x, moving, side):
        kernels = self.base_kernel[side] + moving[:, side]
        out = torch.zeros_like(x)
        for place in range(len(x)):
            for tap in range(min(kernels.shape[1], place + 1)):
                out[place] += kernels[place, tap] * x[place - tap]
        return out


class Layer(nn.Module):
    def __init__(self, config, choices):
        super().__init__()
        self.self_attn = Attention(config, choices.get("bias", False))
        self.mlp = Qwen3MLP(config)
        self.input_layernorm, self.post_attention_layernorm = Qwen3RMSNorm(HIDDEN), Qwen3RMSNorm(HIDDEN)
        if "taps" in choices:
            self.attention_conv = Convolution(choices["taps"], choices["group"])
            self.mlp_conv = Convolution(choices["taps"], choices["group"])

    def forward(self, x, context, cos, sin, seen):
        def around(name, y, block):
            if not hasattr(self, name):
                return block(y)
            conv = getattr(self, name)
            moving = conv.moving(y)
            return conv(block(conv(y, moving, 0)), moving, 1)

        x = x + around("attention_conv", self.input_layernorm(x), lambda y: self.self_attn(y, context, cos, sin, seen))
        return x + around("mlp_conv", self.post_attention_layernorm(x), self.mlp)


class Head(nn.Module):
    def __init__(self, choices, target):
        super().__init__()
        self.choices = choices
        config = Qwen3Config(**LAYER, rope_parameters=dict(rope_theta=choices["theta"], rope_type="default"))
        count = DRAFT if choices.get("small") else ROWS
        self.fc = nn.Linear(len(choices["layers"]) * HIDDEN, HIDDEN, bias=False)
        self.hidden_norm, self.norm = Qwen3RMSNorm(HIDDEN), Qwen3RMSNorm(HIDDEN)
        self.layers = nn.ModuleList(Layer(config, choices) for _ in range(config.num_hidden_layers))
        self.rotary = Qwen3RotaryEmbedding(config)
        self.embed_tokens, self.lm_head = nn.Embedding(ROWS, HIDDEN), nn.Linear(HIDDEN, count, bias=False)
        if "rank" in choices:
            self.markov_head = nn.Module()
            self.markov_head.markov_w1 = nn.Embedding(ROWS, choices["rank"])
            self.markov_head.markov_w2 = nn.Linear(choices["rank"], count, bias=False)
        if choices.get("confidence"):
            self.confidence_head = nn.Module()
            self.confidence_head.proj = nn.Linear(HIDDEN, 1)
        if "select" in choices:
            self.candidate_selector = selector = nn.Module()
            selector.predecessor_codebook = nn.Parameter(torch.zeros(ROWS, choices["select"]))
            selector.successor_codebook = nn.Parameter(torch.zeros(ROWS, choices["select"]))
            selector.hidden_projection = nn.Linear(HIDDEN, choices["select"], bias=False)
        self.config = config

    def logits(self, states, tokens, place):
        """[levels, V] after tokens up to `place`, of which but the last the target's states are given."""
        choices, block = self.choices, self.choices["block"]
        context = self.hidden_norm(self.fc(states[:place]))
        x = self.embed_tokens(torch.tensor([tokens[place]] + [MASK] * (block - 1))) * choices.get("embedding", 1.0)
        positions = torch.arange(place + block)
        cos, sin = (y[0] for y in self.rotary(x, positions[None]))
        own = positions[place:, None]
        for number, layer in enumerate(self.layers):
            sliding = choices.get("types", [FULL] * 2)[number] == SLIDING
            seen = torch.ones(block, place + block, dtype=torch.bool)
            if choices.get("causal", sliding):
                seen &= positions[None] <= own
            if sliding:
                seen &= own - positions[None] < choices["window"]
            x = layer(x, context, cos, sin, seen)
        h = self.norm(x)[0 if choices.get("anchor") else 1 :]
        base = self.lm_head(h)
        if "cap" in choices:
            base = choices["cap"] * torch.tanh(base / choices["cap"])
        base = base * choices.get("scale", 1.0)
        found = []
        for level, row in enumerate(base):
            row = row[: DRAFT if choices.get("small") else TOKENS]
            parent = torch.tensor(tokens[place + level])
            if "rank" in choices:
                bias = self.markov_head.markov_w2(self.markov_head.markov_w1(parent))
                row = row + bias[: len(row)]
            if "select" in choices:
                made = self.candidate_selector
                top = row.topk(choices["top"]).indices
                weighed = made.predecessor_codebook[parent] * made.hidden_projection(h[level])
                edges = torch.full_like(row, float("-inf"))
                edges[top] = row[top] + made.successor_codebook[top] @ weighed
                row = edges
            whole = torch.full((TOKENS,), float("-inf"))
            whole[self.ids if choices.get("small") else torch.arange(TOKENS)] = row
            found.append(whole)
        return torch.stack(found)


def randomise(module, generator):
    for name, parameter in module.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if "base_kernel" in name:
            value = 0.4 * noise + torch.tensor([1.0] + [0.0] * (parameter.shape[1] - 1))[None, :, None]
        elif "kernel_projection" in name:
            value = 0.3 * noise / parameter.shape[1] ** 0.5
        elif parameter.dim() == 1:
            value = (1.0 if "norm" in name else 0.0) + 0.3 * noise
        elif "embed_tokens" in name or "markov" in name or "codebook" in name:
            value = 0.8 * noise
        else:
            value = 1.2 * noise / parameter.shape[1] ** 0.5
        parameter.data.copy_(value.to(torch.bfloat16).float())


def published(choices, head):
    """config.json"""
    flat = dict(LAYER, rms_norm_eps=1e-6, hidden_act="silu", rope_theta=choices["theta"], attention_bias=choices.get("bias", False))
    flat |= dict(model_type="qwen3", architectures=["Qwen3ForCausalLM"], tie_word_embeddings=False)
    if "types" in choices:
        flat |= dict(layer_types=choices["types"], sliding_window=choices["window"])
    if "format" in choices:
        fields = dict(
            speculators_model_type=choices["format"],
            transformer_layer_config=flat,
            block_size=choices["block"],
            mask_token_id=MASK,
            aux_hidden_state_layer_ids=[n + 1 for n in choices["layers"]],
            draft_vocab_size=DRAFT,
        )
        if "causal" in choices:
            fields["sliding_window_non_causal"] = not choices["causal"]
        if "rank" in choices:
            fields |= dict(markov_rank=choices["rank"], markov_head_type="vanilla", enable_confidence_head=True)
        return fields
    if choices.get("anchor"):
        more = dict(target_layer_ids=choices["layers"], mask_token_id=MASK, markov_rank=choices["rank"])
        return flat | more | dict(architectures=["Qwen3DSparkModel"], block_size=choices["block"], enable_confidence_head=True)
    inner = dict(mask_token_id=MASK, target_layer_ids=choices["layers"])
    if "causal" in choices:
        inner["causal"] = choices["causal"]
    if "taps" in choices:
        inner |= dict(conv_kernel_size=choices["taps"], conv_group_size=choices["group"])
        inner |= dict(selector_rank=choices["select"], selector_top_k=choices["top"])
        named = dict(scale="output_multiplier", embedding="input_embedding_scale", cap="final_logit_softcapping")
        inner |= {name: choices[own] for own, name in named.items() if own in choices}
    return flat | dict(architectures=["DFlashDraftModel"], block_size=choices["block"], num_target_layers=8, dflash_config=inner)


def main():
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(5)
    target = LlamaForCausalLM.from_pretrained(HERE / "target", dtype=torch.float32, attn_implementation="eager").eval()
    tokens = torch.randint(2, TOKENS, (LENGTH,), generator=generator).tolist()
    outputs = []
    for layer in target.model.layers:
        layer.register_forward_hook(lambda _, __, out: outputs.append((out[0] if isinstance(out, tuple) else out).view(LENGTH, HIDDEN)))
    with torch.no_grad():
        target(torch.tensor([tokens]), use_cache=False)
    for name, choices in HEADS.items():
        head = Head(choices, target).eval()
        randomise(head, generator)
        if not choices.get("own"):
            head.embed_tokens.weight.data.copy_(target.model.embed_tokens.weight.data)
        state = {k: v.to(torch.bfloat16).contiguous() for k, v in head.state_dict().items() if not k.startswith("rotary")}
        if choices.get("small"):
            head.ids = torch.randperm(TOKENS, generator=generator)[:DRAFT].sort().values
            state["d2t"] = head.ids - torch.arange(DRAFT)
        else:
            head.lm_head.weight.data.copy_(target.lm_head.weight.data)
            state.pop("lm_head.weight")
        if not choices.get("own"):
            state.pop("embed_tokens.weight")
        states = torch.cat([outputs[n] for n in choices["layers"]], dim=-1)
        levels = choices["block"] - (0 if choices.get("anchor") else 1)
        with torch.no_grad():
            logits = torch.stack([head.logits(states, tokens, place) for place in range(LENGTH - levels)])
        folder = HERE / name
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(published(choices, head), indent=1, sort_keys=True) + "\n")
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        save_file({"tokens": torch.tensor(tokens), "logits": logits}, folder / "expected.safetensors", metadata={"format": "pt"})
        for file in folder.iterdir():
            file.chmod(0o644)
        print(name, tuple(logits.shape), round(logits[logits.isfinite()].std().item(), 2))


if __name__ == "__main__":
    main()
