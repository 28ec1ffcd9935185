"""Preparation of each path before the decision: selection, shares, ratios.

Problem and sources: `nested_kernel` is nested priority block verification (new, see
docs/papers.md; shares in `shares`), `priority_kernel` one node of the walk with priority
coupling, `ratio_kernel` single-draft speculative sampling (Leviathan et al. 2023, Chen et al.
2023), which `token` and `block` use.
Deviations: (1) nested: a path's priority has a distribution over C cells of [0, 1] and is uniform
within a cell, so that shares of any depth have the same shape; this costs some acceptance but
leaves the emitted distribution exact, since the masses are computed from the cells; (2) each path
recomputes the shares of its nodes, even of shared ones: results are identical to the last bit, and
paths need no synchronization.
Cost: one program for each path (nested) or each path's node; L or 1 times O(NK·(NK + C))
operations.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .pool import (TAIL, draft_row_of, knot, knot_lengths, knot_ratios, node_of, ratio_of,
                   target_row_of)
from .rows import pick_block, row_weights
from .shares import exchange, holding, running


@triton.jit
def drawn(dl, ds, dtops, dcuts, dlasts, drates, drow, tl_, ts, ttops, tcuts, tlasts, trates,
          trow, token, vocabulary):
    """Returns the weights of a drafted token in its draft row and its target row."""
    # A block of one token, to share the definition of a weight.
    y = token + tl.arange(0, 1)
    inside = (y >= 0) & (y < vocabulary)
    q = row_weights(dl, ds, drow, y, inside, dtops, dcuts, dlasts, drates)
    p = row_weights(tl_, ts, trow, y, inside, ttops, tcuts, tlasts, trates)
    return tl.sum(q, axis=0), tl.sum(p, axis=0)


@triton.jit
def state_of(dstatus, tstatus, drow, trow, leaf_row, q):
    """Returns status bits: 1 for an invalid row; 2 for a token with probability 0 in its row."""
    rows = tl.load(dstatus + drow) | tl.load(tstatus + trow) | tl.load(tstatus + leaf_row)
    return rows | tl.where((rows == 0) & (q <= 0.0), 2, 0)


@triton.jit
def ratio_kernel(dl, ds, dtops, dcuts, dlasts, drates, dtotals, dstatus, tl_, ts, ttops, tcuts,
                 tlasts, trates, ttotals, tstatus, tokens, vocabulary, ratios, accepts, spent,
                 states, K: tl.constexpr, L: tl.constexpr, KP: tl.constexpr, LP: tl.constexpr):
    """Program (path's node): target/draft at the token drawn there."""
    node = tl.program_id(0)
    b = node // (K * L)
    k = (node // L) % K
    l = node % L
    first, count = node_of(tokens, b, k, l, K, L, KP, LP)
    drow = draft_row_of(b, first, l, K, L)
    trow = target_row_of(b, first, l, K, L)
    child, siblings = node_of(tokens, b, k, l + 1, K, L, KP, LP)
    token = tl.load(tokens + node)
    q, p = drawn(dl, ds, dtops, dcuts, dlasts, drates, drow, tl_, ts, ttops, tcuts, tlasts,
                 trates, trow, token, vocabulary)
    q_part = q.to(tl.float64) / tl.load(dtotals + drow)
    p_part = p.to(tl.float64) / tl.load(ttotals + trow)
    ratio = p_part / tl.where(q > 0.0, q_part, 1.0)
    tl.store(ratios + node, ratio)
    tl.store(accepts + node, tl.minimum(ratio, 1.0))
    tl.store(spent + node, 1.0)
    leaf = target_row_of(b, child, l + 1, K, L)
    tl.store(states + node, state_of(dstatus, tstatus, drow, trow, leaf, q))


@triton.jit
def priority_kernel(dl, ds, dtops, dcuts, dlasts, drates, dtotals, dstatus, tl_, ts, ttops, tcuts,
                    tlasts, trates, ttotals, tstatus, tokens, vocabulary, hats, tails, splits,
                    uniforms, width, ratios, accepts, priorities, gains, tail_ratios, holds,
                    interval_ends, states, K: tl.constexpr, L: tl.constexpr, KP: tl.constexpr,
                    LP: tl.constexpr, NK: tl.constexpr, SPLITS: tl.constexpr,
                    TRACE: tl.constexpr):
    """Program (path's node): the path's priority there and its acceptance probability."""
    node = tl.program_id(0)
    b = node // (K * L)
    k = (node // L) % K
    l = node % L
    knots = tl.arange(0, NK)
    first, count = node_of(tokens, b, k, l, K, L, KP, LP)
    drow = draft_row_of(b, first, l, K, L)
    trow = target_row_of(b, first, l, K, L)
    child, siblings = node_of(tokens, b, k, l + 1, K, L, KP, LP)
    token = tl.load(tokens + node)
    q, p = drawn(dl, ds, dtops, dcuts, dlasts, drates, drow, tl_, ts, ttops, tcuts, tlasts,
                 trates, trow, token, vocabulary)
    total = tl.load(dtotals + drow)
    target_total = tl.load(ttotals + trow)
    q_part = q.to(tl.float64) / total
    p_part = p.to(tl.float64) / target_total
    ratio = p_part / tl.where(q > 0.0, q_part, 1.0)
    leaf = target_row_of(b, child, l + 1, K, L)
    tl.store(states + node, state_of(dstatus, tstatus, drow, trow, leaf, q))
    if count > 1:
        shared = b * (K * L) + first * L + l
        lengths, tail = knot_lengths(hats, tails, shared, splits, NK, SPLITS)
        ends = running(lengths, knots[None, :] <= knots[:, None])
        ends = tl.where(knots == NK - 1, 1.0, tl.minimum(ends, 1.0))
        mass = ends
        for i in range(1, K):
            mass = tl.where(i < count, mass * ends, mass)
        allotted, gain, density = exchange(lengths, knot_ratios(NK), ends, mass, NK)
        pooled = ratio_of(p, q, (total / target_total).to(tl.float32))
        pooled = tl.where(q < (total * (TAIL / vocabulary)).to(tl.float32), tail, pooled)
        low, part = knot(pooled, NK)
        hold = holding(allotted, lengths, low, part, NK)
        part = part.to(tl.float64)
        g = tl.sum(tl.where(knots == low, gain * (1.0 - part), 0.0), axis=0)
        g += tl.sum(tl.where(knots == low + 1, gain * part, 0.0), axis=0)
        u = tl.load(uniforms + b * width + k * L + l).to(tl.float64)
        within = tl.load(uniforms + b * width + K * L + k * L + l).to(tl.float64)
        interval, into = pick_block(hold, knots >= 0, u)
        end = tl.sum(tl.where(knots == interval, ends, 0.0), axis=0)
        length = tl.sum(tl.where(knots == interval, lengths, 0.0), axis=0)
        tl.store(priorities + node, end - length + within * length)
        # A selection so rare that its probability underflows is never verified.
        ratio = ratio / tl.maximum(g, 1e-300)
        tl.store(ratios + node, ratio)
        tl.store(accepts + node, tl.minimum(ratio, 1.0))
        tl.store(gains + node * NK + knots, gain.to(tl.float32))
        tl.store(tail_ratios + node, tail)
        if TRACE:
            tl.store(holds + node * NK + knots, hold)
            tl.store(interval_ends + node * NK + knots, ends)
    else:
        tl.store(priorities + node, 0.5)
        tl.store(ratios + node, ratio)
        tl.store(accepts + node, tl.minimum(ratio, 1.0))
        tl.store(gains + node * NK + knots, tl.full([NK], 1.0, tl.float32))
        tl.store(tail_ratios + node, 1.0)


@triton.jit
def nested_kernel(dl, ds, dtops, dcuts, dlasts, drates, dtotals, dstatus, tl_, ts, ttops, tcuts,
                  tlasts, trates, ttotals, tstatus, tokens, vocabulary, hats, tails, splits,
                  uniforms, width, ratios, priorities, gains, tail_ratios, shares, states,
                  K: tl.constexpr, L: tl.constexpr, KP: tl.constexpr, LP: tl.constexpr,
                  NK: tl.constexpr, SPLITS: tl.constexpr, C: tl.constexpr, TRACE: tl.constexpr):
    """Program (path): its nodes' shares from the root down, and its priority."""
    program = tl.program_id(0)
    b = program // K
    k = program % K
    knots = tl.arange(0, NK)
    cells = tl.arange(0, C)
    upto = knots[None, :] <= knots[:, None]
    # The mean of K·z^(K-1) on each cell, without cancellation.
    cell_start = cells.to(tl.float64) / C
    cell_end = (cells + 1).to(tl.float64) / C
    worth = tl.full([C], 1.0, tl.float64)
    power = tl.full([C], 1.0, tl.float64)
    for _ in range(1, K):
        power = power * cell_end
        worth = worth * cell_start + power
    share = tl.full([C], 1.0 / C, tl.float64)
    weight = tl.full([1], 1.0, tl.float64)
    for l in range(0, L):
        node = program * L + l
        first, count = node_of(tokens, b, k, l, K, L, KP, LP)
        drow = draft_row_of(b, first, l, K, L)
        trow = target_row_of(b, first, l, K, L)
        child, siblings = node_of(tokens, b, k, l + 1, K, L, KP, LP)
        token = tl.load(tokens + node)
        q, p = drawn(dl, ds, dtops, dcuts, dlasts, drates, drow, tl_, ts, ttops, tcuts, tlasts,
                     trates, trow, token, vocabulary)
        total = tl.load(dtotals + drow)
        target_total = tl.load(ttotals + trow)
        q_part = q.to(tl.float64) / total
        p_part = p.to(tl.float64) / target_total
        leaf = target_row_of(b, child, l + 1, K, L)
        tl.store(states + node, state_of(dstatus, tstatus, drow, trow, leaf, q))
        # This node's share as a segment, lowest priorities first.
        shared = b * (K * L) + first * L + l
        lengths, tail = knot_lengths(hats, tails, shared, splits, NK, SPLITS)
        ends = running(lengths, upto)
        ends = tl.where(knots == NK - 1, 1.0, tl.minimum(ends, 1.0))
        share_end = tl.cumsum(share, axis=0)
        share_start = share_end - share
        mean = tl.sum(share * worth, axis=0)
        inside = ends[:, None] - share_start[None, :]
        inside = tl.minimum(tl.maximum(inside, 0.0), share[None, :])
        mass = tl.sum(inside * worth[None, :], axis=1) / mean
        mass = tl.where(knots == NK - 1, 1.0, tl.minimum(mass, 1.0))
        allotted, gain, density = exchange(lengths, knot_ratios(NK) * weight, ends, mass, NK)
        # The token's part of the segment.
        pooled = ratio_of(p, q, (total / target_total).to(tl.float32))
        pooled = tl.where(q < (total * (TAIL / vocabulary)).to(tl.float32), tail, pooled)
        low, part = knot(pooled, NK)
        hold = holding(allotted, lengths, low, part, NK)
        part = part.to(tl.float64)
        g = tl.sum(tl.where(knots == low, gain * (1.0 - part), 0.0), axis=0)
        g += tl.sum(tl.where(knots == low + 1, gain * part, 0.0), axis=0)
        thick = tl.where(lengths > 0.0, hold / tl.where(lengths > 0.0, lengths, 1.0), 0.0)
        overlap = tl.minimum(ends[:, None], share_end[None, :])
        overlap -= tl.maximum((ends - lengths)[:, None], share_start[None, :])
        new = tl.sum(tl.maximum(overlap, 0.0) * thick[:, None], axis=0)
        sum_ = tl.sum(new, axis=0)
        share = tl.where(sum_ > 0.0, new / tl.where(sum_ > 0.0, sum_, 1.0), share)
        # A selection so rare that its probability underflows is never verified.
        ratio = p_part / tl.where(q > 0.0, tl.maximum(q_part * g, 1e-300), 1.0)
        weight = tl.minimum(weight * ratio, 1.0)
        tl.store(ratios + node, ratio)
        tl.store(gains + node * NK + knots, gain.to(tl.float32))
        tl.store(tail_ratios + node, tail)
    u = tl.load(uniforms + b * width + k).to(tl.float64)
    within = tl.load(uniforms + b * width + K + k).to(tl.float64)
    cell, into = pick_block(share, cells >= 0, u)
    tl.store(priorities + program, (cell.to(tl.float64) + within) / C)
    if TRACE:
        tl.store(shares + program * C + cells, share)
