"""Independent draws from rows of logits.

Problem: draw n i.i.d. tokens from each row with uniforms given by the caller, so that the tokens
have exactly the distribution of the `Rows`.
Source: inversion of the cumulative distribution, first over the known masses of blocks of the
vocabulary, then within one block.
Deviations: (1) cumulative sums are in float64, and a token of weight 0 is never drawn, even with
rounding.
Cost: one block of logits for each draw.
"""

from __future__ import annotations

import torch

from . import backend
from .rows import Rows

__all__ = ["draw"]


def draw(rows: Rows, uniforms: torch.Tensor) -> torch.Tensor:
    """Draws tokens.

    Args:
        rows: result of `distributions` for logits `[..., V]`.
        uniforms: independent, in [0, 1), `[..., n]`. Float64 is best: float32 has 24 bits, so
            probabilities below 1e-7 are inaccurate.

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
