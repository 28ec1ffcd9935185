"""Sharing of a segment of priorities among the knots of a node.

Problem: a segment [0, 1] carries mass with a rising density; G(t) is the mass of its lowest t.
Knots with lengths that sum to 1 and ratios demand/length share it so that Σ min(demand, mass) is
maximal. Each knot gets a distribution on the segment, computed in parallel.
Source: the masses are the ones of priority coupling that are nearest to the draft (docs/theory.md,
theorem 6): the full demand, or more or less in proportion to lengths. The distributions are new,
based on Jourdain and Margheriti 2020, "A new family of one dimensional martingale couplings"
(EJP 25), section 3, the inverse transform coupling: knots are laid out in the order of their
ratios, one interval each. A knot's interval then has less than its optimal mass, or more. Cumulated
deficits are matched with cumulated surpluses, and a matched pair exchanges parts of its intervals
to balance the masses. Because the optimal mass per length rises with the ratio, no knot exchanges
more than its length (deficits come before surpluses, and the pair's difference in density is at
least the distance of either from its own optimum).
Deviations: (1) within a block, between two points where the masses below equal G, each knot gets a
part 1 - λ of the whole block and exchanges only for λ, as in the Rust form's spread shares; (2)
masses are computed from the assigned intervals, so that rounding, or an inexact G, costs only
acceptance.
Validity: the matrix E (knot i's part of interval j) is symmetric with row sums equal to the
lengths by construction, for any demands; so every part of the segment is used exactly once.
Cost: a constant number of operations on [NK, NK] numbers, without a loop.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def running(values, upto):
    """Returns sums over all j with upto[k, j]."""
    return tl.sum(tl.where(upto, values[None, :], 0.0), axis=1)


@triton.jit
def excess(mass, demand, ends, NK: tl.constexpr):
    """Returns the optimal masses below each knot's end minus `mass`, [NK].

    The arguments are running sums; `mass` is that of the lowest priorities.
    """
    k = tl.arange(0, NK)
    none = -1.0e300
    d = mass - demand
    most = tl.maximum(tl.max(d, axis=0), 0.0)
    # The last knot at which mass exceeds demand the most; -1 if it never does.
    rank = tl.max(tl.where(d >= most, k, -1), axis=0)
    # The full demand. Masses proportional to lengths are the tangent lines from 0 and to 1 that
    # touch it from below.
    wanted = demand + most
    rise = wanted / tl.where(ends > 0.0, ends, 1.0)
    rise = tl.where((k <= rank) & (ends > 0.0), rise, -none)
    flattest = tl.min(rise, axis=0)
    split = tl.min(tl.where(rise <= flattest, k, NK), axis=0)
    below = tl.where(k <= split, tl.minimum(flattest * ends, wanted), wanted)
    level = (1.0 - wanted) / tl.where(ends < 1.0, 1.0 - ends, 1.0)
    level = tl.where((k >= rank) & (ends < 1.0), level, none)
    steepest = tl.max(level, axis=0)
    split = tl.min(tl.where(level >= steepest, k, NK), axis=0)
    from_start = (rank < 0) & (1.0 - most >= steepest)
    steepest = tl.where(from_start, 1.0 - most, steepest)
    split = tl.where(from_start, -1, split)
    above = tl.where(k <= split, wanted, 1.0 - steepest * (1.0 - ends))
    best = tl.where(k <= rank, below, above)
    return tl.where((k == rank) | (k == NK - 1), 0.0, tl.maximum(best - mass, 0.0))


@triton.jit
def exchange(lengths, ratios, ends, mass, NK: tl.constexpr):
    """Returns each knot's part of each interval, [NK, NK], its selection ratio m/q, [NK], and the
    intervals' densities, [NK].

    `ends` are the running sums of the lengths and `mass` is G at them. All in float64.
    """
    k = tl.arange(0, NK)
    upto = k[None, :] <= k[:, None]
    before = k[None, :] < k[:, None]
    after = k[None, :] >= k[:, None]
    demand = running(ratios * lengths, upto)
    above = excess(mass, demand, ends, NK)
    tight = above <= 0.0
    # The block of each knot: from the last tight end before it to the next one.
    tight_before = before & tight[None, :]
    tight_after = after & tight[None, :]
    block = tl.sum(tight_before.to(tl.int32), axis=1)
    from_t = tl.max(tl.where(tight_before, ends[None, :], 0.0), axis=1)
    from_g = tl.max(tl.where(tight_before, mass[None, :], 0.0), axis=1)
    to_t = tl.min(tl.where(tight_after, ends[None, :], 2.0), axis=1)
    to_g = tl.min(tl.where(tight_after, mass[None, :], 2.0), axis=1)
    width = to_t - from_t
    mean = (to_g - from_g) / tl.where(width > 0.0, width, 1.0)
    same = block[:, None] == block[None, :]
    # The smallest λ: a prefix's deficit against its proportional mass, relative to that deficit
    # plus its excess over G.
    optimal = mass + above
    lacks = tl.maximum((ends - from_t) * mean - (optimal - from_g), 0.0)
    lam = tl.where(tight | (lacks <= 0.0), 0.0, lacks / tl.where(lacks > 0.0, lacks + above, 1.0))
    lam = tl.max(tl.where(same, lam[None, :], 0.0), axis=1)
    lam = tl.where(lam < 1e-9, 0.0, tl.where(lam > 1.0 - 1e-9, 1.0, lam))
    wanted = (optimal - from_g - (1.0 - lam) * mean * (ends - from_t))
    wanted = from_g + wanted / tl.where(lam > 0.0, lam, 1.0)
    wanted = tl.where(tight | (lam <= 0.0), mass, wanted)
    # Masses of the intervals in order, and their deficits and surpluses.
    previous = k[None, :] + 1 == k[:, None]
    in_order = mass - running(mass, previous)
    lack = (wanted - running(wanted, previous)) - in_order
    missing = tl.maximum(lack, 0.0)
    spare = tl.maximum(-lack, 0.0)
    missing_to = running(missing, upto)
    spare_to = running(spare, upto)
    flow = tl.minimum(missing_to[:, None], spare_to[None, :])
    flow -= tl.maximum((missing_to - missing)[:, None], (spare_to - spare)[None, :])
    density = tl.where(lengths > 0.0, in_order / tl.where(lengths > 0.0, lengths, 1.0), 0.0)
    steeper = density[None, :] - density[:, None]
    open_ = same & (flow > 0.0) & (steeper > 0.0) & (k[:, None] < k[None, :])
    moved = tl.where(open_, flow / tl.where(open_, steeper, 1.0), 0.0)
    # Only rounding can exceed the lengths.
    out = tl.sum(moved, axis=1)
    in_ = tl.sum(moved, axis=0)
    limit_out = tl.minimum(lengths / tl.where(out > 0.0, out, 1.0), 1.0)
    limit_in = tl.minimum(lengths / tl.where(in_ > 0.0, in_, 1.0), 1.0)
    moved *= tl.minimum(limit_out[:, None], limit_in[None, :])
    both = moved + tl.trans(moved)
    unmoved = tl.maximum(lengths - tl.sum(both, axis=1), 0.0)
    allotted = both + tl.where(k[:, None] == k[None, :], unmoved[:, None], 0.0)
    even = lengths[:, None] * lengths[None, :] / tl.where(width > 0.0, width, 1.0)[:, None]
    allotted = lam[:, None] * allotted + (1.0 - lam)[:, None] * tl.where(same, even, 0.0)
    # Knots of length 0 have no intervals; their ratio is 1, as for a uniform share.
    rows = tl.sum(allotted, axis=1)
    some = (lengths > 0.0) & (rows > 0.0)
    gained = tl.sum(allotted * density[None, :], axis=1) / tl.where(some, rows, 1.0)
    return allotted, tl.where(some, gained, 1.0), density


@triton.jit
def holding(allotted, lengths, low, part, NK: tl.constexpr):
    """Returns the distribution of a token's priority over the intervals, [NK], summing to 1."""
    k = tl.arange(0, NK)
    rows = tl.sum(allotted, axis=1)
    some = (lengths > 0.0) & (rows > 0.0)
    part = part.to(tl.float64)
    of_knot = tl.where(k == low, 1.0 - part, 0.0) + tl.where(k == low + 1, part, 0.0)
    over = tl.where(some, of_knot / tl.where(some, rows, 1.0), 0.0)
    spread = tl.sum(tl.where(some, 0.0, of_knot), axis=0)
    return tl.sum(allotted * over[:, None], axis=0) + spread * lengths
