"""Lossless verification of batches of drafted paths on a device.

Problem, sources and deviations: for each method in `kernels.paths`, `kernels.rejection` and
`kernels.finish`.
Cost: one read of both rows of each distinct node for the pooled methods, and one of the rows along
one path for the residual; five to eight launches without synchronization.
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
    """Returns the number of uniforms for a sequence of `paths` paths of `length` tokens.

    >>> uniforms_needed("nested-priority", 4, 4)
    13
    """
    return method_of(method).coins(paths, length) + length + 1


def method_of(name: str) -> Method:
    """Returns the method of this name."""
    try:
        return Method(name)
    except ValueError:
        known = ", ".join(METHODS)
        raise ValueError(f"verify: unknown method {name!r}, expected one of {known}") from None


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
    """Decides which tokens to emit: part of one path and one more token, with the target's
    distribution.

    The K paths of a sequence are independent draws from the draft. A common prefix of paths is one
    node, for which only the rows of the first path through it are read.

    Args:
        method: one of `METHODS`. `token` and `block` verify one path.
        tokens: integers `[B, K, L]`.
        draft: the logits that each token was drawn from, `[B, K, L, V]`, or their `Rows`.
        target: the target's logits, `[B, 1 + K·L, V]`, or their `Rows`: after no token, then
            after path 0's first token, its first two, and so on, path by path.
        uniforms: independent, in [0, 1), `[B, uniforms_needed(method, K, L)]`; float64 is best.
        sampling: temperature and filters of the target, if given as logits.
        draft_sampling: sampling that the draft was drawn with. Default: `sampling`.
        knots: pooled methods: number of pooled ratios; a power of two from 8.
        cells: nested-priority: number of cells of the priorities; a power of two.
        trace: whether to return the decision's intermediate results.
        forced: for proofs, int32 `[B, 2]`: path and length to take instead of deciding.

    Returns:
        `Verified`, on the device. Everything is queued on the current stream and can be captured
        in a CUDA graph. `knots` and `cells` affect acceptance, never the output's distribution.

    Raises:
        ValueError: inconsistent shapes, or several paths for a single-path method.

    Sources: Leviathan et al. 2023 (token), Sun et al. 2024 (block), Miao et al. 2023 (specinfer),
    Sun et al. 2023 (spectr); walk:priority and nested-priority are new (docs/papers.md).
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
    """Checks that shapes are consistent and returns a request."""
    if tokens.dim() != 3 or 0 in tokens.shape or tokens.is_floating_point():
        got = f"{tokens.dtype} {list(tokens.shape)}"
        raise ValueError(f"verify: tokens must be integers [B, K, L], got {got}")
    b, k, l = tokens.shape
    if method.single and k != 1:
        raise ValueError(f"verify: {method.value} verifies one path for a sequence, got {k}")
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
            settings = sampling if name == "target" or draft_sampling is None else draft_sampling
            rows = distributions(rows, settings)
        given[name] = rows
    if given["draft"].vocabulary != given["target"].vocabulary:
        sizes = f"{given['draft'].vocabulary} and {given['target'].vocabulary}"
        raise ValueError(f"verify: draft and target must share a vocabulary size, got {sizes}")
    if given["draft"].block != given["target"].block:
        raise ValueError("verify: the rows of draft and target must have the same block size")
    needed = method.coins(k, l) + l + 1
    if tuple(uniforms.shape) != (b, needed):
        raise ValueError(f"verify: uniforms must be [{b}, {needed}], got {list(uniforms.shape)}")
    return Request(
        method, tokens.contiguous(), given["draft"], given["target"], uniforms.contiguous(),
        32, 128, False, None)
