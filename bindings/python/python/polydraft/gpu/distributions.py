"""Distributions from logits, without a sort and without writing a softmax.

Problem: for each row of V logits a verifier needs the largest one, the sum of exponentials, the
tokens that filters keep, and the mass of each block of the vocabulary; from these, any token's
probability follows from its logit.
Source: see `kernels.rows` and `kernels.filters` (GPU) and `plain` (any device).
Deviations: only those listed there.
Cost: one read of the logits; with top-k or top-p the reads of the search for the smallest kept
logit (`kernels.filters`).

Rounding: weights are exp((x - largest)/temperature) in float32, right to a relative
6e-8·(1 + |x - largest|/temperature); they are summed in float32 within a block of the vocabulary
and in float64 across blocks. Emitted tokens have exactly the distribution of these weights.
"""

from __future__ import annotations

import torch

from . import backend
from .rows import Rows, as_rows
from .sampling import Sampling

__all__ = ["distributions"]


def distributions(
    logits: torch.Tensor, sampling: Sampling | None = None, *, block: int | None = None
) -> Rows:
    """Computes what verification and drawing need from rows of logits.

    Args:
        logits: `[..., V]` in float32, float16 or bfloat16. The last dimension must be contiguous
            and the others must collapse into rows with a constant stride, as in any contiguous
            tensor or its slice `padded[..., :V]`.
        sampling: temperature and filters. Default: temperature 1, all tokens.
        block: tokens read by one program, a power of two. Default: by device.

    Returns:
        `Rows`. All work is queued on the current stream, without synchronization.

    Raises:
        ValueError: an unsupported dtype, shape or layout.

    Source: see the module.
    """
    sampling = Sampling() if sampling is None else sampling
    rows, shape = as_rows(logits)
    return backend.of(rows).distributions(rows, shape, sampling, block)
