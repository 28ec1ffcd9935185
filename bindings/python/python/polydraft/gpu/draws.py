"""Independent draws from rows of logits.

Problem: n i.i.d. tokens from each row, from uniforms that the caller gives, so that the
distribution they were drawn from is known exactly: it is that of the `Rows`.
Source: the inverse of the cumulative distribution, by blocks of the vocabulary whose masses are
known, then within one block.
Deviations: (1) the cumulative sums are in float64, and a token of weight 0 is never drawn, whatever
the rounding.
Cost: one block of logits a draw; nothing is read twice.
"""

from __future__ import annotations

import torch

from . import backend
from .rows import Rows

__all__ = ["draw"]


def draw(rows: Rows, uniforms: torch.Tensor) -> torch.Tensor:
    """Draws tokens.

    Args:
        rows: what `distributions` gave, for logits `[..., V]`.
        uniforms: independent, in [0, 1), `[..., n]`. Float64 is best: float32 has 24 bits, so that
            probabilities below 1e-7 get what is left of them.

    Returns:
        Tokens, int64 `[..., n]`; -1 where the row's status is not 0.

    Raises:
        ValueError: uniforms of another shape.
    """
    expected = tuple(rows.shape)
    if tuple(uniforms.shape[:-1]) != expected:
        got = list(uniforms.shape)
        raise ValueError(f"draw: uniforms must be [{', '.join(map(str, expected))}, n], got {got}")
    flat = uniforms.reshape(rows.logits.shape[0], -1).contiguous()
    return backend.of(rows.logits).draw(rows, flat).reshape(uniforms.shape)
