"""A draft head in EAGLE-3's form.

Source: Li et al. 2025 (EAGLE-3); `config.json` and `model.safetensors` have the authors' layout, which
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
# Options of some heads that this forward pass does not support; the program does.
UNSUPPORTED = ("norm_before_residual", "norm_output", "norm_before_fc", "fc_norm", "use_aux_norm", "attention_bias", "mlp_bias")


def layers_read(config: dict[str, Any], layers: int) -> tuple[int, ...]:
    """Checks a head's configuration. Returns the layers of the target whose inputs it reads.

    Raises:
        ValueError: a head of another form, or with unsupported options.
    """
    field, nested = "eagle_aux_hidden_state_layer_ids", config.get("eagle_config") or {}
    if not config.get(field) and not nested.get(field) and "Eagle3" not in str(config.get("architectures")):
        raise ValueError(f"draft head: expected EAGLE-3's form, got the architecture {config.get('architectures')}")
    for option in UNSUPPORTED:
        if config.get(option) or nested.get(option):
            raise ValueError(f"draft head: {option} is not supported inside transformers; use `polydraft generate --draft`")
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if scaling.get("rope_type", scaling.get("type", "default")) != "default":
        raise ValueError(f"draft head: expected rotary positions without scaling, got {scaling}")
    # The nested field numbers layers by output, the top-level field by input. Default: the second, middle and third last layer.
    inner = [number + 1 for number in nested.get(field) or ()]
    reads = sorted(config.get(field) or inner or [2, layers // 2, layers - 3])
    if reads[0] < 0 or reads[-1] >= layers:
        raise ValueError(f"draft head: reads layers {reads}, but the target has {layers}")
    return tuple(reads)


class EagleHead(DraftHead):
    """Parameters of an EAGLE-3 head, on the target's device and in its dtype."""

    def __init__(self, folder: str | Path, target: PreTrainedModel) -> None:
        folder = Path(folder)
        try:
            config = json.loads((folder / "config.json").read_text())
        except OSError as error:
            raise ValueError(f"draft head: expected a folder with config.json and model.safetensors, got {folder}") from error
        self.reads = layers_read(config, len(decoder_layers(target)))
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
        offsets = self.weights.get("d2t")
        self.tokens = None if offsets is None else offsets + torch.arange(len(offsets), device=self.device)
        matrix = self.weights.get("lm_head.weight")
        if matrix is None:
            matrix = output.weight if self.tokens is None else output.weight[self.tokens]
        self.output = matrix
        if self.weights["fc.weight"].shape[1] != len(self.reads) * self.embedding.shape[1]:
            raise ValueError(f"draft head: expected states as wide as the target's, {self.embedding.shape[1]}")
        if config.get("vocab_size", self.vocabulary) > self.vocabulary:
            raise ValueError(f"draft head: its vocabulary has {config['vocab_size']} tokens, the target's {self.vocabulary}")
        half = self.head_dim // 2
        powers = torch.arange(half, dtype=torch.float64) / half
        theta = config.get("rope_theta") or (config.get("rope_parameters") or {}).get("rope_theta", 10_000.0)
        self.rates = (theta**-powers).float().to(self.device)
        self.hidden, self.width = config["hidden_size"], self.weights["fc.weight"].shape[1]

    def with_cache(self, batch: int) -> EaglePass:
        return EaglePass(self, batch)

    def weight_addresses(self) -> tuple[int, ...]:
        return tuple(weight.data_ptr() for weight in self.weights.values())

    def parameter(self, layer: int, part: str) -> torch.Tensor:
        """Returns a layer's parameter."""
        return self.weights[self.named(layer, part)]

    def named(self, layer: int, part: str) -> str:
        """Returns the name of a parameter: a head with a single layer uses another prefix."""
        return ("midlayer." if self.layers == 1 else f"layers.{layer}.") + part + ".weight"

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x.float(), (x.shape[-1],), weight.float(), self.epsilon).to(self.dtype)

    def rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Applies rotary positions to heads `[batch, heads, rows, width]`, pairing the two halves."""
        angles = positions[:, None, :, None] * self.rates
        cos, sin = angles.cos(), angles.sin()
        low, high = x.float().chunk(2, -1)
        return torch.cat([low * cos - high * sin, high * cos + low * sin], -1).to(self.dtype)


class EaglePass:
    """An EAGLE-3 head with its KV cache, `[layers, 2, batch, heads, slots, head width]`."""

    def __init__(self, head: EagleHead, batch: int) -> None:
        self.head = head
        shape = (head.layers, 2, batch, head.shared, 0, head.head_dim)
        self.cache = torch.zeros(shape, dtype=head.dtype, device=head.device)

    def resize(self, size: int) -> None:
        larger = self.cache.new_zeros(*self.cache.shape[:4], size, self.cache.shape[5])
        larger[..., : self.cache.shape[4], :] = self.cache
        self.cache = larger

    def first(self, features: torch.Tensor) -> torch.Tensor:
        return F.linear(features, self.head.weights["fc.weight"])

    def forward(
        self, state: torch.Tensor, tokens: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        head = self.head
        embedded = head.norm(head.embedding[tokens], head.parameter(0, "input_layernorm"))
        state = state.float()
        for layer in range(head.layers):
            read = head.norm(state, head.parameter(layer, "hidden_norm" if layer == 0 else "input_layernorm"))
            joined = torch.cat([embedded, read], -1) if layer == 0 else read
            q, k, v = (
                F.linear(joined, head.parameter(layer, f"self_attn.{x}_proj")).unflatten(-1, (-1, head.head_dim)).transpose(1, 2)
                for x in "qkv"
            )
            found = self.attend(layer, head.rotate(q, positions), head.rotate(k, positions), v, slots, mask)
            state = state + F.linear(found.transpose(1, 2).flatten(2), head.parameter(layer, "self_attn.o_proj")).float()
            inner = head.norm(state, head.parameter(layer, "post_attention_layernorm"))
            gate = F.silu(F.linear(inner, head.parameter(layer, "mlp.gate_proj")))
            gated = gate * F.linear(inner, head.parameter(layer, "mlp.up_proj"))
            state = state + F.linear(gated, head.parameter(layer, "mlp.down_proj")).float()
        return state

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:  # fmt: skip
        """Writes keys and values to their slots, then attends to all slots."""
        both = []
        for home, new in zip(self.cache[layer], (k, v)):
            home.scatter_(2, slots[:, None, :, None].expand(new.shape), new)
            both.append(home.repeat_interleave(self.head.heads // self.head.shared, 1))
        return F.scaled_dot_product_attention(q, both[0], both[1], attn_mask=mask)

    def logits(self, state: torch.Tensor) -> torch.Tensor:
        head = self.head
        logits = F.linear(head.norm(state, head.weights["norm.weight"]), head.output)
        if head.tokens is None:
            return logits
        every = logits.new_full((*logits.shape[:-1], head.vocabulary), float("-inf"))
        every[..., head.tokens] = logits
        return every
