"""Sampling settings by row: how logits become distributions.

The same filters in the same order as `polydraft.Sampling`: temperature, top-k, top-p, min-p.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Sampling"]


@dataclass(frozen=True)
class Sampling:
    """Temperature and filters: a number for all rows, or a tensor with a value for each row.

    A tensor's shape is the leading part of the rows' shape: with logits `[batch, nodes, V]` it is
    `[batch]` or `[batch, nodes]`. It is read on the device, so that a captured CUDA graph uses its
    current values; these are not checked.

    Attributes:
        temperature: divides the logits; 0 always takes the largest logit, the lowest token among
            equal ones. 0, or from 1e-30 to 1e30.
        top_k: keep the k most likely tokens, the lowest among those equal to the k-th; None, or 0
            in a tensor, keeps all.
        top_p: keep the smallest set of most likely tokens with at least this probability, in
            (0, 1].
        min_p: keep the tokens with at least this share of the largest probability, in [0, 1].

    Raises:
        ValueError: a number out of its range.
    """

    temperature: Any = 1.0
    top_k: Any = None
    top_p: Any = 1.0
    min_p: Any = 0.0

    def __post_init__(self) -> None:
        def check(valid: bool, setting: str, expected: str, got: object) -> None:
            if not valid:
                raise ValueError(f"sampling: {setting} must be {expected}, got {got}")

        t, k, p, m = self.temperature, self.top_k, self.top_p, self.min_p
        if not isinstance(t, torch.Tensor):
            valid = t == 0.0 or 1e-30 <= t <= 1e30
            check(valid, "temperature", "0, or from 1e-30 to 1e30", t)
        if k is not None and not isinstance(k, torch.Tensor):
            check(k >= 1, "top_k", "at least 1", k)
        if not isinstance(p, torch.Tensor):
            check(0.0 < p <= 1.0, "top_p", "above 0, at most 1", p)
        if not isinstance(m, torch.Tensor):
            check(0.0 <= m <= 1.0, "min_p", "from 0 to 1", m)

    @property
    def filters(self) -> tuple[bool, bool, bool]:
        """Whether top-k, top-p, min-p may keep less than everything."""
        top_p = isinstance(self.top_p, torch.Tensor) or self.top_p < 1.0
        min_p = isinstance(self.min_p, torch.Tensor) or self.min_p > 0.0
        return self.top_k is not None, top_p, min_p

    def rates(self, shape: torch.Size, device: torch.device) -> torch.Tensor:
        """Returns 1/temperature of each row, 0 for temperature 0, float32 `[rows]`."""
        t = self.temperature
        if isinstance(t, torch.Tensor):
            t = by_row("temperature", t, shape, torch.float32)
            return torch.where(t == 0.0, torch.zeros_like(t), 1.0 / t)
        return torch.full((math.prod(shape),), 1.0 / t if t else 0.0, device=device)

    def setting(self, name: str, shape: torch.Size, device: torch.device) -> torch.Tensor:
        """Returns a filter's setting for each row, `[rows]`: int32 for top_k, else float32."""
        value = getattr(self, name)
        dtype = torch.int32 if name == "top_k" else torch.float32
        if isinstance(value, torch.Tensor):
            return by_row(name, value, shape, dtype)
        return torch.full((math.prod(shape),), value or 0, device=device, dtype=dtype)


def by_row(name: str, value: torch.Tensor, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """Expands a setting for the leading dimensions of `shape` to every row."""
    lead = tuple(value.shape)
    if lead != tuple(shape[: len(lead)]):
        got = f"{list(shape)}, got {list(lead)}"
        raise ValueError(f"sampling: {name} must have the leading shape of {got}")
    rest = (1,) * (len(shape) - len(lead))
    return value.to(dtype).reshape(lead + rest).expand(shape).reshape(-1).contiguous()
