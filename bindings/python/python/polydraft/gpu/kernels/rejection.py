"""Baselines: recursive rejection (SpecInfer) and K-SEQ (SpecTr) at each node of the tree.

Problem: test n i.i.d. drafts at a node in order; accept one or none.
Source: Miao et al. 2023 (SpecInfer), multi-step speculative sampling: after j rejections the
residual of the target p is (p - c_j·q)+ with c_1 = 1 and c_(j+1) = c_j + Σ (p - c_j·q)+. Sun et al.
2023 (SpecTr), algorithm 2: accept x with min(1, p/(rho·q)), then emit from
p - min(q, p/rho)·cover, cover = (1 - (1 - beta)^n)/beta, beta = Σ min(q, p/rho).
Deviations: (1) K-SEQ: rho is the upper end of a bracket around the root of
1 - (1 - beta)^n = rho·beta, found by two passes over 32 values each, so at most (n - 1)/1000
above it; any rho above the root gives the target's distribution, at a loss of acceptance of about
1e-4; (2) all nodes of all sequences are processed at once, including nodes that the walk does not
reach.
Cost: K - 1 reads of the nodes' rows (SpecInfer), three (K-SEQ).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..methods import Method, Request
from .memory import Work, columns, new, power_of_2
from .paths import drawn
from .pool import draft_row_of, node_of, target_row_of
from .rows import row_weights

VALUES = tl.constexpr(32)


@triton.jit
def spent_after(masses, node, nodes, blocks, rejections, K: tl.constexpr, BLOCKS: tl.constexpr):
    """Returns c and the residual's mass after `rejections` rejections."""
    n = tl.arange(0, BLOCKS)
    spent = tl.sum(tl.zeros([1], tl.float64), axis=0)
    mass = spent + 1.0
    for j in range(0, K - 1):
        now = j < rejections
        at = (node + j * nodes).to(tl.int64) * blocks + n
        # As a block: some versions of the interpreter make no mask from two scalars.
        part = tl.load(masses + at, mask=(n < blocks) & (0 * n + j < rejections), other=0.0)
        spent += tl.where(now, mass, 0.0)
        mass = tl.where(now, tl.sum(part, axis=0), mass)
    return spent, mass


