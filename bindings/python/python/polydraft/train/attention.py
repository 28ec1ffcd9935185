"""Attention of the unrolled steps: causal attention over the keys of step 0, plus one key of each later step at each position.

Method: PyTorch's flash kernel computes the causal part and its log-sum-exp, which is used to merge the remaining keys. Given the
merged output O and the merged log-sum-exp, the kernel's own backward pass returns the exact gradients of the causal part,
because softmax's derivative P (dP - sum(dO * O)) depends on these two only. Without such a kernel (other devices, f32 on a GPU)
all scores are materialized. A test compares both.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

aten = torch.ops.aten
HALF = (torch.bfloat16, torch.float16)


def causal(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, tuple[Any, ...]]:
    """Returns the output, the log-sum-exp, and the other arguments of the backward pass."""
    if query.device.type == "cpu":
        out, total = aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, True)
        return out, total, ()
    out, total, *rest = aten._scaled_dot_product_flash_attention(query, key, value, 0.0, True, False)
    return out, total, tuple(rest)


def causal_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, total: Tensor, rest: tuple[Any, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    if query.device.type == "cpu":
        return aten._scaled_dot_product_flash_attention_for_cpu_backward(grad, query, key, value, out, total, 0.0, True)
    lengths, seed, offset = rest[:4], rest[4], rest[5]
    given = (grad, query, key, value, out, total)
    return aten._scaled_dot_product_flash_attention_backward(*given, *lengths, 0.0, True, seed, offset)


def widen(x: Tensor, heads: int) -> Tensor:
    """Repeats keys or values, `[samples, key heads, positions, head]`, for each query head of their group."""
    group = heads // x.shape[1]
    return x.repeat_interleave(group, 1) if group > 1 else x


def attend(query: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """Attends from queries to the keys and values of every step, all `[samples, heads, positions, head]`."""
    if query.device.type == "cpu" or (query.is_cuda and query.dtype in HALF):
        return Joined.apply(query, *keys, *values)
    return materialized(query, keys, values)


def dot(x: Tensor, y: Tensor) -> Tensor:
    """Dot products of vectors, `[samples, heads, positions]`, summed in f32."""
    return (x * y).sum(-1, dtype=torch.float32)


def materialized(query: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """Computes `attend` with all scores in memory."""
    positions, scale = query.shape[2], 1 / math.sqrt(query.shape[3])
    scores = (query @ keys[0].transpose(-1, -2)).float() * scale
    unseen = torch.ones(positions, positions, dtype=torch.bool, device=query.device).triu(1)
    scores = scores.masked_fill(unseen, -math.inf)
    later_scores = [(query.float() * key.float()).sum(-1, keepdim=True) * scale for key in keys[1:]]
    weights = torch.cat([scores, *later_scores], -1).softmax(-1)
    found = (weights[..., :positions].to(query.dtype) @ values[0]).float()
    for i, value in enumerate(values[1:]):
        found = found + weights[..., positions + i, None] * value.float()
    return found.to(query.dtype)


class Joined(torch.autograd.Function):
    """Computes `materialized` without scores in memory."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, *wide: Tensor) -> Tensor:
        steps = len(wide) // 2
        keys, values = wide[:steps], wide[steps:]
        scale = 1 / math.sqrt(query.shape[3])
        out, total, ctx.rest = causal(query, keys[0], values[0])
        if steps > 1:
            scores = torch.stack([dot(query, key) for key in keys[1:]]) * scale
            first, total = total, torch.logsumexp(torch.cat([total[None], scores]), 0)
            out = out * (first - total).exp().to(query.dtype)[..., None]
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
        to_query, to_key, to_value = causal_backward(grad, query, keys[0], values[0], out, total, ctx.rest)
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
