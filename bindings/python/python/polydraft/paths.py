"""Verification of paths in arrays: numpy's and torch's on a CPU by the Rust core, others on the tensors' device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ._native import Draft, Rng, Sampling, Verifier

if TYPE_CHECKING:
    import torch

    from .gpu import Sampling as DeviceSampling
    from .gpu import Verified

__all__ = ["VerifiedArrays", "are_paths", "verify_paths"]

_Array: TypeAlias = "NDArray[np.generic] | torch.Tensor"
_Rngs: TypeAlias = "Rng | int | torch.Generator | torch.Tensor | Sequence[Rng | int] | None"


class VerifiedArrays(NamedTuple):
    """Tokens to emit for B sequences of paths given as numpy arrays.

    Attributes:
        path: a path whose first `length` tokens are accepted, int32 `[B]`.
        length: number of accepted tokens, 0 to L, int32 `[B]`.
        next: the token after these, int64 `[B]`.
        tokens: both, int64 `[B, L + 1]`: the accepted tokens, the next one, then -1.
    """

    path: NDArray[np.int32]
    length: NDArray[np.int32]
    next: NDArray[np.int64]
    tokens: NDArray[np.int64]


def are_paths(draft: object) -> bool:
    """Whether `draft` is a pair of arrays or tensors, tokens and logits."""
    return isinstance(draft, tuple) and len(draft) == 2 and any(_kind(part) for part in draft)


def _kind(value: object) -> str | None:
    if isinstance(value, np.ndarray):
        return "numpy array"
    return "torch tensor" if hasattr(value, "is_floating_point") and hasattr(value, "device") else None


def verify_paths(
    draft: tuple[_Array, _Array],
    target: _Array,
    rng: _Rngs,
    verifier: Verifier | str | dict[str, object],
    sampling: Sampling | None,
    draft_sampling: Sampling | None,
) -> Verified | VerifiedArrays:
    """Implements `polydraft.verify` for a pair of arrays or tensors."""
    tokens, logits = draft
    parts = (tokens, logits, target)
    kinds = {_kind(part) for part in parts}
    if len(kinds) > 1 or None in kinds:
        got = ", ".join(_kind(part) or type(part).__name__ for part in parts)
        raise TypeError(
            f"verify: expected tokens, draft logits and target logits all as numpy arrays or all as tensors, got {got}"
        )
    if isinstance(tokens, np.ndarray) and isinstance(logits, np.ndarray) and isinstance(target, np.ndarray):
        return _verify_arrays(tokens, logits, target, rng, verifier, sampling, draft_sampling)
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = (tokens, logits, target)  # type: ignore[assignment]
    devices = [part.device for part in tensors]
    if len(set(devices)) > 1:
        got = "{}, {} and {}".format(*devices)
        raise TypeError(f"verify: expected tokens, draft logits and target logits on one device, got {got}")
    decide = _by_rust if devices[0].type == "cpu" else _on_device
    return decide(*tensors, rng, verifier, sampling, draft_sampling)


def _on_device(
    tokens: torch.Tensor,
    logits: torch.Tensor,
    target: torch.Tensor,
    rng: _Rngs,
    verifier: Verifier | str | dict[str, object],
    sampling: Sampling | None,
    draft_sampling: Sampling | None,
) -> Verified:
    import torch

    from . import gpu
    from .gpu.rows import wide

    name = verifier.name if isinstance(verifier, Verifier) else verifier
    if not isinstance(name, str) or name not in gpu.METHODS:
        known = ", ".join(gpu.METHODS)
        raise ValueError(f"verify: tensors on a device: expected one of the verifiers {known}, got {name!r}")
    if isinstance(rng, torch.Tensor):
        uniforms = rng
    else:
        generator = rng if isinstance(rng, torch.Generator) else None
        if isinstance(rng, int):
            generator = torch.Generator(tokens.device).manual_seed(rng % 2**63)
        elif rng is not None and generator is None:
            raise TypeError(
                f"verify: tensors on a device: expected a seed, a torch.Generator or uniforms, got {type(rng).__name__}"
            )
        _check(tokens, tokens.is_floating_point())
        shape = (tokens.shape[0], gpu.uniforms_needed(name, *tokens.shape[1:]))
        uniforms = torch.rand(shape, dtype=wide(tokens.device), device=tokens.device, generator=generator)
    target_sampling = _sampling(sampling)
    drafted = _sampling(draft_sampling) or target_sampling
    return gpu.verify(name, tokens, logits, target, uniforms, sampling=target_sampling, draft_sampling=drafted)


def _sampling(sampling: Sampling | DeviceSampling | None) -> DeviceSampling | None:
    from .gpu import Sampling as OnDevice

    if sampling is None or isinstance(sampling, OnDevice):
        return sampling
    return OnDevice(sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)


def _check(tokens: _Array, is_floating_point: bool) -> None:
    shape = list(tokens.shape)
    if len(shape) == 3 and 0 not in shape and not is_floating_point:
        return
    hint = "; for one sequence, add a dimension to all three arrays: tokens[None]" if len(shape) == 2 else ""
    raise ValueError(
        f"verify: tokens must be integers [B, K, L] (sequences, paths, tokens), none of them 0, got {tokens.dtype} {shape}{hint}"
    )


def _by_rust(
    tokens: torch.Tensor,
    logits: torch.Tensor,
    target: torch.Tensor,
    rng: _Rngs,
    verifier: Verifier | str | dict[str, object],
    sampling: Sampling | None,
    draft_sampling: Sampling | None,
) -> Verified:
    import torch

    from .gpu import Verified

    _check(tokens, tokens.is_floating_point())
    arrays = [_to_numpy(part) for part in (tokens, logits, target)]
    found = _verify_arrays(arrays[0], arrays[1], arrays[2], rng, verifier, sampling, draft_sampling)
    path, length, following, output = (torch.from_numpy(part) for part in found)
    return Verified(path, length, following, output, torch.zeros(len(path), dtype=torch.int32))


def _verify_arrays(
    tokens: NDArray[np.generic],
    logits: NDArray[np.generic],
    target: NDArray[np.generic],
    rng: _Rngs,
    verifier: Verifier | str | dict[str, object],
    sampling: Sampling | None,
    draft_sampling: Sampling | None,
) -> VerifiedArrays:
    _check(tokens, not np.issubdtype(tokens.dtype, np.integer))
    batch, paths, length = tokens.shape
    shapes = {"draft": (logits, (batch, paths, length)), "target": (target, (batch, 1 + paths * length))}
    for name, (rows, shape) in shapes.items():
        if tuple(rows.shape[:-1]) != shape:
            want, got = (", ".join(map(str, sizes)) for sizes in ((*shape, "V"), rows.shape))
            raise ValueError(f"verify: {name} must be [{want}], got [{got}], for tokens {list(tokens.shape)}")
    if logits.shape[-1] != target.shape[-1]:
        raise ValueError(
            f"verify: expected one vocabulary for draft and target, got {logits.shape[-1]} and {target.shape[-1]} logits"
        )
    drafts, rows_of = [], []
    for row in range(batch):
        draft = Draft.from_paths(tokens[row], logits[row], sampling=draft_sampling or sampling)
        # A node's row is that of the first path through it.
        indices = [0]
        for node in range(1, len(draft)):
            drafted = [int(draft.tokens[step]) for step in draft.path(node)]
            first = next(k for k in range(paths) if tokens[row, k, : len(drafted)].tolist() == drafted)
            indices.append(first * length + len(drafted))
        drafts.append(draft)
        rows_of.append(target[row, indices])
    resolved = verifier if isinstance(verifier, Verifier) else Verifier(verifier)
    outcomes = resolved.verify_batch(drafts, rows_of, _rngs(rng, batch), sampling)

    output = np.full((batch, length + 1), -1, dtype=np.int64)
    path, count = np.zeros(batch, dtype=np.int32), np.zeros(batch, dtype=np.int32)
    for row, outcome in enumerate(outcomes):
        emitted = list(outcome.tokens)
        accepted = emitted[:-1]
        output[row, : len(emitted)] = emitted
        count[row] = len(accepted)
        path[row] = next(k for k in range(paths) if tokens[row, k, : len(accepted)].tolist() == accepted)
    return VerifiedArrays(path, count, output[np.arange(batch), count], output)


def _to_numpy(rows: torch.Tensor) -> NDArray[np.generic]:
    import torch

    rows = rows.detach()
    # numpy has no bfloat16.
    return (rows.float() if rows.dtype == torch.bfloat16 else rows).numpy()


def _rngs(rng: _Rngs, batch: int) -> Sequence[Rng | int]:
    """Returns a generator or seed for each sequence."""
    import secrets

    if rng is None:
        return [secrets.randbits(64) for _ in range(batch)]
    if isinstance(rng, (int, np.integer)):
        return [int(seed) for seed in np.random.SeedSequence(int(rng) % 2**64).generate_state(batch, np.uint64)]
    if isinstance(rng, (list, tuple)) and len(rng) == batch:
        return rng
    if type(rng).__module__.partition(".")[0] == "torch":
        import torch

        if isinstance(rng, torch.Generator):
            return [int(seed) for seed in torch.randint(2**62, (batch,), generator=rng)]
    got = type(rng).__name__
    raise TypeError(f"verify: arrays on a CPU: expected a seed, a torch.Generator or a list of {batch} rngs, got {got}")
