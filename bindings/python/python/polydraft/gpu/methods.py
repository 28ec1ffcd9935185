"""Verification methods, requests and results."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import torch

from .rows import Rows

__all__ = ["METHODS", "Method", "Request", "Trace", "Verified"]


class Method(str, enum.Enum):
    """Names of the methods; the same as those of the Rust verifiers."""

    TOKEN = "token"
    BLOCK = "block"
    WALK_PRIORITY = "walk:priority"
    NESTED_PRIORITY = "nested-priority"
    SPECINFER = "specinfer"
    SPECTR = "spectr"

    @property
    def single(self) -> bool:
        """Whether the method verifies a single path only."""
        return self in (Method.TOKEN, Method.BLOCK)

    @property
    def pooled(self) -> bool:
        """Whether the method distributes priorities among pooled tokens."""
        return self in (Method.WALK_PRIORITY, Method.NESTED_PRIORITY)

    def coins(self, paths: int, length: int) -> int:
        """Returns the offset of a sequence's coins and last token in its uniforms."""
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
        """Batch size B."""
        return self.tokens.shape[0]

    @property
    def paths(self) -> int:
        """Number of paths K."""
        return self.tokens.shape[1]

    @property
    def length(self) -> int:
        """Path length L."""
        return self.tokens.shape[2]


@dataclass
class Trace:
    """Intermediate results of a decision, for proofs. Unused fields are None.

    Attributes:
        chances: block verification: acceptance probability of each prefix's coin, `[B, L]`.
        left: residual mass by blocks of the vocabulary, `[B, levels, blocks]`.
        accepts: walks: acceptance probability of each path's token if it is selected,
            `[B, K, L]`.
        ratios: target/selection at the tokens, `[B, K, L]`.
        priorities: the drawn priorities.
        shares: nested: distribution of each path's priority over the cells, `[B, K, cells]`.
        holds: walk:priority: each path's distribution over its node's intervals, `[B, K, L, NK]`.
        ends: upper ends of these intervals.
        gains: pooled methods: selection/draft at the knots of each path's node, `[B, K, L, NK]`.
        tails: pooled methods: common ratio of the rare tokens there, `[B, K, L]`.
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
    """Tokens to emit, on the device. Sequences with a nonzero `status` are undecided.

    Attributes:
        path: a path whose first `length` tokens are accepted, int32 `[B]`; -1 if rejected.
        length: number of accepted tokens, 0 to L, int32 `[B]`; 0 if rejected.
        next: the token after these, int64 `[B]`; -1 if rejected.
        tokens: both, int64 `[B, L + 1]`: the accepted tokens, the next one, then -1.
        status: 0; bit 1: a required row defines no distribution (NaN, +inf, or all -inf); bit 2:
            a draft token is out of range or has probability 0 in its row.
        trace: intermediate results, with `trace=True`.
    """

    path: torch.Tensor
    length: torch.Tensor
    next: torch.Tensor
    tokens: torch.Tensor
    status: torch.Tensor
    trace: Trace | None = None
