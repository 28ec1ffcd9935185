"""Launches the kernels, without synchronizing and without reading their results.

Launch shapes depend on the tensors' shapes alone, so that a CUDA graph can capture all launches.
"""

from __future__ import annotations

import torch
import triton

from ..methods import Method, Request, Trace, Verified
from ..rows import Rows
from ..sampling import Sampling
from . import filters, finish, paths, pool, rejection, rows
from .memory import Work, columns, new, power_of_2

# Tokens and warps of a program, by kernel; chosen with `research/bench/gpu/kernels.py`.
BLOCK = 4096
# None: chosen by `pool_sizes`.
SPLIT: int | None = None
CHUNK: int | None = None
WARPS: dict[str, int | None] = {
    "partials": 8, "draw": 8, "pool": None, "paths": 8, "residual": 8, "emit": 8}
FEW_NODES = 128


def pool_sizes(nodes: int) -> tuple[int, int, int]:
    """Returns the tokens of a program of `pool_kernel` and of one loop iteration, and its warps.

    With few nodes, more programs with fewer warps are faster; with many, longer programs are
    (research/records/2026-11-27-h100-gpu-kernels.json, `pools`: the three sizes tried together).
    """
    split, chunk, warps = (2048, 128, 2) if nodes <= FEW_NODES else (8192, 128, 4)
    return SPLIT or split, CHUNK or chunk, WARPS["pool"] or warps


def distributions(
    logits: torch.Tensor, shape: torch.Size, sampling: Sampling, block: int | None
) -> Rows:
    """See `polydraft.gpu.distributions`."""
    count, vocabulary = logits.shape
    block = min(BLOCK, power_of_2(vocabulary)) if block is None else block
    blocks = triton.cdiv(vocabulary, block)
    f, i, d = torch.float32, torch.int32, torch.float64
    given = sampling.rates(shape, logits.device)
    part_top, part_sum = new(logits, (count, blocks), f), new(logits, (count, blocks), f)
    part_at, part_bad = new(logits, (count, blocks), i), new(logits, (count, blocks), i)
    rows.partials_kernel[(count, blocks)](
        logits, logits.stride(0), vocabulary, given, part_top, part_sum, part_at, part_bad, blocks,
        BLOCK=block, num_warps=WARPS["partials"])
    made = Rows(
        logits, shape, new(logits, (count,), f), new(logits, (count,), f),
        new(logits, (count,), i), new(logits, (count,), f), new(logits, (count,), d),
        new(logits, (count, blocks), f), new(logits, (count,), i), new(logits, (count,), i), block,
        sampling)
    rows.join_kernel[(count,)](
        given, part_top, part_sum, part_at, part_bad, vocabulary, blocks, made.tops, made.cuts,
        made.lasts, made.rates, made.totals, made.status, made.masses, made.arguments,
        BLOCK=block, BLOCKS=power_of_2(blocks), num_warps=1)
    if any(sampling.filters):
        filters.narrow(made, given)
        rows.masses_kernel[(count, blocks)](
            logits, logits.stride(0), vocabulary, made.tops, made.cuts, made.lasts, made.rates,
            made.masses, blocks, BLOCK=block, num_warps=WARPS["partials"])
        rows.totals_kernel[(count,)](
            made.masses, made.totals, blocks, BLOCKS=power_of_2(blocks), num_warps=1)
    return made


def draw(given: Rows, uniforms: torch.Tensor) -> torch.Tensor:
    """See `polydraft.gpu.draw`; uniforms are `[rows, n]`."""
    count, draws = uniforms.shape
    blocks = given.masses.shape[1]
    tokens = new(given.logits, (count, draws), torch.int64)
    rows.draw_kernel[(count, draws)](
        given.logits, given.logits.stride(0), given.vocabulary, given.tops, given.cuts,
        given.lasts, given.rates, given.masses, blocks, given.status, uniforms, draws, tokens,
        BLOCK=given.block, BLOCKS=power_of_2(blocks), num_warps=WARPS["draw"])
    return tokens


