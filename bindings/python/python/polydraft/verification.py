"""Verification for engines: one call for a step, or for a whole batch of sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, overload

from ._native import Draft, Outcome, Rng, Sampling, Verifier
from .paths import are_paths, verify_paths

if TYPE_CHECKING:
    import torch

    from .gpu import Verified

__all__ = ["enumerate_decisions", "verify", "verify_arrays"]

Result = TypeVar("Result")


@lru_cache(maxsize=64)
def _named(name: str) -> Verifier:
    return Verifier(name)


def _verifier(verifier: Verifier | str | dict) -> Verifier:
    if isinstance(verifier, Verifier):
        return verifier
    return _named(verifier) if isinstance(verifier, str) else Verifier(verifier)


@overload
def verify(
    draft: Draft,
    target: Any,
    rng: Rng | int | None = None,
    *,
    verifier: Verifier | str | dict = "nested-priority",
    sampling: Sampling | None = None,
) -> Outcome: ...


@overload
def verify(
    draft: Sequence[Draft],
    target: Any,
    rng: Sequence[Rng | int] | None = None,
    *,
    verifier: Verifier | str | dict = "nested-priority",
    sampling: Sampling | None = None,
) -> list[Outcome]: ...


@overload
def verify(
    draft: tuple[torch.Tensor, torch.Tensor],
    target: torch.Tensor,
    rng: Any = None,
    *,
    verifier: Verifier | str | dict = "nested-priority",
    sampling: Sampling | None = None,
    draft_sampling: Sampling | None = None,
) -> Verified: ...


def verify(
    draft: Any,
    target: Any,
    rng: Any = None,
    *,
    verifier: Verifier | str | dict = "nested-priority",
    sampling: Sampling | None = None,
    draft_sampling: Sampling | None = None,
) -> Any:
    """Decides what to emit: a path of the draft and one more token, with exactly the target's distribution.

    Args:
        draft: a `Draft`; or a list of them, for a batch. Or, for B sequences of K i.i.d. paths of L tokens each, a pair of
            torch tensors: tokens `[B, K, L]`, and the logits that they were drawn from, `[B, K, L, V]`.
        target: the target's logits at the draft's nodes, the root first: float32 or float64, `[nodes, vocabulary]`. They are
            made into distributions only where the verifier looks. Or a list of `Distribution`. For a batch a list of such, or one
            array `[batch, nodes, vocabulary]` with at least as many rows as each draft has nodes. For a pair of tensors a
            tensor `[B, 1 + K·L, V]`: after no token, then after path 0's first token, its first two, and so on, path by path.
        rng: an `Rng`, or a seed; none for one that nobody has seen before. For a batch a list: each sequence has its own,
            so that what it gets does not depend on the others. For a pair of tensors a seed or a `torch.Generator` for all; on
            a GPU also the uniforms themselves, `[B, polydraft.gpu.uniforms_needed(..)]`, for CUDA graphs.
        verifier: a `Verifier`, or one of `polydraft.VERIFIERS`; on a GPU one of `polydraft.gpu.METHODS`.
        sampling: temperature and filters, applied to the logits.
        draft_sampling: for a pair of tensors, those that the draft was drawn with. Default: as `sampling`.

    Returns:
        An `Outcome`, or a list of them; for a pair of tensors a `polydraft.gpu.Verified`, on their device. Tensors on a GPU are
        decided there, without waiting for it; on a CPU by the Rust core.

    Raises:
        errors.Unsupported: a verifier that is not exact for such a draft.
        errors.InvalidInput: logits that make no distribution, or of another shape; on a GPU `Verified.status` says the former.

    >>> import numpy as np
    >>> logits = np.log(np.array([[0.5, 0.3, 0.2]], dtype=np.float32))
    >>> draft = Draft.from_paths([[0, 1], [2, 1]], np.zeros((2, 2, 3), dtype=np.float32))
    >>> outcome = verify(draft, logits.repeat(len(draft), axis=0), rng=1)
    >>> len(outcome.tokens) == len(outcome.accepted) + 1
    True
    """
    if are_paths(draft):
        return verify_paths(draft, target, rng, verifier, sampling, draft_sampling)
    if draft_sampling is not None:
        raise TypeError("verify: draft_sampling is for a pair of tensors: a Draft knows what it was drawn with")
    if getattr(getattr(target, "device", None), "type", "cpu") != "cpu":
        raise TypeError(
            f"verify: expected the target's logits in the CPU's memory beside a Draft, got them on {target.device}; for tensors "
            "there give a pair in place of the Draft: (tokens [B, K, L], logits [B, K, L, V])"
        )
    working = _verifier(verifier)
    if isinstance(draft, Draft):
        return working.verify(draft, target, rng, sampling)
    drafts = list(draft)
    rngs = [None] * len(drafts) if rng is None else rng
    if isinstance(rngs, (int, Rng)):
        raise TypeError(f"verify: expected a list of {len(drafts)} rngs for a batch, got one")
    fresh = [_unseen() if one is None else one for one in rngs]
    return working.verify_batch(drafts, target, fresh, sampling)


def verify_arrays(
    tokens: Any,
    parents: Any,
    draft: Any,
    target: Any,
    rng: Rng | int | None = None,
    *,
    counts: Any = None,
    scheme: str = "iid",
    begins: Sequence[bool] | None = None,
    verifier: Verifier | str | dict = "nested-priority",
    sampling: Sampling | None = None,
    draft_sampling: Sampling | None = None,
) -> Outcome:
    """One step from arrays alone: `Draft.given`, which says what they are, and `verify`.

    `draft` and `target` are logits by node, `[nodes, vocabulary]`; `sampling` is the target's, `draft_sampling` that with which
    the tokens were drawn (default: the same).

    >>> import numpy as np
    >>> logits = np.zeros((3, 4), dtype=np.float32)
    >>> verify_arrays([0, 2, 3], [-1, 0, 1], logits, logits, rng=3).accepted
    [1, 2]
    """
    drawn = sampling if draft_sampling is None else draft_sampling
    given = Draft.given(tokens, parents, draft, counts=counts, scheme=scheme, begins=begins, sampling=drawn)
    return _verifier(verifier).verify(given, target, rng, sampling)


def enumerate_decisions(experiment: Callable[[Rng], Result]) -> list[tuple[float, Result]]:
    """Runs an experiment once for every series of random decisions that it asks its rng for.

    Gives each run's exact probability and result; the probabilities sum to 1. The experiment must depend on nothing that
    changes between runs but the decisions.

    >>> heads = enumerate_decisions(lambda rng: sum(rng.coin(0.5) for _ in range(3)))
    >>> sum(probability for probability, count in heads if count == 3)
    0.125
    """
    rng = Rng.every()
    runs = []
    while True:
        result = experiment(rng)
        # One that goes through all decisions always has one.
        runs.append((rng.probability or 0.0, result))
        if not rng.advance():
            return runs


def _unseen() -> int:
    import secrets

    return secrets.randbits(64)
