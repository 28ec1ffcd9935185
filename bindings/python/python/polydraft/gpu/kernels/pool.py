"""Pools a node's tokens by the ratio of their probabilities.

Problem: priorities are distributed among tokens in the order of r = target/draft. Sorting V tokens
is too slow on a GPU, and a weighted histogram needs atomic additions, whose order, and therefore
result, differs from run to run.
Source: new: the pooled form of priority coupling (docs/papers.md). A token is split between the
two neighbouring knots of a grid of ratios, so that its mean ratio is unchanged; a knot then acts
as one token with exactly the knot's ratio, and only its length, its part of the draft's
probability, has to be summed.
Deviations from the Rust form: (1) one grid, no individual tokens and no second, finer pass: this
costs acceptance, but the distribution stays exact; (2) ratios above the largest knot count as the
largest knot; (3) tokens with a draft probability below 2^-7/V are pooled at their common ratio, so
that chunks of only such tokens are skipped; (4) every kernel recomputes a token's part of a knot
from a continuous function of its ratio, so that different rounding between kernels causes a
relative error of 1e-6 rather than a token in the wrong pool.
Cost: one read of the draft's and the target's row of each distinct node; four operations for each
token and knot, without atomics.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .rows import row_weights

# Tokens with a draft probability below TAIL/V are pooled at one ratio.
TAIL = tl.constexpr(2.0**-7)
# The smallest knot above 0, and the number of octaves between it and the largest.
LOWEST = tl.constexpr(2.0**-3)
OCTAVES = tl.constexpr(7.0)


@triton.jit
def knot(r, NK: tl.constexpr):
    """Returns the knot at or below ratio r, of NK, and r's part of the next knot."""
    per: tl.constexpr = (NK - 2) / OCTAVES
    position = tl.log2(tl.maximum(r, LOWEST) / LOWEST) * per
    index = tl.minimum(position.to(tl.int32) + 1, NK - 2)
    low = tl.where(r < LOWEST, 0, index)
    below = tl.where(low == 0, 0.0, LOWEST * tl.exp2((low - 1).to(tl.float32) / per))
    above = LOWEST * tl.exp2(low.to(tl.float32) / per)
    part = tl.minimum(tl.maximum((r - below) / (above - below), 0.0), 1.0)
    # Rounded as low + part, like in `pool_kernel`, so that all kernels agree.
    position = low.to(tl.float32) + part
    low = tl.minimum(position.to(tl.int32), NK - 2)
    return low, position - low.to(tl.float32)


@triton.jit
def knot_ratios(NK: tl.constexpr):
    """Returns the ratios of all knots in float64."""
    per: tl.constexpr = (NK - 2) / OCTAVES
    k = tl.arange(0, NK)
    rising = LOWEST * tl.exp2((k - 1).to(tl.float32) / per)
    return tl.where(k == 0, 0.0, rising).to(tl.float64)


@triton.jit
def node_of(tokens, b, k, l, K: tl.constexpr, L: tl.constexpr, KP: tl.constexpr,
            LP: tl.constexpr):
    """Returns the first path that begins with path k's first l tokens, and their number."""
    j = tl.arange(0, KP)
    i = tl.arange(0, LP)
    prefix = tl.load(tokens + (b * K + k) * L + i, mask=i < l, other=0)
    both = (j[:, None] < K) & (i[None, :] < l)
    others = tl.load(tokens + (b * K + j[:, None]) * L + i[None, :], mask=both, other=0)
    differ = tl.sum((others != prefix[None, :]).to(tl.int32), axis=1)
    same = (differ == 0) & (j < K)
    return tl.min(tl.where(same, j, K), axis=0), tl.sum(same.to(tl.int32), axis=0)


@triton.jit
def target_row_of(b, first, l, K: tl.constexpr, L: tl.constexpr):
    """Returns the target's row at the node of path `first`'s first l tokens."""
    return b * (1 + K * L) + tl.where(l == 0, 0, first * L + l)


@triton.jit
def draft_row_of(b, first, l, K: tl.constexpr, L: tl.constexpr):
    """Returns the draft's row at the node of path `first`'s first l tokens."""
    return b * (K * L) + first * L + l


@triton.jit
def ratio_of(p, q, scale):
    """Returns p/q of weights p and q with scale = (q's total)/(p's total); at most 2^20."""
    # Divided by q first where q is tiny, the quotient would overflow.
    return tl.where(q > 0.0, tl.minimum(p / tl.where(q > 0.0, q, 1.0) * scale, 1048576.0), 0.0)


