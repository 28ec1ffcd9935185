"""Attention of the unrolled steps: a causal part over step 0's keys, and one key of each later step for each place.

Method: on a CPU PyTorch's flash kernel computes the causal part and leaves the logarithm of its sum. The other keys are
joined to it by that sum: with the joint output O and the joint sum, the kernel's own backward pass gives the causal part's
exact gradients, for softmax's derivative P (dP - sum(dO * O)) needs no more than the two. Elsewhere the scores of all keys
are written out. A test holds the two against each other.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def widen(x: Tensor, heads: int) -> Tensor:
    """Keys or values `[samples, key heads, places, head]`, repeated for each query head that shares them."""
    group = heads // x.shape[1]
    return x.repeat_interleave(group, 1) if group > 1 else x


def attend(query: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """`[samples, heads, places, head]` of queries, and keys and values of each step, all like that."""
    if query.device.type == "cpu":
        return Joined.apply(query, *keys, *values)
    return written_out(query, keys, values)


def dot(x: Tensor, y: Tensor) -> Tensor:
    """Of vectors: `[samples, heads, places]`, summed in f32."""
    return (x * y).sum(-1, dtype=torch.float32)


def written_out(query: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """The same with all scores in memory."""
    places, scale = query.shape[2], 1 / math.sqrt(query.shape[3])
    scores = (query @ keys[0].transpose(-1, -2)).float() * scale
    unseen = torch.ones(places, places, dtype=torch.bool, device=query.device).triu(1)
    scores = scores.masked_fill(unseen, -math.inf)
    own = [(query.float() * key.float()).sum(-1, keepdim=True) * scale for key in keys[1:]]
    weights = torch.cat([scores, *own], -1).softmax(-1)
    found = (weights[..., :places].to(query.dtype) @ values[0]).float()
    for i, value in enumerate(values[1:]):
        found = found + weights[..., places + i, None] * value.float()
    return found.to(query.dtype)


class Joined(torch.autograd.Function):
    """`written_out` without scores in memory, on a CPU."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, *wide: Tensor) -> Tensor:
        steps = len(wide) // 2
        keys, values = wide[:steps], wide[steps:]
        scale = 1 / math.sqrt(query.shape[3])
        out, total = flash(query, keys[0], values[0], 0.0, True)
        if steps > 1:
            scores = torch.stack([dot(query, key) for key in keys[1:]]) * scale
            causal, total = total, torch.logsumexp(torch.cat([total[None], scores]), 0)
            out = out * (causal - total).exp().to(query.dtype)[..., None]
            for score, value in zip(scores, values[1:]):
                out.addcmul_((score - total).exp().to(query.dtype)[..., None], value)
        ctx.save_for_backward(query, out, total, *wide)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        query, out, total, *wide = ctx.saved_tensors
        steps = len(wide) // 2
        keys, values = wide[:steps], wide[steps:]
        scale = 1 / math.sqrt(query.shape[3])
        grad = grad.contiguous()
        to_query, to_key, to_value = flash_backward(grad, query, keys[0], values[0], out, total, 0.0, True)
        to_keys, to_values = [to_key], [to_value]
        if steps > 1:
            mean = dot(grad, out)
            for key, value in zip(keys[1:], values[1:]):
                weight = (dot(query, key) * scale - total).exp()
                slope = (weight * (dot(grad, value) - mean) * scale).to(query.dtype)[..., None]
                to_query = to_query.addcmul(slope, key)
                to_keys.append(slope * query)
                to_values.append(weight.to(query.dtype)[..., None] * grad)
        return (to_query, *to_keys, *to_values)
