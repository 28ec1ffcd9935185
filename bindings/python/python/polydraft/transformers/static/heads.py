"""Interface of drafters that read the target's hidden states: draft heads and a model's own MTP layers."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

# Layer number of the states after the last layer and its norm.
LAST = -1


class DraftHead:
    """Parameters of a drafter that reads the target's states.

    Attributes:
        reads: layers of the target whose inputs it reads, or `LAST`.
        hidden: width of its own state.
        width: width of its input for each token.
    """

    reads: tuple[int, ...]
    hidden: int
    width: int
    device: torch.device
    dtype: torch.dtype

    def with_cache(self, batch: int) -> HeadPass:
        """Returns the head with a KV cache for a batch."""
        raise NotImplementedError

    def weight_addresses(self) -> tuple[int, ...]:
        """Returns the addresses of the weights."""
        raise NotImplementedError


class HeadPass(Protocol):
    """A head with its cache of slots."""

    def resize(self, size: int) -> None:
        """Grows the cache to `size` slots and preserves its contents."""

    def first(self, features: Tensor) -> Tensor:
        """Computes the initial states from the target's states, `[batch, rows, width]`."""

    def forward(self, state: Tensor, tokens: Tensor, slots: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """Computes the states after `tokens`, `[batch, rows]`, from the states before them, `[batch, rows, hidden]`. `mask`,
        `[batch, 1, rows, slots]`, is added to the attention scores."""

    def logits(self, state: Tensor) -> Any:
        """Computes logits over the target's vocabulary, `[batch, rows, V]`; -inf for tokens that the head cannot draft."""
