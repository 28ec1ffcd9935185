"""Training form of a block head (DFlash): predicts a block of following tokens at every position of a sample at once.

Problem: an EAGLE head needs a pass for each token of a path; a block head predicts all of them in one pass.
Source: Chen et al. 2026 (DFlash). The forward pass is that of polydraft's block head for inference; a test compares both.
Method: at position i the target's states of tokens 0..=i and token i + 1 are given. Every layer computes the context's keys and
values from these states, not from the output of the layer below. The block consists of token i + 1 and a mask embedding at each
later position; its positions attend to the context up to i and to each other. Position i + 1 + t predicts token i + 1 + t.
Deviations: the training target is the target's distribution and acceptance, as for EAGLE heads, not the generated tokens; and
all positions of a sample are trained, not a random subset.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .attention import attend, widen
from .head import Learned, rotate, rotations


@dataclass(frozen=True)
class BlockShape:
    """The shape of a block head, with the field names of its `config.json`."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope_theta: float
    rms_norm_eps: float
    num_hidden_layers: int
    # The last token and the predicted tokens.
    block_size: int
    # The token whose embedding is the mask.
    mask_token_id: int
    # The target's layers whose outputs the head reads.
    target_layer_ids: tuple[int, ...]

    @classmethod
    def of_target(cls, model: dict[str, Any], layers: int, predicted: int, mask: int) -> BlockShape:
        """Returns a shape with layers like the target's; `model` is the folder's `model.json`."""
        shared = {field.name: model[field.name] for field in fields(cls) if field.name in model}
        shared |= {"num_hidden_layers": layers, "block_size": 1 + predicted, "mask_token_id": mask}
        return cls(**shared, target_layer_ids=tuple(layer - 1 for layer in model["layers"]))

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Returns the shape of every parameter by its published name."""
        d, inner = self.hidden_size, self.intermediate_size
        queries, keys = self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim
        found: dict[str, tuple[int, ...]] = {"fc.weight": (d, len(self.target_layer_ids) * d)}
        found |= {"hidden_norm.weight": (d,), "norm.weight": (d,)}
        for number in range(self.num_hidden_layers):
            layer = {
                "input_layernorm": (d,),
                "self_attn.q_proj": (queries, d),
                "self_attn.k_proj": (keys, d),
                "self_attn.v_proj": (keys, d),
                "self_attn.o_proj": (d, queries),
                "self_attn.q_norm": (self.head_dim,),
                "self_attn.k_norm": (self.head_dim,),
                "post_attention_layernorm": (d,),
                "mlp.gate_proj": (inner, d),
                "mlp.up_proj": (inner, d),
                "mlp.down_proj": (d, inner),
            }
            found |= {f"layers.{number}.{name}.weight": dims for name, dims in layer.items()}
        return found

    def config(self) -> dict[str, Any]:
        """Returns the fields of `config.json` that are specific to this form."""
        config = {field.name: getattr(self, field.name) for field in fields(self)}
        choices = {"mask_token_id": config.pop("mask_token_id"), "target_layer_ids": config.pop("target_layer_ids")}
        return {**config, "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "dflash_config": choices}


class BlockHead(Learned):
    """A block head (DFlash)."""

    shape: BlockShape

    def __init__(self, shape: BlockShape, dtype: torch.dtype, last_norm: Tensor | None, mask: Tensor, seed: int = 1) -> None:
        super().__init__(shape, dtype, last_norm, seed)
        # The target's embedding, which is not trained.
        self.register_buffer("mask", mask, persistent=False)

    def unroll(self, states: Tensor, embedded: Tensor, steps: int) -> list[Tensor]:
        """Computes the normed states of the first `steps` predicted positions, `[samples, positions, hidden]` each.

        `states`, `[samples, positions, read]`, are the target's after each token; `embedded`, `[samples, positions, hidden]`, the
        embeddings. Predictions of tokens after the end of the sample are meaningless.
        """
        shape, positions = self.shape, states.shape[1]
        cos, sin = (x.to(self.dtype) for x in rotations(shape, positions + shape.block_size, states.device))
        known = self.norm(self.product(states.to(self.dtype), "fc").float(), "hidden_norm").to(self.dtype)
        anchor = F.pad(embedded.float()[:, 1:], (0, 0, 0, 1))
        masks = self.mask.float().expand_as(anchor)
        rows = [anchor, *(masks for _ in range(1, shape.block_size))]
        at = [(cos[1 + b : 1 + b + positions], sin[1 + b : 1 + b + positions]) for b in range(shape.block_size)]
        for number in range(shape.num_hidden_layers):
            name = f"layers.{number}."
            last = number + 1 == shape.num_hidden_layers
            normed = [self.norm(x, name + "input_layernorm").to(self.dtype) for x in rows]
            keys = [self.keys(name, known, (cos[:positions], sin[:positions]))]
            keys += [self.keys(name, x, rotation) for x, rotation in zip(normed, at)]
            made_of = [self.heads(self.product(x, name + "self_attn.v_proj")) for x in (known, *normed)]
            values = [widen(x, shape.num_attention_heads) for x in made_of]
            made = []
            for b, (x, y, rotation) in enumerate(zip(rows, normed, at)):
                if last and not 0 < b <= steps:
                    made.append(x)
                    continue
                query = self.heads(self.product(y, name + "self_attn.q_proj"))
                query = rotate(self.head_norm(query, name + "self_attn.q_norm"), *rotation)
                seen = attend(query, keys, values).transpose(1, 2).flatten(2)
                x = x + self.product(seen, name + "self_attn.o_proj").float()
                inner = self.norm(x, name + "post_attention_layernorm").to(self.dtype)
                gated = F.silu(self.product(inner, name + "mlp.gate_proj")) * self.product(inner, name + "mlp.up_proj")
                made.append(x + self.product(gated, name + "mlp.down_proj").float())
            rows = made
        return [self.norm(x, "norm") for x in rows[1 : 1 + steps]]

    def keys(self, name: str, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        keys = self.head_norm(self.heads(self.product(x, name + "self_attn.k_proj")), name + "self_attn.k_norm")
        return widen(rotate(keys, *rotation), self.shape.num_attention_heads)

    def head_norm(self, x: Tensor, name: str) -> Tensor:
        """Applies the norm to each head."""
        weight = self[name + ".weight"]
        return F.rms_norm(x.float(), weight.shape, weight, self.shape.rms_norm_eps).to(self.dtype)
