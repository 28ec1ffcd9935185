"""Rows of logits, and what is known of their distributions."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from .sampling import Sampling

__all__ = ["Rows", "as_rows", "blocks_of", "wide"]

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def wide(device: torch.device) -> torch.dtype:
    """The dtype of sums: float64 where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def as_rows(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Size]:
    """Logits as rows `[rows, V]` without copying, and the rows' shape.

    Raises:
        ValueError: a dtype or layout that kernels cannot read.
    """
    if logits.dtype not in DTYPES:
        raise ValueError(f"logits: must be float32, float16 or bfloat16, got {logits.dtype}")
    if logits.dim() < 1 or logits.numel() == 0:
        raise ValueError(f"logits: must be [..., V] and not empty, got {list(logits.shape)}")
    if logits.shape[-1] >= 1 << 24:
        raise ValueError(f"logits: a vocabulary below 2^24, got {logits.shape[-1]}")
    if logits.stride(-1) != 1 and logits.shape[-1] > 1:
        raise ValueError("logits: the last dimension must be contiguous; call .contiguous()")
    shape = logits.shape[:-1]
    try:
        return logits.view(-1, logits.shape[-1]), shape
    except RuntimeError as error:
        message = "logits: rows must lie at equal distances; call .contiguous()"
        raise ValueError(message) from error


def blocks_of(values: torch.Tensor, block: int) -> torch.Tensor:
    """Sums of blocks of the last dimension, in the dtype of the values."""
    vocabulary = values.shape[-1]
    padded = torch.nn.functional.pad(values, (0, -vocabulary % block))
    return padded.unflatten(-1, (-1, block)).sum(-1)


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
        w = self.weights().to(wide(self.logits.device))
        return (w / w.sum(-1, keepdim=True)).reshape(*self.shape, self.vocabulary)