def verify(request: Request) -> Verified:
    """See `polydraft.gpu.verify`."""
    method, b, k, l = request.method, request.batch, request.paths, request.length
    draft, target = request.draft, request.target
    sizes = {"K": k, "L": l, "KP": power_of_2(k), "LP": power_of_2(l + 1)}
    uniforms, width = request.uniforms, request.uniforms.shape[1]
    vocabulary = target.vocabulary
    nothing = new(target.logits, (1,), torch.float32)
    work = prepare(request, sizes, nothing)
    choice, cover = {
        Method.TOKEN: (finish.WALK, finish.CONSTANT),
        Method.BLOCK: (finish.CHAIN, finish.CONSTANT),
        Method.WALK_PRIORITY: (finish.WALK, finish.POOLED),
        Method.NESTED_PRIORITY: (finish.HIGHEST, finish.POOLED),
        Method.SPECINFER: (finish.WALK, finish.CONSTANT),
        Method.SPECTR: (finish.WALK, finish.K_SEQ),
    }[method]
    choice, cover = choice.value, cover.value
    levels = 1 if choice == finish.WALK.value else l
    blocks = target.masses.shape[1]
    left = new(target.logits, (b * levels, blocks), torch.float64)
    forced = nothing if request.forced is None else request.forced
    common = sizes | {"NK": request.knots, "LEVELS": levels, "CHOICE": choice, "COVER": cover,
                      "FORCED": request.forced is not None, "BLOCK": target.block}
    both = columns(draft) + columns(target)
    finish.residual_kernel[(b * levels, blocks)](
        *both, request.tokens, vocabulary, blocks, uniforms, width, method.coins(k, l),
        work.ratios, work.priorities, work.accepts, work.gains, work.tails, work.rhos, forced,
        left, **common, num_warps=WARPS["residual"])
    out = Verified(
        new(left, (b,), torch.int32), new(left, (b,), torch.int32), new(left, (b,), torch.int64),
        new(left, (b, l + 1), torch.int64), new(left, (b,), torch.int32), None)
    chances = new(left, (b, l), torch.float64)
    finish.emit_kernel[(b,)](
        *both, target.masses, request.tokens, vocabulary, blocks, uniforms, width,
        method.coins(k, l), work.ratios, work.priorities, work.accepts, work.gains, work.tails,
        work.rhos, forced, left, work.states, out.path, out.length, out.next, out.tokens,
        out.status, chances, **common, BLOCKS=power_of_2(blocks), num_warps=WARPS["emit"])
    if request.trace:
        work.trace.chances = chances
        work.trace.left = left.view(b, levels, blocks)
        work.trace.accepts = work.accepts.view(b, k, l) if choice == finish.WALK.value else None
        work.trace.priorities = work.priorities
        if method.pooled:
            work.trace.gains = work.gains.view(b, k, l, request.knots)
            work.trace.tails = work.tails.view(b, k, l)
        work.trace.ratios = work.ratios.view(b, k, l)
        out.trace = work.trace
    return out


def prepare(request: Request, sizes: dict, nothing: torch.Tensor) -> Work:
    """Launches the kernels that precede the decision."""
    method, b, k, l = request.method, request.batch, request.paths, request.length
    draft, target, nodes = request.draft, request.target, b * k * l
    knots, vocabulary = request.knots, target.vocabulary
    d, f = torch.float64, torch.float32
    ratios = new(nothing, (nodes,), d)
    accepts = new(nothing, (nodes,), d)
    states = new(nothing, (nodes,), torch.int32)
    full = columns(draft) + [draft.status] + columns(target) + [target.status]
    full += [request.tokens, vocabulary]
    work = Work(ratios, accepts, nothing, nothing, nothing, nothing, states, Trace())
    if not method.pooled:
        work.gains = new(nothing, (nodes,), d)
        work.priorities = torch.zeros_like(ratios)
        paths.ratio_kernel[(nodes,)](*full, ratios, accepts, work.gains, states, **sizes,
                                     num_warps=1)
        if method in (Method.SPECINFER, Method.SPECTR):
            rejection.prepare(request, work, sizes)
        return work
    split, chunk, warps = pool_sizes(nodes)
    split = min(split, max(chunk, power_of_2(vocabulary)))
    splits = triton.cdiv(vocabulary, split)
    hats = new(nothing, (nodes, splits, knots), f)
    tails = new(nothing, (nodes, splits, 2), f)
    work.gains = new(nothing, (nodes, knots), f)
    work.tails = new(nothing, (nodes,), f)
    least = 1 if method is Method.NESTED_PRIORITY else 2
    pool.pool_kernel[(nodes, splits)](
        *columns(draft), *columns(target), request.tokens, vocabulary, splits, least, hats, tails,
        **sizes, NK=knots, SPLIT=split, CHUNK=min(chunk, split), num_warps=warps)
    uniforms, width = request.uniforms, request.uniforms.shape[1]
    options = sizes | {"NK": knots, "SPLITS": power_of_2(splits), "TRACE": request.trace,
                       "num_warps": WARPS["paths"]}
    if method is Method.NESTED_PRIORITY:
        work.priorities = new(nothing, (b * k,), d)
        shares = new(nothing, (b, k, request.cells), d) if request.trace else nothing
        paths.nested_kernel[(b * k,)](
            *full, hats, tails, splits, uniforms, width, ratios, work.priorities, work.gains,
            work.tails, shares, states, C=request.cells, **options)
        work.trace.shares = shares if request.trace else None
    else:
        work.priorities = new(nothing, (nodes,), d)
        shape = (b, k, l, knots)
        holds = torch.zeros(shape, device=nothing.device, dtype=d) if request.trace else nothing
        ends = torch.zeros_like(holds) if request.trace else nothing
        paths.priority_kernel[(nodes,)](
            *full, hats, tails, splits, uniforms, width, ratios, accepts, work.priorities,
            work.gains, work.tails, holds, ends, states, **options)
        if request.trace:
            work.trace.holds, work.trace.ends = holds, ends
    return work
