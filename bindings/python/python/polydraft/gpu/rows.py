"""Rows of logits with the statistics of their distributions."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from .sampling import Sampling

__all__ = ["Rows", "as_rows", "blocks_of", "wide"]

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def wide(device: torch.device) -> torch.dtype:
    """Returns the dtype of sums: float64, or float32 on devices without it."""
    return torch.float32 if device.type == "mps" else torch.float64


def as_rows(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Size]:
    """Views logits as rows `[rows, V]`, without copying. Returns them and the shape of the rows.

    Raises:
        ValueError: a dtype or layout that kernels cannot read.
    """
    if logits.dtype not in DTYPES:
        raise ValueError(f"logits: must be float32, float16 or bfloat16, got {logits.dtype}")
    if logits.dim() < 1 or logits.numel() == 0:
        raise ValueError(f"logits: must be [..., V] and not empty, got {list(logits.shape)}")
    if logits.shape[-1] >= 1 << 24:
        raise ValueError(f"logits: expected a vocabulary below 2^24, got {logits.shape[-1]}")
    if logits.stride(-1) != 1 and logits.shape[-1] > 1:
        raise ValueError("logits: the last dimension must be contiguous; call .contiguous()")
    shape = logits.shape[:-1]
    try:
        return logits.view(-1, logits.shape[-1]), shape
    except RuntimeError as error:
        message = "logits: rows must have a constant stride; call .contiguous()"
        raise ValueError(message) from error


def blocks_of(values: torch.Tensor, block: int) -> torch.Tensor:
    """Sums blocks of the last dimension, in the dtype of the values."""
    vocabulary = values.shape[-1]
    padded = torch.nn.functional.pad(values, (0, -vocabulary % block))
    return padded.unflatten(-1, (-1, block)).sum(-1)


@dataclass
class Rows:
    """Rows of logits with the statistics of their distributions, computed by `distributions`.

    The logits are not copied, so they must not change while the rows are in use.

    Attributes:
        logits: `[rows, V]`.
        shape: shape of the given logits without V.
        tops: the largest logit, float32 `[rows]`.
        cuts: the smallest kept logit; -inf without filters.
        lasts: the last kept token among those with exactly this logit, int32.
        rates: 1/temperature; 1 at temperature 0.
        totals: sum of the kept tokens' weights, float64.
        masses: sums by blocks of the vocabulary, float32 `[rows, blocks]`.
        arguments: the lowest token with the largest logit, int32.
        status: 0, or 1 where a logit is NaN or +inf, or all are -inf. Such rows define no
            distribution: `draw` returns -1 and `verify` rejects the sequence. On the device.
        block: tokens of a block.
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
        """Vocabulary size V."""
        return self.logits.shape[-1]

    def weights(self) -> torch.Tensor:
        """Computes all weights, float32 `[rows, V]`. For tests and inspection only."""
        x = self.logits.float()
        y = torch.arange(self.vocabulary, device=x.device)
        cuts, lasts = self.cuts[:, None], self.lasts[:, None]
        kept = (x > cuts) | ((x == cuts) & (y <= lasts))
        w = torch.exp((x - self.tops[:, None]) * self.rates[:, None])
        return torch.where(kept, w, torch.zeros_like(w))

    def probabilities(self) -> torch.Tensor:
        """Computes all probabilities in the shape of the logits, in the dtype of sums."""
        w = self.weights().to(wide(self.logits.device))
        return (w / w.sum(-1, keepdim=True)).reshape(*self.shape, self.vocabulary)
