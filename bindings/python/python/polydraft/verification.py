"""Verification for engines: one call for a step, or for a whole batch of sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from ._native import Draft, Outcome, Rng, Sampling, Verifier
from .paths import VerifiedArrays, are_paths, verify_paths

if TYPE_CHECKING:
    import torch

    from ._native import _Distributions, _Integers
    from .gpu import Verified

__all__ = ["enumerate_decisions", "verify", "verify_arrays"]

Result = TypeVar("Result")
_Verifier: TypeAlias = Verifier | str | dict[str, object]


@lru_cache(maxsize=64)
def _named(name: str) -> Verifier:
    return Verifier(name)


def _verifier(verifier: _Verifier) -> Verifier:
    if isinstance(verifier, Verifier):
        return verifier
    return _named(verifier) if isinstance(verifier, str) else Verifier(verifier)


@overload
def verify(
    draft: Draft,
    target: _Distributions,
    rng: Rng | int | None = None,
    *,
    verifier: _Verifier = "nested-priority",
    sampling: Sampling | None = None,
) -> Outcome: ...


@overload
def verify(
    draft: Sequence[Draft],
    target: Sequence[_Distributions] | NDArray[np.floating],
    rng: Sequence[Rng | int] | None = None,
    *,
    verifier: _Verifier = "nested-priority",
    sampling: Sampling | None = None,
) -> list[Outcome]: ...


@overload
def verify(
    draft: tuple[torch.Tensor, torch.Tensor],
    target: torch.Tensor,
    rng: int | torch.Generator | torch.Tensor | Sequence[Rng | int] | None = None,
    *,
    verifier: _Verifier = "nested-priority",
    sampling: Sampling | None = None,
    draft_sampling: Sampling | None = None,
) -> Verified: ...


@overload
def verify(
    draft: tuple[NDArray[np.integer], NDArray[np.floating]],
    target: NDArray[np.floating],
    rng: int | Sequence[Rng | int] | None = None,
    *,
    verifier: _Verifier = "nested-priority",
    sampling: Sampling | None = None,
    draft_sampling: Sampling | None = None,
) -> VerifiedArrays: ...


def verify(
    draft: Any,
    target: Any,
    rng: Any = None,
    *,
    verifier: _Verifier = "nested-priority",
    sampling: Sampling | None = None,
    draft_sampling: Sampling | None = None,
) -> Any:
    """Decides which tokens to emit: part of a path of the draft and one more token, exactly with the target's distribution.

    Args:
        draft: a `Draft`, or a list of them for a batch. Or, for B sequences of K i.i.d. paths of L tokens each, a pair of
            numpy arrays or of torch tensors: tokens `[B, K, L]`, and the logits that they were drawn from, `[B, K, L, V]`.
        target: the target's logits at the draft's nodes, the root first: float16, float32 or float64, `[nodes, vocabulary]`.
            Only the rows that the verifier reads are normalized. Or a list of `Distribution`. For a batch a list of either, or one
            array `[batch, nodes, vocabulary]` with at least as many rows as each draft has nodes. For a pair an array or
            tensor `[B, 1 + K·L, V]`: after no token, then after path 0's first token, its first two, and so on, path by path.
        rng: an `Rng` or a seed; None for a random seed. For a batch a list, one for each sequence, so that its output does not
            depend on the others. For a pair a seed or a `torch.Generator` for all; on a GPU also the uniforms
            themselves, `[B, polydraft.gpu.uniforms_needed(..)]`, for CUDA graphs.
        verifier: a `Verifier`, or one of `polydraft.VERIFIERS`; on a GPU one of `polydraft.gpu.METHODS`.
        sampling: temperature and filters, applied to the logits.
        draft_sampling: for a pair, the sampling settings that the draft was drawn with. Default: `sampling`.

    Returns:
        An `Outcome`, or a list of them; for a pair of tensors a `polydraft.gpu.Verified` on their device; for a pair of numpy
        arrays `VerifiedArrays`, with its `path`, `length`, `next` and `tokens` as arrays. Tensors on a GPU are verified there,
        without synchronizing with the host; arrays and tensors on a CPU by the Rust core.

    Raises:
        errors.Unsupported: a verifier that is not exact for this kind of draft.
        errors.InvalidInput: logits that define no distribution (on a GPU `Verified.status` reports it), or of another shape.

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
        raise TypeError("verify: draft_sampling is for a pair of arrays: a Draft has its own sampling")
    if getattr(getattr(target, "device", None), "type", "cpu") != "cpu":
        raise TypeError(
            f"verify: with a Draft, expected the target's logits in CPU memory, got them on {target.device}; for tensors on a "
            "device give a pair in place of the Draft: (tokens [B, K, L], logits [B, K, L, V])"
        )
    resolved = _verifier(verifier)
    if isinstance(draft, Draft):
        return resolved.verify(draft, target, rng, sampling)
    if not isinstance(draft, (list, tuple)) or not all(isinstance(one, Draft) for one in draft):
        kinds = sorted({type(one).__name__ for one in draft}) if isinstance(draft, (list, tuple)) else [type(draft).__name__]
        raise TypeError(
            "verify: draft: expected a Draft, a list of them, or a pair of arrays or tensors (tokens [B, K, L], logits "
            f"[B, K, L, V]), got {' and '.join(kinds)}"
        )
    drafts = list(draft)
    rngs = [None] * len(drafts) if rng is None else rng
    if isinstance(rngs, (int, Rng)):
        raise TypeError(f"verify: expected a list of {len(drafts)} rngs for a batch, got one")
    fresh = [_random_seed() if one is None else one for one in rngs]
    return resolved.verify_batch(drafts, target, fresh, sampling)


def verify_arrays(
    tokens: _Integers,
    parents: _Integers,
    draft: _Distributions,
    target: _Distributions,
    rng: Rng | int | None = None,
    *,
    counts: _Integers | None = None,
    scheme: str = "iid",
    begins: Sequence[bool] | None = None,
    verifier: _Verifier = "nested-priority",
    sampling: Sampling | None = None,
    draft_sampling: Sampling | None = None,
) -> Outcome:
    """Verifies one step given as arrays: `Draft.given`, which describes them, then `verify`.

    `draft` and `target` are logits by node, `[nodes, vocabulary]`; `sampling` applies to the target, `draft_sampling` is the
    one that the tokens were drawn with (default: `sampling`).

    >>> import numpy as np
    >>> logits = np.zeros((3, 4), dtype=np.float32)
    >>> verify_arrays([0, 2, 3], [-1, 0, 1], logits, logits, rng=3).accepted
    [1, 2]
    """
    drawn = sampling if draft_sampling is None else draft_sampling
    given = Draft.given(tokens, parents, draft, counts=counts, scheme=scheme, begins=begins, sampling=drawn)
    return _verifier(verifier).verify(given, target, rng, sampling)


def enumerate_decisions(experiment: Callable[[Rng], Result]) -> list[tuple[float, Result]]:
    """Runs an experiment once for every sequence of random decisions that it can draw from its rng.

    Returns each run's exact probability and result; the probabilities sum to 1. Between runs, nothing but these decisions may
    change the result.

    >>> heads = enumerate_decisions(lambda rng: sum(rng.coin(0.5) for _ in range(3)))
    >>> sum(probability for probability, count in heads if count == 3)
    0.125
    """
    rng = Rng.every()
    runs = []
    while True:
        result = experiment(rng)
        # An `Rng.every` always has a probability.
        runs.append((rng.probability or 0.0, result))
        if not rng.advance():
            return runs


def _random_seed() -> int:
    import secrets

    return secrets.randbits(64)
