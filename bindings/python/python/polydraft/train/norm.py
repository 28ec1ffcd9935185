"""Root mean square norm with a custom backward pass: PyTorch's takes three times as many passes over memory on a CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Computes x / sqrt(mean x^2 + epsilon) * weight over the last dimension."""
    return RmsNorm.apply(x, weight, epsilon)


class RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        square = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_()
        scale = square.div_(x.shape[-1]).add_(epsilon).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        return (x * scale).mul_(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        slope = grad * x
        # The weight's gradient as a matrix product rather than a sum over rows.
        to_weight = scale.flatten() @ slope.view(-1, x.shape[-1])
        mean = (slope @ weight)[..., None].mul_(scale**3 / x.shape[-1])
        return (grad * weight).mul_(scale).addcmul_(x, mean, value=-1), to_weight, None