@triton.jit
def rejected_kernel(dl, ds, dtops, dcuts, dlasts, drates, dtotals, tl_, ts, ttops, tcuts, tlasts,
                    trates, ttotals, tokens, vocabulary, blocks, nodes, masses, index,
                    K: tl.constexpr, L: tl.constexpr, KP: tl.constexpr, LP: tl.constexpr,
                    BLOCK: tl.constexpr, BLOCKS: tl.constexpr):
    """Program (node, block): the residual's mass after index + 1 rejections."""
    node = tl.program_id(0)
    block = tl.program_id(1)
    b = node // (K * L)
    k = (node // L) % K
    l = node % L
    first, count = node_of(tokens, b, k, l, K, L, KP, LP)
    if (first == k) & (count > index + 1):
        spent, mass = spent_after(masses, node, nodes, blocks, index, K, BLOCKS)
        spent += mass
        drow = draft_row_of(b, first, l, K, L)
        trow = target_row_of(b, first, l, K, L)
        y = block * BLOCK + tl.arange(0, BLOCK)
        inside = y < vocabulary
        q = row_weights(dl, ds, drow, y, inside, dtops, dcuts, dlasts, drates)
        p = row_weights(tl_, ts, trow, y, inside, ttops, tcuts, tlasts, trates)
        rest = p.to(tl.float64) * (1.0 / tl.load(ttotals + trow))
        rest -= q.to(tl.float64) * (spent / tl.load(dtotals + drow))
        mass = tl.sum(tl.maximum(rest, 0.0), axis=0)
        tl.store(masses + (node + index * nodes).to(tl.int64) * blocks + block, mass)


@triton.jit
def rank_of(tokens, b, k, l, K: tl.constexpr, L: tl.constexpr, KP: tl.constexpr,
            LP: tl.constexpr):
    """Returns the number of paths before path k that share its first l tokens."""
    j = tl.arange(0, KP)
    i = tl.arange(0, LP)
    prefix = tl.load(tokens + (b * K + k) * L + i, mask=i < l, other=0)
    both = (j[:, None] < K) & (i[None, :] < l)
    others = tl.load(tokens + (b * K + j[:, None]) * L + i[None, :], mask=both, other=0)
    differ = tl.sum((others != prefix[None, :]).to(tl.int32), axis=1)
    return tl.sum(((differ == 0) & (j < k)).to(tl.int32), axis=0)


@triton.jit
def recursive_kernel(dl, ds, dtops, dcuts, dlasts, drates, dtotals, tl_, ts, ttops, tcuts, tlasts,
                     trates, ttotals, tokens, vocabulary, blocks, nodes, masses, uniforms, width,
                     chances, accepts, priorities, spent_out, K: tl.constexpr, L: tl.constexpr,
                     KP: tl.constexpr, LP: tl.constexpr, BLOCKS: tl.constexpr):
    """Program (path's node): whether its coin accepts, and c after rejecting all drafts."""
    node = tl.program_id(0)
    b = node // (K * L)
    k = (node // L) % K
    l = node % L
    first, count = node_of(tokens, b, k, l, K, L, KP, LP)
    rank = rank_of(tokens, b, k, l, K, L, KP, LP)
    shared = b * (K * L) + first * L + l
    drow = draft_row_of(b, first, l, K, L)
    trow = target_row_of(b, first, l, K, L)
    q, p = drawn(dl, ds, dtops, dcuts, dlasts, drates, drow, tl_, ts, ttops, tcuts, tlasts,
                 trates, trow, tl.load(tokens + node), vocabulary)
    q_part = q.to(tl.float64) / tl.load(dtotals + drow)
    p_part = p.to(tl.float64) / tl.load(ttotals + trow)
    spent, mass = spent_after(masses, shared, nodes, blocks, rank, K, BLOCKS)
    rest = tl.maximum(p_part - spent * q_part, 0.0)
    some = (q > 0.0) & (mass > 0.0)
    chance = tl.where(some, rest / tl.where(some, mass * q_part, 1.0), 0.0)
    # Without residual mass only rounding rejected all drafts before: accept this one.
    chance = tl.minimum(tl.where(mass > 0.0, chance, 1.0), 1.0)
    spent, mass = spent_after(masses, shared, nodes, blocks, count - 1, K, BLOCKS)
    tl.store(spent_out + node, spent + mass)
    accepted = tl.load(uniforms + b * width + k * L + l).to(tl.float64) < chance
    tl.store(chances + node, chance)
    tl.store(accepts + node, accepted.to(tl.float64))
    # The walk takes the highest priority: the first path that accepts.
    tl.store(priorities + node, tl.where(accepted, (K - k).to(tl.float64), 0.0))


@triton.jit
def tried(low, high):
    """Returns 32 values from low to high, inclusive."""
    i = tl.arange(0, VALUES).to(tl.float64)
    return low + (high - low) * (i / (VALUES - 1.0))


@triton.jit
def bracket(betas, node, nodes, blocks, count, PASSES: tl.constexpr, K: tl.constexpr,
            BLOCKS: tl.constexpr):
    """Returns the bracket [low, high] of rho after PASSES passes, and beta at high."""
    n = tl.arange(0, BLOCKS)
    i = tl.arange(0, VALUES)
    low = tl.sum(tl.zeros([1], tl.float64), axis=0) + 1.0
    high = low * count
    beta = low * 0.0
    for j in range(0, PASSES):
        at = ((node + j * nodes).to(tl.int64) * blocks + n[:, None]) * VALUES + i[None, :]
        part = tl.load(betas + at, mask=(n < blocks)[:, None], other=0.0)
        covered = tl.sum(part.to(tl.float64), axis=0)
        rho = tried(low, high)
        missed = 1.0 - tl.minimum(covered, 1.0)
        power = missed * 0.0 + 1.0
        for times in range(0, K):
            power = tl.where(times < count, power * missed, power)
        # Left side minus right side decreases in rho: take the first value where it is <= 0.
        good = (1.0 - power <= rho * covered) | (i == VALUES - 1)
        best = tl.min(tl.where(good, i, VALUES - 1), axis=0)
        low_next = tl.sum(tl.where(i == tl.maximum(best - 1, 0), rho, 0.0), axis=0)
        high = tl.sum(tl.where(i == best, rho, 0.0), axis=0)
        low = low_next
        beta = tl.sum(tl.where(i == best, covered, 0.0), axis=0)
    return low, high, beta


@triton.jit
def cover_kernel(dl, ds, dtops, dcuts, dlasts, drates, dtotals, tl_, ts, ttops, tcuts, tlasts,
                 trates, ttotals, tokens, vocabulary, blocks, nodes, betas, INDEX: tl.constexpr,
                 K: tl.constexpr, L: tl.constexpr, KP: tl.constexpr, LP: tl.constexpr,
                 BLOCK: tl.constexpr, BLOCKS: tl.constexpr, CHUNK: tl.constexpr):
    """Program (node, block): beta at 32 values of rho."""
    node = tl.program_id(0)
    block = tl.program_id(1)
    b = node // (K * L)
    k = (node // L) % K
    l = node % L
    first, count = node_of(tokens, b, k, l, K, L, KP, LP)
    if (first == k) & (count > 1):
        low, high, beta = bracket(betas, node, nodes, blocks, count, INDEX, K, BLOCKS)
        drow = draft_row_of(b, first, l, K, L)
        trow = target_row_of(b, first, l, K, L)
        over = 1.0 / tried(low, high)
        target_total = tl.load(ttotals + trow)
        total = tl.load(dtotals + drow)
        i = tl.arange(0, VALUES)
        covered = tl.zeros([VALUES], tl.float64)
        for start in range(0, BLOCK, CHUNK):
            y = block * BLOCK + start + tl.arange(0, CHUNK)
            inside = y < vocabulary
            q = row_weights(dl, ds, drow, y, inside, dtops, dcuts, dlasts, drates)
            p = row_weights(tl_, ts, trow, y, inside, ttops, tcuts, tlasts, trates)
            wide = (p.to(tl.float64) / target_total)[None, :] * over[:, None]
            covered += tl.sum(tl.minimum((q.to(tl.float64) / total)[None, :], wide), axis=1)
        at = ((node + INDEX * nodes).to(tl.int64) * blocks + block) * VALUES
        tl.store(betas + at + i, covered)


@triton.jit
def sequential_kernel(dl, ds, dtops, dcuts, dlasts, drates, dtotals, tl_, ts, ttops, tcuts,
                      tlasts, trates, ttotals, tokens, vocabulary, blocks, nodes, betas, uniforms,
                      width, chances, accepts, priorities, rhos, K: tl.constexpr,
                      L: tl.constexpr, KP: tl.constexpr, LP: tl.constexpr, BLOCKS: tl.constexpr):
    """Program (path's node): whether its coin accepts, rho and cover."""
    node = tl.program_id(0)
    b = node // (K * L)
    k = (node // L) % K
    l = node % L
    first, count = node_of(tokens, b, k, l, K, L, KP, LP)
    shared = b * (K * L) + first * L + l
    drow = draft_row_of(b, first, l, K, L)
    trow = target_row_of(b, first, l, K, L)
    q, p = drawn(dl, ds, dtops, dcuts, dlasts, drates, drow, tl_, ts, ttops, tcuts, tlasts,
                 trates, trow, tl.load(tokens + node), vocabulary)
    q_part = q.to(tl.float64) / tl.load(dtotals + drow)
    p_part = p.to(tl.float64) / tl.load(ttotals + trow)
    rho = q_part * 0.0 + 1.0
    cover = rho
    if count > 1:
        below, rho, beta = bracket(betas, shared, nodes, blocks, count, 2, K, BLOCKS)
        missed = 1.0 - tl.minimum(beta, 1.0)
        power = missed * 0.0 + 1.0
        for times in range(0, K):
            power = tl.where(times < count, power * missed, power)
        cover = tl.where(beta > 0.0, (1.0 - power) / tl.where(beta > 0.0, beta, 1.0), 0.0)
    chance = tl.minimum(p_part / tl.where(q > 0.0, rho * q_part, 1.0), 1.0)
    accepted = tl.load(uniforms + b * width + k * L + l).to(tl.float64) < chance
    tl.store(chances + node, chance)
    tl.store(accepts + node, accepted.to(tl.float64))
    tl.store(priorities + node, tl.where(accepted, (K - k).to(tl.float64), 0.0))
    tl.store(rhos + node * 2, rho)
    tl.store(rhos + node * 2 + 1, cover)


def prepare(request: Request, work: Work, sizes: dict) -> None:
    """Launches the kernels of SpecInfer and SpecTr before the walk; fills `work`."""
    draft, target = request.draft, request.target
    b, k, l = request.batch, request.paths, request.length
    nodes, blocks = b * k * l, target.masses.shape[1]
    both = columns(draft) + columns(target) + [request.tokens, target.vocabulary, blocks, nodes]
    options = sizes | {"BLOCKS": power_of_2(blocks)}
    uniforms = [request.uniforms, request.uniforms.shape[1]]
    chances = new(target.logits, (nodes,), torch.float64)
    block = target.block
    if request.method is Method.SPECINFER:
        masses = new(target.logits, (max(k - 1, 1), nodes, blocks), torch.float64)
        for index in range(k - 1):
            rejected_kernel[(nodes, blocks)](*both, masses, index, **options, BLOCK=block,
                                             num_warps=8)
        recursive_kernel[(nodes,)](*both, masses, *uniforms, chances, work.accepts,
                                   work.priorities, work.gains, **options, num_warps=1)
    else:
        betas = new(target.logits, (2, nodes, blocks, 32), torch.float64)
        work.rhos = new(target.logits, (nodes, 2), torch.float64)
        for index in range(2 if k > 1 else 0):
            cover_kernel[(nodes, blocks)](*both, betas, INDEX=index, **options, BLOCK=block,
                                          CHUNK=min(256, block), num_warps=4)
        sequential_kernel[(nodes,)](*both, betas, *uniforms, chances, work.accepts,
                                    work.priorities, work.rhos, **options, num_warps=4)
    work.ratios = chances
