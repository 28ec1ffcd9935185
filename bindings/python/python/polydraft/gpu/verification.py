"""Lossless verification of batches of drafted paths on a device.

Problem, sources and deviations: by method in `kernels.paths`, `kernels.rejection` and
`kernels.finish`.
Cost: one read of each distinct node's two rows for the pooled methods, one of the rows along one
path for the residual; launches: five to eight, none of which waits for the host.
"""

from __future__ import annotations

import torch

from . import backend
from .distributions import distributions
from .methods import METHODS, Method, Request, Verified
from .rows import Rows
from .sampling import Sampling

__all__ = ["uniforms_needed", "verify"]


def uniforms_needed(method: str, paths: int, length: int) -> int:
    """How many uniforms a sequence of `paths` paths of `length` tokens needs.

    >>> uniforms_needed("nested-priority", 4, 4)
    13
    """
    return method_of(method).coins(paths, length) + length + 1


def method_of(name: str) -> Method:
    """The method of this name."""
    try:
        return Method(name)
    except ValueError:
        known = ", ".join(METHODS)
        raise ValueError(f"verify: no method {name!r}; there are {known}") from None


def verify(
    method: str,
    tokens: torch.Tensor,
    draft: Rows | torch.Tensor,
    target: Rows | torch.Tensor,
    uniforms: torch.Tensor,
    *,
    sampling: Sampling | None = None,
    draft_sampling: Sampling | None = None,
    knots: int = 32,
    cells: int = 128,
    trace: bool = False,
    forced: torch.Tensor | None = None,
) -> Verified:
    """Decides what to emit: part of one path and one more token, with the target's distribution.

    The K paths of a sequence are independent draws from the draft. Where paths begin alike they
    are one node, and only the rows of the first path that comes there are read.

    Args:
        method: one of `METHODS`. `token` and `block` verify one path.
        tokens: integers `[B, K, L]`.
        draft: the logits that each token was drawn from, `[B, K, L, V]`, or their `Rows`.
        target: the target's logits, `[B, 1 + K·L, V]`, or their `Rows`: after no token, then
            after path 0's first token, its first two, and so on, path by path.
        uniforms: independent, in [0, 1), `[B, uniforms_needed(method, K, L)]`; float64 is best.
        sampling: temperature and filters of the target, if it is given as logits.
        draft_sampling: those that the draft was drawn with. Default: as `sampling`.
        knots: pooled methods: into how many ratios tokens are pooled; a power of two from 8.
        cells: nested-priority: into how many parts priorities are divided; a power of two.
        trace: whether to say what the decision was made from.
        forced: for proofs, int32 `[B, 2]`: path and length to take instead of deciding.

    Returns:
        `Verified`, on the device. Everything is queued on the current stream and can be captured
        in a CUDA graph. `knots` and `cells` change how much is accepted, never what is emitted.

    Raises:
        ValueError: shapes that do not fit each other, or several paths for a method of one.

    Sources: Leviathan et al. 2023 (token), Sun et al. 2024 (block), Miao et al. 2023 (specinfer),
    Sun et al. 2023 (spectr); walk:priority and nested-priority are ours (docs/papers.md).
    """
    chosen = method_of(method)
    request = check(chosen, tokens, draft, target, uniforms, sampling, draft_sampling)
    if knots < 8 or knots & (knots - 1):
        raise ValueError(f"verify: knots must be a power of two from 8, got {knots}")
    if cells < 2 or cells & (cells - 1):
        raise ValueError(f"verify: cells must be a power of two from 2, got {cells}")
    request.knots, request.cells, request.trace = knots, cells, trace
    if forced is not None:
        request.forced = forced.to(torch.int32).contiguous()
    return backend.of(request.target.logits).verify(request)


def check(
    method: Method,
    tokens: torch.Tensor,
    draft: Rows | torch.Tensor,
    target: Rows | torch.Tensor,
    uniforms: torch.Tensor,
    sampling: Sampling | None,
    draft_sampling: Sampling | None,
) -> Request:
    """A request whose shapes fit each other."""
    if tokens.dim() != 3 or 0 in tokens.shape or tokens.is_floating_point():
        got = f"{tokens.dtype} {list(tokens.shape)}"
        raise ValueError(f"verify: tokens must be integers [B, K, L], got {got}")
    b, k, l = tokens.shape
    if method.single and k != 1:
        raise ValueError(f"verify: {method.value} verifies one path a sequence, got {k}")
    expected = {"draft": (b, k, l), "target": (b, 1 + k * l)}
    given = {}
    for name, rows in (("draft", draft), ("target", target)):
        shape = tuple(rows.shape if isinstance(rows, Rows) else rows.shape[:-1])
        if shape != expected[name]:
            want = ", ".join(map(str, expected[name]))
            got = ", ".join(map(str, shape))
            raise ValueError(f"verify: {name} must be [{want}, V], got [{got}, V]")
    for name, rows in (("draft", draft), ("target", target)):
        if not isinstance(rows, Rows):
            own = sampling if name == "target" or draft_sampling is None else draft_sampling
            rows = distributions(rows, own)
        given[name] = rows
    if given["draft"].vocabulary != given["target"].vocabulary:
        sizes = f"{given['draft'].vocabulary} and {given['target'].vocabulary}"
        raise ValueError(f"verify: draft and target must have one vocabulary, got {sizes}")
    if given["draft"].block != given["target"].block:
        raise ValueError("verify: the rows of draft and target must have blocks of one size")
    needed = method.coins(k, l) + l + 1
    if tuple(uniforms.shape) != (b, needed):
        raise ValueError(f"verify: uniforms must be [{b}, {needed}], got {list(uniforms.shape)}")
    return Request(
        method, tokens.contiguous(), given["draft"], given["target"], uniforms.contiguous(),
        32, 128, False, None)