@triton.jit
def pool_kernel(dl, ds, dtops, dcuts, dlasts, drates, dtotals, tl_, ts, ttops, tcuts, tlasts,
                trates, ttotals, tokens, vocabulary, splits, least, hats, tails,
                K: tl.constexpr, L: tl.constexpr, KP: tl.constexpr, LP: tl.constexpr,
                NK: tl.constexpr, SPLIT: tl.constexpr, CHUNK: tl.constexpr):
    """Program (node, split): lengths of the knots within SPLIT tokens.

    `hats`, [nodes, splits, NK], is in units of the draft's weights; `tails`, [nodes, splits, 2],
    has the draft's and the target's part of the tokens pooled at one ratio, in the same units.
    Skips nodes that belong to an earlier path or have fewer than `least` paths.
    """
    node = tl.program_id(0)
    split = tl.program_id(1)
    b = node // (K * L)
    k = (node // L) % K
    l = node % L
    first, count = node_of(tokens, b, k, l, K, L, KP, LP)
    if (first == k) & (count >= least):
        drow = draft_row_of(b, first, l, K, L)
        trow = target_row_of(b, first, l, K, L)
        total = tl.load(dtotals + drow)
        scale = (total / tl.load(ttotals + trow)).to(tl.float32)
        threshold = (total * (TAIL / vocabulary)).to(tl.float32)
        knots = tl.arange(0, NK)
        lengths = tl.zeros([NK, CHUNK], tl.float32)
        tail_q = tl.zeros([CHUNK], tl.float32)
        tail_p = tl.zeros([CHUNK], tl.float32)
        for start in range(0, SPLIT, CHUNK):
            y = split * SPLIT + start + tl.arange(0, CHUNK)
            inside = y < vocabulary
            q = row_weights(dl, ds, drow, y, inside, dtops, dcuts, dlasts, drates)
            p = row_weights(tl_, ts, trow, y, inside, ttops, tcuts, tlasts, trates)
            r = ratio_of(p, q, scale)
            tail = q < threshold
            tail_q += tl.where(tail, q, 0.0)
            tail_p += tl.where(tail, q * r, 0.0)
            if tl.max(q, axis=0) >= threshold:
                low, part = knot(r, NK)
                position = low.to(tl.float32) + part
                pooled_q = tl.where(tail, 0.0, q)
                # 1 - part at the knot below, part at the knot above, 0 elsewhere.
                away = tl.abs(position[None, :] - knots.to(tl.float32)[:, None])
                near = tl.maximum(1.0 - away, 0.0)
                lengths += near * pooled_q[None, :]
        out = node * splits + split
        tl.store(hats + out.to(tl.int64) * NK + knots, tl.sum(lengths, axis=1))
        tl.store(tails + out * 2, tl.sum(tail_q, axis=0))
        tl.store(tails + out * 2 + 1, tl.sum(tail_p, axis=0))


@triton.jit
def knot_lengths(hats, tails, node, splits, NK: tl.constexpr, SPLITS: tl.constexpr):
    """Merges the splits: the knots' lengths, summing to 1, and the ratio of the tail."""
    knots = tl.arange(0, NK)
    s = tl.arange(0, SPLITS)
    inside = s < splits
    at = (node * splits + s).to(tl.int64)
    parts = tl.load(hats + at[:, None] * NK + knots[None, :], mask=inside[:, None], other=0.0)
    lengths = tl.sum(parts.to(tl.float64), axis=0)
    tail_q = tl.sum(tl.load(tails + at * 2, mask=inside, other=0.0).to(tl.float64), axis=0)
    tail_p = tl.sum(tl.load(tails + at * 2 + 1, mask=inside, other=0.0).to(tl.float64), axis=0)
    tail = (tail_p / tl.where(tail_q > 0.0, tail_q, 1.0)).to(tl.float32)
    low, part = knot(tail, NK)
    part = part.to(tl.float64)
    lengths += tl.where(knots == low, tail_q * (1.0 - part), 0.0)
    lengths += tl.where(knots == low + 1, tail_q * part, 0.0)
    total = tl.sum(lengths, axis=0)
    return lengths / tl.where(total > 0.0, total, 1.0), tail
