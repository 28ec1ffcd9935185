"""What can be verified with, what is asked, and what comes back."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import torch

from .rows import Rows

__all__ = ["METHODS", "Method", "Request", "Trace", "Verified"]


class Method(str, enum.Enum):
    """The names that users type; the same as those of the Rust verifiers."""

    TOKEN = "token"
    BLOCK = "block"
    WALK_PRIORITY = "walk:priority"
    NESTED_PRIORITY = "nested-priority"
    SPECINFER = "specinfer"
    SPECTR = "spectr"

    @property
    def single(self) -> bool:
        """Whether it verifies one path only."""
        return self in (Method.TOKEN, Method.BLOCK)

    @property
    def pooled(self) -> bool:
        """Whether it shares out priorities among pooled tokens."""
        return self in (Method.WALK_PRIORITY, Method.NESTED_PRIORITY)

    def coins(self, paths: int, length: int) -> int:
        """How many of a sequence's uniforms come before those of its coins and its last token."""
        if self is Method.NESTED_PRIORITY:
            return 2 * paths
        if self is Method.WALK_PRIORITY:
            return 2 * paths * length
        return paths * length if self in (Method.SPECINFER, Method.SPECTR) else 0


METHODS = tuple(method.value for method in Method)


@dataclass
class Request:
    """A checked call of `verify`. Tokens `[B, K, L]`, uniforms `[B, width]`."""

    method: Method
    tokens: torch.Tensor
    draft: Rows
    target: Rows
    uniforms: torch.Tensor
    knots: int
    cells: int
    trace: bool
    forced: torch.Tensor | None

    @property
    def batch(self) -> int:
        """B."""
        return self.tokens.shape[0]

    @property
    def paths(self) -> int:
        """K."""
        return self.tokens.shape[1]

    @property
    def length(self) -> int:
        """L."""
        return self.tokens.shape[2]


@dataclass
class Trace:
    """What a decision was made from, for proofs. Unused fields are none.

    Attributes:
        chances: block verification's chance that a prefix's coin accepts, `[B, L]`.
        left: the masses of the residual by blocks of the vocabulary, `[B, levels, blocks]`.
        accepts: walks: the chance that a path's token is accepted where it is selected,
            `[B, K, L]`.
        ratios: target/selection at the tokens, `[B, K, L]`.
        priorities: as drawn.
        shares: nested: each path's distribution of its priority over the cells, `[B, K, cells]`.
        holds: walk:priority: each path's distribution over its node's intervals, `[B, K, L, NK]`.
        ends: the upper ends of these intervals.
        gains: pooled methods: selection/draft at the knots of each path's node, `[B, K, L, NK]`.
        tails: pooled methods: the ratio at which rare tokens are pooled there, `[B, K, L]`.
    """

    chances: torch.Tensor | None = None
    left: torch.Tensor | None = None
    accepts: torch.Tensor | None = None
    ratios: torch.Tensor | None = None
    priorities: torch.Tensor | None = None
    shares: torch.Tensor | None = None
    holds: torch.Tensor | None = None
    ends: torch.Tensor | None = None
    gains: torch.Tensor | None = None
    tails: torch.Tensor | None = None


@dataclass
class Verified:
    """What to emit, on the device. Where `status` is not 0 nothing was decided.

    Attributes:
        path: a path whose first `length` tokens are accepted, int32 `[B]`; -1 if refused.
        length: how many tokens are accepted, 0 to L, int32 `[B]`; 0 if refused.
        next: the token after these, int64 `[B]`; -1 if refused.
        tokens: both, int64 `[B, L + 1]`: the accepted tokens, the next one, then -1.
        status: 0; with 1 a row that was needed is no distribution (NaN, +inf, or nothing but
            -inf); with 2 a draft token that its row gives probability 0 or that is no token.
        trace: what was asked for by `trace=True`.
    """

    path: torch.Tensor
    length: torch.Tensor
    next: torch.Tensor
    tokens: torch.Tensor
    status: torch.Tensor
    trace: Trace | None = None
