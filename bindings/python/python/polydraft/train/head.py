"""An EAGLE-3 head as it is trained: unrolled over the steps of a draft.

Problem: at inference the second step of a draft begins with what the head left, not with the target's states; a head that
never saw its own states in training fails there.
Source: Li et al. 2025 (EAGLE-3), "training-time test". The forward pass of a step is that of polydraft's own head, which
decodes with a cache and trees; a test holds the two against each other.
Method: step t at place i reads token i + 1 + t, at position i + t, and the state that step t - 1 left there. It sees what
step 0 made of places 0..=i, from the target's states, and what steps 1..=t made of place i.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .attention import attend, widen
from .norm import rms_norm


@dataclass(frozen=True)
class Shape:
    """The shape of a head, with the field names of its `config.json`."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope_theta: float
    rms_norm_eps: float
    eagle_aux_hidden_state_layer_ids: tuple[int, ...]
    num_hidden_layers: int = 1

    @classmethod
    def of_target(cls, model: dict[str, Any], layers: int = 1) -> Shape:
        """Layers of the target's own shape; `model` is the folder's `model.json`."""
        own = {field.name: model[field.name] for field in fields(cls) if field.name in model}
        return cls(**own, eagle_aux_hidden_state_layer_ids=tuple(model["layers"]), num_hidden_layers=layers)

    def config(self) -> dict[str, Any]:
        """What `config.json` says of it beside what all heads say."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**own, "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"}

    def layer(self, number: int) -> str:
        """What the names of a layer's parameters begin with: heads of one layer are published with a name of their own."""
        return "midlayer." if self.num_hidden_layers == 1 else f"layers.{number}."

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Every parameter under the name that it is published with."""
        d, inner = self.hidden_size, self.intermediate_size
        queries, keys = self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim
        features = len(self.eagle_aux_hidden_state_layer_ids) * d
        found: dict[str, tuple[int, ...]] = {"fc.weight": (d, features), "norm.weight": (d,)}
        for number in range(self.num_hidden_layers):
            # The first layer reads a token beside a state.
            read = 2 * d if number == 0 else d
            layer = {
                "input_layernorm": (d,),
                "self_attn.q_proj": (queries, read),
                "self_attn.k_proj": (keys, read),
                "self_attn.v_proj": (keys, read),
                "self_attn.o_proj": (d, queries),
                "post_attention_layernorm": (d,),
                "mlp.gate_proj": (inner, d),
                "mlp.up_proj": (inner, d),
                "mlp.down_proj": (d, inner),
            }
            if number == 0:
                layer["hidden_norm"] = (d,)
            found |= {f"{self.layer(number)}{name}.weight": dims for name, dims in layer.items()}
        return found


class AnyShape(Protocol):
    """What the shapes of all forms say."""

    @property
    def rms_norm_eps(self) -> float: ...
    @property
    def head_dim(self) -> int: ...
    def parameters(self) -> dict[str, tuple[int, ...]]: ...
    def config(self) -> dict[str, Any]: ...


class Learned(nn.Module):
    """The parts of a head of any form that are learned, in f32; products are computed in `dtype`."""

    def __init__(self, shape: AnyShape, dtype: torch.dtype, last_norm: Tensor | None, seed: int) -> None:
        super().__init__()
        self.shape: AnyShape = shape
        self.dtype = dtype
        generator = torch.Generator().manual_seed(seed)
        self.weights = nn.ParameterDict()
        for name, dims in shape.parameters().items():
            self.weights[name.replace(".", "/")] = nn.Parameter(initial(name, dims, generator))
        if last_norm is not None:
            # The output matrix is made for what comes from the target's own norm.
            self["norm.weight"].data.copy_(last_norm)

    def __getitem__(self, name: str) -> nn.Parameter:
        return self.weights[name.replace(".", "/")]

    def named(self) -> dict[str, nn.Parameter]:
        """Every parameter under the name that it is published with."""
        return {name: self[name] for name in self.shape.parameters()}

    def product(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self[name + ".weight"].to(self.dtype))

    def norm(self, x: Tensor, name: str) -> Tensor:
        return rms_norm(x, self[name + ".weight"], self.shape.rms_norm_eps)

    def heads(self, x: Tensor) -> Tensor:
        """`[samples, places, heads * head]` to `[samples, heads, places, head]`."""
        return x.unflatten(-1, (-1, self.shape.head_dim)).transpose(1, 2)

    def unroll(self, states: Tensor, embedded: Tensor, steps: int) -> list[Tensor]:
        """The normed states that say each of the tokens that a draft has, `[samples, places, hidden]` each."""
        raise NotImplementedError


class Head(Learned):
    """An EAGLE-3 head."""

    shape: Shape

    def __init__(self, shape: Shape, dtype: torch.dtype, last_norm: Tensor | None, seed: int = 1) -> None:
        super().__init__(shape, dtype, last_norm, seed)

    def unroll(self, states: Tensor, embedded: Tensor, steps: int) -> list[Tensor]:
        """The normed states of every step, `[samples, places, hidden]` each.

        `states` are the target's, `[samples, places, read]`, after each token; `embedded` is `[samples, places, hidden]`, of each
        token. What a step says at a place whose token lies after the end of the text means nothing.
        """
        places, layers = states.shape[1], range(self.shape.num_hidden_layers)
        cos, sin = (x.to(self.dtype) for x in rotations(self.shape, places + steps, states.device))
        first = self.shape.layer(0)
        words = self.norm(embedded.float(), first + "input_layernorm").to(self.dtype)
        state = self.product(states.to(self.dtype), "fc").float()
        seen: list[tuple[list[Tensor], list[Tensor]]] = [([], []) for _ in layers]
        found = []
        for step in range(steps):
            # The token after the place, and after as many drafts; at the end there is none.
            own = F.pad(words[:, 1 + step :], (0, 0, 0, 1 + step))[:, :places]
            turned = (cos[step : step + places], sin[step : step + places])
            for number in layers:
                name = self.shape.layer(number)
                read = self.norm(state, name + ("hidden_norm" if number == 0 else "input_layernorm")).to(self.dtype)
                joined = torch.cat([own, read], -1) if number == 0 else read
                state = state + self.attention(name + "self_attn.", joined, turned, *seen[number])
                inner = self.norm(state, name + "post_attention_layernorm").to(self.dtype)
                gated = F.silu(self.product(inner, name + "mlp.gate_proj")) * self.product(inner, name + "mlp.up_proj")
                state = state + self.product(gated, name + "mlp.down_proj").float()
            found.append(self.norm(state, "norm"))
        return found

    def attention(
        self, name: str, x: Tensor, turned: tuple[Tensor, Tensor], keys: list[Tensor], values: list[Tensor]
    ) -> Tensor:
        """What a step attends to, whose keys and values it adds to those of the steps before."""
        wide = self.shape.num_attention_heads
        query = turn(self.heads(self.product(x, name + "q_proj")), *turned)
        keys.append(widen(turn(self.heads(self.product(x, name + "k_proj")), *turned), wide))
        values.append(widen(self.heads(self.product(x, name + "v_proj")), wide))
        attended = attend(query, keys, values).transpose(1, 2).flatten(2)
        return self.product(attended, name + "o_proj").float()


def initial(name: str, dims: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Norms of ones, small products; the state begins as the last of the target's that are read."""
    if len(dims) == 1:
        return torch.ones(dims)
    deviation = 1 / math.sqrt(dims[1])
    if name == "fc.weight":
        deviation *= 0.1
    elif "o_proj" in name or "down_proj" in name:
        deviation *= 0.2
    weights = torch.randn(dims, generator=generator) * deviation
    if name == "fc.weight":
        weights[:, -dims[0] :] += torch.eye(dims[0])
    return weights


class Turned(Protocol):
    """What says how heads are turned."""

    @property
    def head_dim(self) -> int: ...
    @property
    def rope_theta(self) -> float: ...


def rotations(shape: Turned, positions: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines of every position, `[positions, head]`."""
    half = shape.head_dim // 2
    powers = torch.arange(half, device=device, dtype=torch.float64) / half
    angles = torch.arange(positions, device=device, dtype=torch.float64)[:, None] * shape.rope_theta**-powers
    angles = torch.cat([angles, angles], -1)
    return angles.cos().float(), angles.sin().float()


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding, halves paired as in Hugging Face's Llama."""
    low, high = x.chunk(2, -1)
    return (x * cos).addcmul_(torch.cat([-high, low], -1), sin)
