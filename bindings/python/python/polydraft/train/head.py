"""Training form of an EAGLE-3 head: unrolled over the steps of a draft.

Problem: at inference the second step of a draft starts from the head's own state, not from the target's; a head that was never
trained on its own states fails there.
Source: Li et al. 2025 (EAGLE-3), "training-time test". The forward pass of a step is that of polydraft's head for inference,
which uses a cache and trees; a test compares both.
Method: step t at sample position i reads token i + 1 + t, at rotary position i + t, and the state of step t - 1 at i. It attends
to the keys of step 0 at positions 0..=i, computed from the target's states, and to those of steps 1..=t at position i.
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
        """Returns a shape with layers like the target's; `model` is the folder's `model.json`."""
        shared = {field.name: model[field.name] for field in fields(cls) if field.name in model}
        return cls(**shared, eagle_aux_hidden_state_layer_ids=tuple(model["layers"]), num_hidden_layers=layers)

    def config(self) -> dict[str, Any]:
        """Returns the fields of `config.json` that are specific to this form."""
        config = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**config, "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"}

    def layer(self, number: int) -> str:
        """Returns the prefix of a layer's parameter names; heads with a single layer have another one."""
        return "midlayer." if self.num_hidden_layers == 1 else f"layers.{number}."

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Returns the shape of every parameter by its published name."""
        d, inner = self.hidden_size, self.intermediate_size
        queries, keys = self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim
        features = len(self.eagle_aux_hidden_state_layer_ids) * d
        found: dict[str, tuple[int, ...]] = {"fc.weight": (d, features), "norm.weight": (d,)}
        for number in range(self.num_hidden_layers):
            # The first layer reads an embedding and a state, concatenated.
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
    """Interface of the shapes of all forms."""

    @property
    def rms_norm_eps(self) -> float: ...
    @property
    def head_dim(self) -> int: ...
    def parameters(self) -> dict[str, tuple[int, ...]]: ...
    def config(self) -> dict[str, Any]: ...


class Learned(nn.Module):
    """Trainable parameters of a head of any form, in f32; products are computed in `dtype`."""

    def __init__(self, shape: AnyShape, dtype: torch.dtype, last_norm: Tensor | None, seed: int) -> None:
        super().__init__()
        self.shape: AnyShape = shape
        self.dtype = dtype
        generator = torch.Generator().manual_seed(seed)
        self.weights = nn.ParameterDict()
        for name, dims in shape.parameters().items():
            self.weights[name.replace(".", "/")] = nn.Parameter(initial(name, dims, generator))
        if last_norm is not None:
            # The output matrix expects states from the target's own norm.
            self["norm.weight"].data.copy_(last_norm)

    def __getitem__(self, name: str) -> nn.Parameter:
        return self.weights[name.replace(".", "/")]

    def named(self) -> dict[str, nn.Parameter]:
        """Returns every parameter by its published name."""
        return {name: self[name] for name in self.shape.parameters()}

    def product(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self[name + ".weight"].to(self.dtype))

    def norm(self, x: Tensor, name: str) -> Tensor:
        return rms_norm(x, self[name + ".weight"], self.shape.rms_norm_eps)

    def heads(self, x: Tensor) -> Tensor:
        """Reshapes `[samples, positions, heads * head]` to `[samples, heads, positions, head]`."""
        return x.unflatten(-1, (-1, self.shape.head_dim)).transpose(1, 2)

    def unroll(self, states: Tensor, embedded: Tensor, steps: int) -> list[Tensor]:
        """Computes the normed states that predict each token of a draft, `[samples, positions, hidden]` each."""
        raise NotImplementedError


class Head(Learned):
    """An EAGLE-3 head."""

    shape: Shape

    def __init__(self, shape: Shape, dtype: torch.dtype, last_norm: Tensor | None, seed: int = 1) -> None:
        super().__init__(shape, dtype, last_norm, seed)

    def unroll(self, states: Tensor, embedded: Tensor, steps: int) -> list[Tensor]:
        """Computes the normed states of every step, `[samples, positions, hidden]` each.

        `states`, `[samples, positions, read]`, are the target's after each token; `embedded`, `[samples, positions, hidden]`, the
        embeddings. Predictions of tokens after the end of the sample are meaningless.
        """
        positions, layers = states.shape[1], range(self.shape.num_hidden_layers)
        cos, sin = (x.to(self.dtype) for x in rotations(self.shape, positions + steps, states.device))
        first = self.shape.layer(0)
        normed = self.norm(embedded.float(), first + "input_layernorm").to(self.dtype)
        state = self.product(states.to(self.dtype), "fc").float()
        seen: list[tuple[list[Tensor], list[Tensor]]] = [([], []) for _ in layers]
        found = []
        for step in range(steps):
            # The token after the position and `step` drafts, padded at the end.
            token = F.pad(normed[:, 1 + step :], (0, 0, 0, 1 + step))[:, :positions]
            rotation = (cos[step : step + positions], sin[step : step + positions])
            for number in layers:
                name = self.shape.layer(number)
                read = self.norm(state, name + ("hidden_norm" if number == 0 else "input_layernorm")).to(self.dtype)
                joined = torch.cat([token, read], -1) if number == 0 else read
                state = state + self.attention(name + "self_attn.", joined, rotation, *seen[number])
                inner = self.norm(state, name + "post_attention_layernorm").to(self.dtype)
                gated = F.silu(self.product(inner, name + "mlp.gate_proj")) * self.product(inner, name + "mlp.up_proj")
                state = state + self.product(gated, name + "mlp.down_proj").float()
            found.append(self.norm(state, "norm"))
        return found

    def attention(
        self, name: str, x: Tensor, rotation: tuple[Tensor, Tensor], keys: list[Tensor], values: list[Tensor]
    ) -> Tensor:
        """Computes a step's attention, after appending its keys and values to those of earlier steps."""
        wide = self.shape.num_attention_heads
        query = rotate(self.heads(self.product(x, name + "q_proj")), *rotation)
        keys.append(widen(rotate(self.heads(self.product(x, name + "k_proj")), *rotation), wide))
        values.append(widen(self.heads(self.product(x, name + "v_proj")), wide))
        attended = attend(query, keys, values).transpose(1, 2).flatten(2)
        return self.product(attended, name + "o_proj").float()


def initial(name: str, dims: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Initializes norms to ones and matrices to small values; the initial state equals the last target state read."""
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


class RotaryShape(Protocol):
    """Parameters of rotary positions."""

    @property
    def head_dim(self) -> int: ...
    @property
    def rope_theta(self) -> float: ...


def rotations(shape: RotaryShape, positions: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns the cosines and sines of every position, `[positions, head]`."""
    half = shape.head_dim // 2
    powers = torch.arange(half, device=device, dtype=torch.float64) / half
    angles = torch.arange(positions, device=device, dtype=torch.float64)[:, None] * shape.rope_theta**-powers
    angles = torch.cat([angles, angles], -1)
    return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Applies rotary positions, pairing halves as in Hugging Face's Llama."""
    low, high = x.chunk(2, -1)
    return (x * cos).addcmul_(torch.cat([-high, low], -1), sin)
