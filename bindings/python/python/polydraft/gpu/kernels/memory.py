"""What launches have in common: memory, sizes, and the arguments that describe rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from ..methods import Trace
from ..rows import Rows


def power_of_2(n: int) -> int:
    """The smallest power of two that is at least n."""
    return triton.next_power_of_2(max(n, 1))


def new(like: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Memory on the device of `like`."""
    return torch.empty(shape, device=like.device, dtype=dtype)


def columns(given: Rows) -> list:
    """A kernel's arguments that describe rows."""
    logits = given.logits
    return [logits, logits.stride(0), given.tops, given.cuts, given.lasts, given.rates,
            given.totals]


@dataclass
class Work:
    """What the kernels before the decision leave for it; unused parts are one number long."""

    ratios: torch.Tensor
    accepts: torch.Tensor
    priorities: torch.Tensor
    gains: torch.Tensor
    tails: torch.Tensor
    rhos: torch.Tensor
    states: torch.Tensor
    trace: Trace
