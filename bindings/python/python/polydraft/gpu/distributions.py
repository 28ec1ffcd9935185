"""Distributions from logits, without a sort and without writing a softmax.

Problem: a verifier needs of a row of V logits its largest, its Σ exp, what filters keep, and where
in the vocabulary the mass lies; then any token's probability follows from its logit.
Source: see `kernels.rows` and `kernels.filters`, which do it on a GPU, and `plain`, which does it
anywhere.
Deviations: none beyond those named there.
Cost: one read of the logits; with top-k or top-p as many as the search for the smallest kept logit
needs (`kernels.filters`).

Rounding: weights are exp((x - largest)/temperature) in float32, right to a relative
6e-8·(1 + |x - largest|/temperature); they are summed in float32 within a block of the vocabulary
and in float64 between blocks. Whatever is emitted has the distribution of these weights.
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
    """What verification and drawing need of rows of logits.

    Args:
        logits: `[..., V]` in float32, float16 or bfloat16. The last dimension must be contiguous
            and the others must collapse into rows of one distance, as they do in any contiguous
            tensor and in `padded[..., :V]` of one.
        sampling: temperature and filters. Default: temperature 1, all tokens.
        block: tokens that one program reads, a power of two. Default: by the device.

    Returns:
        `Rows`. All work is queued on the current stream; nothing waits for it.

    Raises:
        ValueError: a dtype, shape or layout that is not as above.

    Source: see the module.
    """
    sampling = Sampling() if sampling is None else sampling
    rows, shape = as_rows(logits)
    return backend.of(rows).distributions(rows, shape, sampling, block)
