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

from dataclasses import dataclass, field

import torch

from . import backend
from .sampling import Sampling

__all__ = ["Rows", "distributions"]


@dataclass
class Rows:
    """Rows of logits, and what is known of their distributions. Made by `distributions`.

    The logits are kept as they are, not copied: they must not change while the rows are in use.

    Attributes:
        logits: `[rows, V]`.
        shape: the shape that the rows were given in, without V.
        tops: the largest logit, float32 `[rows]`.
        cuts: the smallest logit that is kept; -inf without filters.
        lasts: the last kept token of those whose logit is exactly the smallest, int32.
        rates: 1/temperature; 1 at temperature 0.
        totals: Σ of the kept tokens' weights, float64.
        masses: the same by blocks of the vocabulary, float32 `[rows, blocks]`.
        arguments: the lowest token with the largest logit, int32.
        status: 0; 1 where a logit is NaN or +inf, or all are -inf. Such rows are nobody's
            distribution: `draw` gives -1 and `verify` refuses the sequence. It is on the device;
            nothing waits for it.
        block: tokens in a block.
    """

    logits: torch.Tensor
    shape: torch.Size
    tops: torch.Tensor
    cuts: torch.Tensor
    lasts: torch.Tensor
    rates: torch.Tensor
    totals: torch.Tensor
    masses: torch.Tensor
    arguments: torch.Tensor
    status: torch.Tensor
    block: int
    sampling: Sampling = field(default_factory=Sampling)

    @property
    def vocabulary(self) -> int:
        """V."""
        return self.logits.shape[-1]

    def weights(self) -> torch.Tensor:
        """All weights, float32 `[rows, V]`: for tests and for looking at, nothing here needs it."""
        x = self.logits.float()
        y = torch.arange(self.vocabulary, device=x.device)
        cuts, lasts = self.cuts[:, None], self.lasts[:, None]
        kept = (x > cuts) | ((x == cuts) & (y <= lasts))
        w = torch.exp((x - self.tops[:, None]) * self.rates[:, None])
        return torch.where(kept, w, torch.zeros_like(w))

    def probabilities(self) -> torch.Tensor:
        """All probabilities in the shape of the logits; float64 where the device has it."""
        w = self.weights().to(backend.wide(self.logits.device))
        return (w / w.sum(-1, keepdim=True)).reshape(*self.shape, self.vocabulary)


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
    rows, shape = backend.as_rows(logits)
    return backend.of(rows).distributions(rows, shape, sampling, block)
