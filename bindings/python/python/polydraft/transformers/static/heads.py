"""What drafts from the target's hidden states: a draft head, or the layer that a model brings for it."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

# In place of a layer's number: the states after the last layer and its norm.
LAST = -1


class DraftHead:
    """Parameters that read the target's states.

    Attributes:
        reads: the layers of the target whose inputs it reads, or `LAST`.
        hidden: the width of its own state.
        width: of what it reads of a token.
    """

    reads: tuple[int, ...]
    hidden: int
    width: int
    device: torch.device
    dtype: torch.dtype

    def started(self, batch: int) -> HeadPass:
        """The head with a KV cache for a batch."""
        raise NotImplementedError

    def places(self) -> tuple[int, ...]:
        """Where its weights are."""
        raise NotImplementedError


class HeadPass(Protocol):
    """A head's passes over a cache of slots."""

    def resize(self, size: int) -> None:
        """Room for so many slots; what they hold stays."""

    def first(self, features: Tensor) -> Tensor:
        """The states to begin with, from the target's `[batch, rows, width]`."""

    def forward(self, state: Tensor, tokens: Tensor, slots: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """From states `[batch, rows, hidden]` and the tokens after them, `[batch, rows]`, to the states after those. `mask` is
        `[batch, 1, rows, slots]`, added to the scores."""

    def logits(self, state: Tensor) -> Any:
        """Over the target's vocabulary, `[batch, rows, V]`; a token that the head does not say has -inf."""
