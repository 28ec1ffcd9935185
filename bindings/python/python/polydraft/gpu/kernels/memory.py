"""Helpers for launches: memory, sizes, and the kernel arguments of rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from ..methods import Trace
from ..rows import Rows


def power_of_2(n: int) -> int:
    """Returns the smallest power of two that is at least n."""
    return triton.next_power_of_2(max(n, 1))


def new(like: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Allocates uninitialized memory on the device of `like`."""
    return torch.empty(shape, device=like.device, dtype=dtype)


def columns(given: Rows) -> list:
    """Returns the kernel arguments of rows."""
    logits = given.logits
    return [logits, logits.stride(0), given.tops, given.cuts, given.lasts, given.rates,
            given.totals]


@dataclass
class Work:
    """Inputs of the decision, computed by earlier kernels; unused tensors have one element."""

    ratios: torch.Tensor
    accepts: torch.Tensor
    priorities: torch.Tensor
    gains: torch.Tensor
    tails: torch.Tensor
    rhos: torch.Tensor
    states: torch.Tensor
    trace: Trace
