"""Verification of paths in torch tensors: on the tensors' device, or by the Rust core on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ._native import Draft, Rng, Sampling, Verifier

if TYPE_CHECKING:
    import torch

    from .gpu import Verified

__all__ = ["are_paths", "verify_paths"]


def are_paths(draft: Any) -> bool:
    """Whether `draft` is a pair of torch tensors, tokens and logits."""
    return isinstance(draft, tuple) and len(draft) == 2 and all(hasattr(part, "is_floating_point") for part in draft)


def verify_paths(
    draft: tuple[Any, Any],
    target: Any,
    rng: Any,
    verifier: Verifier | str | dict,
    sampling: Sampling | None,
    draft_sampling: Sampling | None,
) -> Verified:
    """Implements `polydraft.verify` for a pair of tensors."""
    tokens, logits = draft
    if target.device != tokens.device or logits.device != tokens.device:
        got = f"{tokens.device}, {logits.device} and {target.device}"
        raise TypeError(f"verify: expected tokens, draft logits and target logits on one device, got {got}")
    decide = _by_rust if tokens.device.type == "cpu" else _on_device
    return decide(tokens, logits, target, rng, verifier, sampling, draft_sampling)


def _on_device(
    tokens: torch.Tensor,
    logits: torch.Tensor,
    target: torch.Tensor,
    rng: Any,
    verifier: Verifier | str | dict,
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
        _check(tokens)
        shape = (tokens.shape[0], gpu.uniforms_needed(name, *tokens.shape[1:]))
        uniforms = torch.rand(shape, dtype=wide(tokens.device), device=tokens.device, generator=generator)
    target_sampling = _sampling(sampling)
    drafted = _sampling(draft_sampling) or target_sampling
    return gpu.verify(name, tokens, logits, target, uniforms, sampling=target_sampling, draft_sampling=drafted)


def _sampling(sampling: Sampling | None) -> Any:
    from .gpu import Sampling as OnDevice

    if sampling is None or isinstance(sampling, OnDevice):
        return sampling
    return OnDevice(sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)


def _check(tokens: torch.Tensor) -> None:
    if tokens.dim() != 3 or 0 in tokens.shape or tokens.is_floating_point():
        raise ValueError(f"verify: tokens must be integers [B, K, L], got {tokens.dtype} {list(tokens.shape)}")


def _by_rust(
    tokens: torch.Tensor,
    logits: torch.Tensor,
    target: torch.Tensor,
    rng: Any,
    verifier: Verifier | str | dict,
    sampling: Sampling | None,
    draft_sampling: Sampling | None,
) -> Verified:
    import torch

    from .gpu import Verified

    _check(tokens)
    batch, paths, length = tokens.shape
    shapes = {"draft": (logits, (batch, paths, length)), "target": (target, (batch, 1 + paths * length))}
    for name, (rows, shape) in shapes.items():
        if tuple(rows.shape[:-1]) != shape:
            want, got = (", ".join(map(str, sizes)) for sizes in (shape, rows.shape[:-1]))
            raise ValueError(f"verify: {name} must be [{want}, V], got [{got}, V]")
    all_tokens, draft_rows, target_rows = tokens.numpy(), _float_array(logits), _float_array(target)
    drafts, rows_of = [], []
    for row in range(batch):
        draft = Draft.from_paths(all_tokens[row], draft_rows[row], sampling=draft_sampling or sampling)
        # A node's row is that of the first path through it.
        indices = [0]
        for node in range(1, len(draft)):
            drafted = [int(draft.tokens[step]) for step in draft.path(node)]
            first = next(k for k in range(paths) if all_tokens[row, k, : len(drafted)].tolist() == drafted)
            indices.append(first * length + len(drafted))
        drafts.append(draft)
        rows_of.append(target_rows[row, indices])
    resolved = verifier if isinstance(verifier, Verifier) else Verifier(verifier)
    outcomes = resolved.verify_batch(drafts, rows_of, _rngs(rng, batch), sampling)

    output = torch.full((batch, length + 1), -1, dtype=torch.int64)
    path, count = torch.zeros(batch, dtype=torch.int32), torch.zeros(batch, dtype=torch.int32)
    for row, outcome in enumerate(outcomes):
        emitted = list(outcome.tokens)
        accepted = emitted[:-1]
        output[row, : len(emitted)] = torch.tensor(emitted)
        count[row] = len(accepted)
        path[row] = next(k for k in range(paths) if all_tokens[row, k, : len(accepted)].tolist() == accepted)
    following = output.gather(1, count[:, None].long())[:, 0]
    return Verified(path, count, following, output, torch.zeros(batch, dtype=torch.int32))


def _float_array(rows: torch.Tensor) -> Any:
    import torch

    return (rows if rows.dtype in (torch.float32, torch.float64) else rows.float()).numpy()


def _rngs(rng: Any, batch: int) -> Sequence[Rng | int]:
    """Returns a generator or seed for each sequence."""
    import secrets

    import numpy as np
    import torch

    if rng is None:
        return [secrets.randbits(64) for _ in range(batch)]
    if isinstance(rng, int):
        return [int(seed) for seed in np.random.SeedSequence(rng % 2**64).generate_state(batch, np.uint64)]
    if isinstance(rng, torch.Generator):
        return [int(seed) for seed in torch.randint(2**62, (batch,), generator=rng)]
    if isinstance(rng, (list, tuple)) and len(rng) == batch:
        return rng
    got = type(rng).__name__
    raise TypeError(f"verify: tensors on a CPU: expected a seed, a torch.Generator or a list of {batch} rngs, got {got}")
