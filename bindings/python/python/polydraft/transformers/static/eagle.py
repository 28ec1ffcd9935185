"""A draft head in EAGLE-3's form.

Source: Li et al. 2025 (EAGLE-3); the layout of `config.json` and `model.safetensors` is that of its authors, which
`python -m polydraft.train` writes and the program reads.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch.nn import functional as F
from transformers import PreTrainedModel

from .heads import DraftHead
from .model import decoder_layers


PARTS = ("fc.weight", "norm.weight")
LAYER_PARTS = (
    "hidden_norm", "input_layernorm", "post_attention_layernorm", *(f"self_attn.{x}_proj" for x in "qkvo"),
    *(f"mlp.{x}_proj" for x in ("gate", "up", "down")),
)  # fmt: skip
# Choices of some heads that this forward pass does not have; the program reads them.
OTHERWISE = ("norm_before_residual", "norm_output", "norm_before_fc", "fc_norm", "use_aux_norm", "attention_bias", "mlp_bias")


def checked(config: dict[str, Any], layers: int) -> tuple[int, ...]:
    """The layers of the target whose inputs a head reads.

    Raises:
        ValueError: a head of another form, or with choices that are not computed here.
    """
    field, nested = "eagle_aux_hidden_state_layer_ids", config.get("eagle_config") or {}
    if not config.get(field) and not nested.get(field) and "Eagle3" not in str(config.get("architectures")):
        raise ValueError(f"draft head: expected EAGLE-3's form, got the architecture {config.get('architectures')}")
    for choice in OTHERWISE:
        if config.get(choice) or nested.get(choice):
            raise ValueError(f"draft head: {choice} is not computed inside transformers; `polydraft generate --draft` takes it")
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if scaling.get("rope_type", scaling.get("type", "default")) != "default":
        raise ValueError(f"draft head: expected plain rotary positions, got {scaling}")
    # Inside, a number is that of the layer whose output is read. Where nothing is said: the second, middle, last but two.
    inner = [number + 1 for number in nested.get(field) or ()]
    reads = sorted(config.get(field) or inner or [2, layers // 2, layers - 3])
    if reads[0] < 0 or reads[-1] >= layers:
        raise ValueError(f"draft head: made for another target than this one of {layers} layers: it reads {reads}")
    return tuple(reads)


class EagleHead(DraftHead):
    """The parameters of a head, on the target's device and in its dtype."""

    def __init__(self, folder: str | Path, target: PreTrainedModel) -> None:
        folder = Path(folder)
        try:
            config = json.loads((folder / "config.json").read_text())
        except OSError as error:
            raise ValueError(f"draft head: expected a folder with config.json and model.safetensors, got {folder}") from error
        self.reads = checked(config, len(decoder_layers(target)))
        self.device, self.dtype = target.device, target.dtype
        self.heads, self.shared = config["num_attention_heads"], config["num_key_value_heads"]
        self.head_dim = config.get("head_dim") or config["hidden_size"] // self.heads
        self.epsilon, self.layers = config["rms_norm_eps"], config.get("num_hidden_layers", 1)
        self.weights = {}
        with safe_open(folder / "model.safetensors", "pt") as file:
            for name in file.keys():
                tensor = file.get_tensor(name)
                self.weights[name] = tensor.to(self.device, self.dtype if tensor.is_floating_point() else None)
        for part in PARTS:
            if part not in self.weights:
                raise ValueError(f"draft head: expected {part} in {folder / 'model.safetensors'}, got none")
        for layer, part in ((layer, part) for layer in range(self.layers) for part in LAYER_PARTS):
            if (layer == 0 or part != "hidden_norm") and self.named(layer, part) not in self.weights:
                raise ValueError(f"draft head: expected {self.named(layer, part)} in {folder / 'model.safetensors'}, got none")
        embedding: Any = target.get_input_embeddings()
        self.embedding = embedding.weight
        output: Any = target.get_output_embeddings()
        self.vocabulary = output.weight.shape[0]
        printed = self.weights.get("d2t")
        self.says = None if printed is None else printed + torch.arange(len(printed), device=self.device)
        own = self.weights.get("lm_head.weight")
        self.output = own if own is not None else (output.weight if self.says is None else output.weight[self.says])
        if self.weights["fc.weight"].shape[1] != len(self.reads) * self.embedding.shape[1]:
            raise ValueError(f"draft head: its states are not as wide as the target's, {self.embedding.shape[1]} numbers")
        if config.get("vocab_size", self.vocabulary) > self.vocabulary:
            raise ValueError(f"draft head: made for a vocabulary of {config['vocab_size']}, got one of {self.vocabulary}")
        half = self.head_dim // 2
        powers = torch.arange(half, dtype=torch.float64) / half
        theta = config.get("rope_theta") or (config.get("rope_parameters") or {}).get("rope_theta", 10_000.0)
        self.rates = (theta**-powers).float().to(self.device)
        self.hidden, self.width = config["hidden_size"], self.weights["fc.weight"].shape[1]

    def started(self, batch: int) -> EaglePass:
        return EaglePass(self, batch)

    def places(self) -> tuple[int, ...]:
        return tuple(weight.data_ptr() for weight in self.weights.values())

    def name(self, layer: int, part: str) -> torch.Tensor:
        """A layer's parameter."""
        return self.weights[self.named(layer, part)]

    def named(self, layer: int, part: str) -> str:
        """What it is called: a head of one layer has a name of its own for it."""
        return ("midlayer." if self.layers == 1 else f"layers.{layer}.") + part + ".weight"

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x.float(), (x.shape[-1],), weight.float(), self.epsilon).to(self.dtype)

    def turned(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Heads `[batch, heads, rows, width]`, halves paired."""
        angles = positions[:, None, :, None] * self.rates
        cos, sin = angles.cos(), angles.sin()
        low, high = x.float().chunk(2, -1)
        return torch.cat([low * cos - high * sin, high * cos + low * sin], -1).to(self.dtype)


class EaglePass:
    """A head's passes over its keys and values, `[layers, 2, batch, heads, slots, head width]`."""

    def __init__(self, head: EagleHead, batch: int) -> None:
        self.head = head
        shape = (head.layers, 2, batch, head.shared, 0, head.head_dim)
        self.cache = torch.zeros(shape, dtype=head.dtype, device=head.device)

    def resize(self, size: int) -> None:
        more = self.cache.new_zeros(*self.cache.shape[:4], size, self.cache.shape[5])
        more[..., : self.cache.shape[4], :] = self.cache
        self.cache = more

    def first(self, features: torch.Tensor) -> torch.Tensor:
        return F.linear(features, self.head.weights["fc.weight"])

    def forward(
        self, state: torch.Tensor, tokens: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        head = self.head
        words = head.norm(head.embedding[tokens], head.name(0, "input_layernorm"))
        state = state.float()
        for layer in range(head.layers):
            read = head.norm(state, head.name(layer, "hidden_norm" if layer == 0 else "input_layernorm"))
            joined = torch.cat([words, read], -1) if layer == 0 else read
            q, k, v = (
                F.linear(joined, head.name(layer, f"self_attn.{x}_proj")).unflatten(-1, (-1, head.head_dim)).transpose(1, 2)
                for x in "qkv"
            )
            found = self.attend(layer, head.turned(q, positions), head.turned(k, positions), v, slots, mask)
            state = state + F.linear(found.transpose(1, 2).flatten(2), head.name(layer, "self_attn.o_proj")).float()
            inner = head.norm(state, head.name(layer, "post_attention_layernorm"))
            gated = F.silu(F.linear(inner, head.name(layer, "mlp.gate_proj"))) * F.linear(inner, head.name(layer, "mlp.up_proj"))
            state = state + F.linear(gated, head.name(layer, "mlp.down_proj")).float()
        return state

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:  # fmt: skip
        """What queries find in all slots, once these keys and values are in theirs."""
        both = []
        for home, own in zip(self.cache[layer], (k, v)):
            home.scatter_(2, slots[:, None, :, None].expand(own.shape), own)
            both.append(home.repeat_interleave(self.head.heads // self.head.shared, 1))
        return F.scaled_dot_product_attention(q, both[0], both[1], attn_mask=mask)

    def logits(self, state: torch.Tensor) -> torch.Tensor:
        head = self.head
        printed = F.linear(head.norm(state, head.weights["norm.weight"]), head.output)
        if head.says is None:
            return printed
        every = printed.new_full((*printed.shape[:-1], head.vocabulary), float("-inf"))
        every[..., head.says] = printed
        return every
