"""A block head (DFlash) as it is trained: at every place of a text at once, a block of the tokens that follow.

Problem: an EAGLE head computes a pass for each token of a path; one that predicts a block computes one for all of them.
Source: Chen et al. 2026 (DFlash). The forward pass is that of polydraft's own block head; a test holds the two against each
other.
Method: at place i the target's states of tokens 0..=i are known, and token i + 1. Keys and values of the context are made of
those states, whatever the layer below left. The block has token i + 1 and, at each of the positions after it, one embedding
that stands for a token not known; its positions see the context up to i and each other. Position i + 1 + t says token
i + 1 + t.
Deviations: it is taught the target's distributions and acceptance, as the other form, not the tokens that were written; and
at all places of a text, not at some that are drawn.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .attention import attend, widen
from .head import Learned, rotations, turn


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
    # The last token and those that are predicted.
    block_size: int
    # Whose embedding stands for a token not known.
    mask_token_id: int
    # By the target's layers whose outputs they are.
    target_layer_ids: tuple[int, ...]

    @classmethod
    def of_target(cls, model: dict[str, Any], layers: int, predicted: int, mask: int) -> BlockShape:
        """Layers of the target's own shape; `model` is the folder's `model.json`."""
        own = {field.name: model[field.name] for field in fields(cls) if field.name in model}
        own |= {"num_hidden_layers": layers, "block_size": 1 + predicted, "mask_token_id": mask}
        return cls(**own, target_layer_ids=tuple(layer - 1 for layer in model["layers"]))

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Every parameter under the name that it is published with."""
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
        """What `config.json` says of it beside what all heads say."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        choices = {"mask_token_id": own.pop("mask_token_id"), "target_layer_ids": own.pop("target_layer_ids")}
        return {**own, "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "dflash_config": choices}


class BlockHead(Learned):
    """A block head."""

    shape: BlockShape

    def __init__(self, shape: BlockShape, dtype: torch.dtype, last_norm: Tensor | None, mask: Tensor, seed: int = 1) -> None:
        super().__init__(shape, dtype, last_norm, seed)
        # It is the target's, and stands still.
        self.register_buffer("mask", mask, persistent=False)

    def unroll(self, states: Tensor, embedded: Tensor, steps: int) -> list[Tensor]:
        """The normed states of the first `steps` predicted positions, `[samples, places, hidden]` each.

        `states` are the target's, `[samples, places, read]`, after each token; `embedded` is `[samples, places, hidden]`, of each
        token. What is said at a place whose token lies after the end of the text means nothing.
        """
        shape, places = self.shape, states.shape[1]
        cos, sin = (x.to(self.dtype) for x in rotations(shape, places + shape.block_size, states.device))
        known = self.norm(self.product(states.to(self.dtype), "fc").float(), "hidden_norm").to(self.dtype)
        anchor = F.pad(embedded.float()[:, 1:], (0, 0, 0, 1))
        masks = self.mask.float().expand_as(anchor)
        rows = [anchor, *(masks for _ in range(1, shape.block_size))]
        at = [(cos[1 + b : 1 + b + places], sin[1 + b : 1 + b + places]) for b in range(shape.block_size)]
        for number in range(shape.num_hidden_layers):
            name = f"layers.{number}."
            last = number + 1 == shape.num_hidden_layers
            normed = [self.norm(x, name + "input_layernorm").to(self.dtype) for x in rows]
            keys = [self.keys(name, known, (cos[:places], sin[:places]))]
            keys += [self.keys(name, x, own) for x, own in zip(normed, at)]
            made_of = [self.heads(self.product(x, name + "self_attn.v_proj")) for x in (known, *normed)]
            values = [widen(x, shape.num_attention_heads) for x in made_of]
            made = []
            for b, (x, y, own) in enumerate(zip(rows, normed, at)):
                if last and not 0 < b <= steps:
                    made.append(x)
                    continue
                query = self.heads(self.product(y, name + "self_attn.q_proj"))
                query = turn(self.each(query, name + "self_attn.q_norm"), *own)
                seen = attend(query, keys, values).transpose(1, 2).flatten(2)
                x = x + self.product(seen, name + "self_attn.o_proj").float()
                inner = self.norm(x, name + "post_attention_layernorm").to(self.dtype)
                gated = F.silu(self.product(inner, name + "mlp.gate_proj")) * self.product(inner, name + "mlp.up_proj")
                made.append(x + self.product(gated, name + "mlp.down_proj").float())
            rows = made
        return [self.norm(x, "norm") for x in rows[1 : 1 + steps]]

    def keys(self, name: str, x: Tensor, turned: tuple[Tensor, Tensor]) -> Tensor:
        own = self.each(self.heads(self.product(x, name + "self_attn.k_proj")), name + "self_attn.k_norm")
        return widen(turn(own, *turned), self.shape.num_attention_heads)

    def each(self, x: Tensor, name: str) -> Tensor:
        """The norm of each head."""
        weight = self[name + ".weight"]
        return F.rms_norm(x.float(), weight.shape, weight, self.shape.rms_norm_eps).to(self.dtype)
