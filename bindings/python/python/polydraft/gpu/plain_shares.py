"""Pools and shares in plain PyTorch; see `kernels.pool` and `kernels.shares`.

All functions accept any leading dimensions.
"""

from __future__ import annotations

import torch

TAIL = 2.0**-7
LOWEST = 2.0**-3
OCTAVES = 7.0


def knot(r: torch.Tensor, knots: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the knot at or below each ratio, and the ratio's part of the next knot."""
    per = (knots - 2) / OCTAVES
    position = torch.log2(r.clamp_min(LOWEST) / LOWEST) * per
    low = (position.long() + 1).clamp_max(knots - 2)
    low = torch.where(r < LOWEST, torch.zeros_like(low), low)
    below = torch.where(low == 0, torch.zeros_like(r), LOWEST * torch.exp2((low - 1).to(r) / per))
    above = LOWEST * torch.exp2(low.to(r) / per)
    return low, ((r - below) / (above - below)).clamp(0.0, 1.0)


def knot_ratios(knots: int, like: torch.Tensor) -> torch.Tensor:
    """Returns the ratios of all knots."""
    k = torch.arange(knots, device=like.device, dtype=torch.float32)
    per = (knots - 2) / OCTAVES
    rising = (LOWEST * torch.exp2((k - 1) / per)).to(like.dtype)
    return torch.where(k == 0, torch.zeros_like(rising), rising)


def ratio_of(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Returns p/q, at most 2^20, and 0 where q is 0."""
    ratio = (p / torch.where(q > 0.0, q, torch.ones_like(q))).clamp_max(2.0**20)
    return torch.where(q > 0.0, ratio, torch.zeros_like(q))


def pooled_ratio(p: torch.Tensor, q: torch.Tensor, tail: torch.Tensor | None) -> torch.Tensor:
    """Returns each token's pooled ratio; `tail` is the common ratio of all rare tokens."""
    r, rare = ratio_of(p, q), q < TAIL / q.shape[-1]
    if tail is None:
        rare_q = torch.where(rare, q, torch.zeros_like(q)).sum(-1)
        rare_p = torch.where(rare, q * r, torch.zeros_like(q)).sum(-1)
        tail = rare_p / torch.where(rare_q > 0.0, rare_q, torch.ones_like(rare_q))
    return torch.where(rare, tail[..., None], r)


def knot_lengths(q: torch.Tensor, r: torch.Tensor, knots: int) -> torch.Tensor:
    """Returns the draft's probability on each knot, `[..., knots]`, summing to 1."""
    low, part = knot(r, knots)
    lengths = torch.zeros(*q.shape[:-1], knots, dtype=q.dtype, device=q.device)
    lengths.scatter_add_(-1, low, q * (1.0 - part)).scatter_add_(-1, low + 1, q * part)
    return lengths / lengths.sum(-1, keepdim=True)


def over(numerator: torch.Tensor, denominator: torch.Tensor) -> torch.Tensor:
    """Returns the quotient, or the numerator where the denominator is not positive."""
    return numerator / torch.where(denominator > 0.0, denominator, torch.ones_like(denominator))


def last_is(values: torch.Tensor, last: float) -> torch.Tensor:
    """Clamps values to at most `last` and sets the last one to it."""
    values = values.clamp_max(last).clone()
    values[..., -1] = last
    return values


def excess(mass: torch.Tensor, demand: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Returns the optimal masses below each knot's end minus `mass`, `[..., knots]`.

    The arguments are running sums; `mass` is that of the lowest priorities. See `kernels.shares`.
    """
    k = torch.arange(mass.shape[-1], device=mass.device)
    inf = torch.full_like(mass, torch.inf)
    d = mass - demand
    most = d.amax(-1, keepdim=True).clamp_min(0.0)
    # The last knot at which mass exceeds demand the most; -1 if it never does.
    rank = torch.where(d >= most, k, torch.full_like(k, -1)).amax(-1, keepdim=True)
    # The full demand. Masses proportional to lengths are the tangent lines from 0 and to 1 that
    # touch it from below.
    wanted = demand + most
    slope, split = torch.where((k <= rank) & (ends > 0.0), over(wanted, ends), inf).min(
        -1, keepdim=True)
    below = torch.where(k <= split, torch.where(slope < inf, slope, wanted) * ends, wanted)
    level = torch.where((k >= rank) & (ends < 1.0), over(1.0 - wanted, 1.0 - ends), -inf)
    start = torch.where(rank < 0, 1.0 - most, -inf[..., :1])
    slope, split = torch.cat([start, level], -1).max(-1, keepdim=True)
    above = torch.where(k < split, wanted, 1.0 - slope * (1.0 - ends))
    best = torch.where(k <= rank, below, above)
    left = torch.where(torch.isfinite(best), (best - mass).clamp_min(0.0), torch.zeros_like(mass))
    return torch.where((k == rank) | (k == k[-1]), torch.zeros_like(mass), left)


def exchange(
    lengths: torch.Tensor, ratios: torch.Tensor, ends: torch.Tensor, mass: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns each knot's share of each interval, its selection ratio, and interval densities."""
    knots = lengths.shape[-1]
    k = torch.arange(knots, device=lengths.device)
    zero = torch.zeros_like(lengths)
    above = excess(mass, (ratios * lengths).cumsum(-1), ends)
    tight = above <= 0.0
    block = tight.long().cumsum(-1) - tight.long()
    before = (k[None, :] < k[:, None]) & tight[..., None, :]
    after = (k[None, :] >= k[:, None]) & tight[..., None, :]

    def latest(values: torch.Tensor) -> torch.Tensor:
        return torch.where(before, values[..., None, :], zero[..., None, :]).amax(-1)

    def next_(values: torch.Tensor) -> torch.Tensor:
        return torch.where(after, values[..., None, :], zero[..., None, :] + 2.0).amin(-1)

    from_t, from_g, to_t, to_g = latest(ends), latest(mass), next_(ends), next_(mass)
    width = to_t - from_t
    mean = over(to_g - from_g, width)
    same = block[..., :, None] == block[..., None, :]
    optimal = mass + above
    lacks = ((ends - from_t) * mean - (optimal - from_g)).clamp_min(0.0)
    lam = torch.where(tight | (lacks <= 0.0), zero, over(lacks, lacks + above))
    lam = torch.where(same, lam[..., None, :], zero[..., None, :]).amax(-1)
    lam = torch.where(lam < 1e-9, zero, torch.where(lam > 1.0 - 1e-9, zero + 1.0, lam))
    wanted = from_g + over(optimal - from_g - (1.0 - lam) * mean * (ends - from_t), lam)
    wanted = torch.where(tight | (lam <= 0.0), mass, wanted)
    in_order = mass.diff(dim=-1, prepend=zero[..., :1])
    lack = wanted.diff(dim=-1, prepend=zero[..., :1]) - in_order
    missing, spare = lack.clamp_min(0.0), (-lack).clamp_min(0.0)
    missing_to, spare_to = missing.cumsum(-1), spare.cumsum(-1)
    flow = torch.minimum(missing_to[..., :, None], spare_to[..., None, :])
    flow = flow - torch.maximum(
        (missing_to - missing)[..., :, None], (spare_to - spare)[..., None, :])
    density = torch.where(lengths > 0.0, over(in_order, lengths), zero)
    steeper = density[..., None, :] - density[..., :, None]
    able = same & (flow > 0.0) & (steeper > 0.0) & (k[:, None] < k[None, :])
    moved = torch.where(able, over(flow, steeper), torch.zeros_like(flow))
    limit_out = over(lengths, moved.sum(-1)).clamp_max(1.0)
    limit_in = over(lengths, moved.sum(-2)).clamp_max(1.0)
    moved = moved * torch.minimum(limit_out[..., :, None], limit_in[..., None, :])
    both = moved + moved.mT
    allotted = both + torch.diag_embed((lengths - both.sum(-1)).clamp_min(0.0))
    even = over(lengths[..., :, None] * lengths[..., None, :], width[..., :, None])
    even = torch.where(same, even, torch.zeros_like(even))
    allotted = lam[..., :, None] * allotted + (1.0 - lam)[..., :, None] * even
    rows = allotted.sum(-1)
    some = (lengths > 0.0) & (rows > 0.0)
    gained = over((allotted * density[..., None, :]).sum(-1), rows)
    return allotted, torch.where(some, gained, zero + 1.0), density


def holding(
    allotted: torch.Tensor, lengths: torch.Tensor, low: torch.Tensor, part: torch.Tensor
) -> torch.Tensor:
    """Returns the distribution of a token's priority over the intervals, summing to 1."""
    rows = allotted.sum(-1)
    some = (lengths > 0.0) & (rows > 0.0)
    of_knot = torch.zeros_like(lengths)
    of_knot.scatter_add_(-1, low[..., None], (1.0 - part)[..., None])
    of_knot.scatter_add_(-1, low[..., None] + 1, part[..., None])
    none = torch.zeros_like(lengths)
    spread = torch.where(some, none, of_knot).sum(-1, keepdim=True)
    weights = torch.where(some, over(of_knot, rows), none)
    return (allotted * weights[..., :, None]).sum(-2) + spread * lengths


def gain_at(gains: torch.Tensor, low: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """Interpolates m/q of tokens `[..., n]` between knots `[..., knots]`."""
    return gains.gather(-1, low) * (1.0 - part) + gains.gather(-1, low + 1) * part


def highest(ends: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """Returns G(t) = t^n: the distribution of the highest of `count` uniform priorities."""
    return ends ** count[..., None].to(ends.dtype)


def cell_worth(cells: int, paths: int, like: torch.Tensor) -> torch.Tensor:
    """Returns the mean of K·z^(K-1) on each cell of [0, 1]."""
    c = torch.arange(cells, device=like.device, dtype=like.dtype)
    start, end = c / cells, (c + 1) / cells
    worth, power = torch.ones_like(c), torch.ones_like(c)
    for _ in range(1, paths):
        power = power * end
        worth = worth * start + power
    return worth


def mass_below(
    ends: torch.Tensor, share: torch.Tensor, worth: torch.Tensor
) -> torch.Tensor:
    """Returns the mass of the lowest `ends` of a share, relative to its total mass."""
    below = share.cumsum(-1) - share
    inside = (ends[..., :, None] - below[..., None, :]).clamp_min(0.0)
    inside = torch.minimum(inside, share[..., None, :])
    return (inside * worth).sum(-1) / (share * worth).sum(-1, keepdim=True)


def part_of_share(
    share: torch.Tensor, hold: torch.Tensor, lengths: torch.Tensor, ends: torch.Tensor
) -> torch.Tensor:
    """Converts a token's distribution over the intervals to one over the cells."""
    upto = share.cumsum(-1)
    thick = torch.where(lengths > 0.0, over(hold, lengths), torch.zeros_like(hold))
    overlap = torch.minimum(ends[..., :, None], upto[..., None, :])
    start = torch.maximum((ends - lengths)[..., :, None], (upto - share)[..., None, :])
    new = ((overlap - start).clamp_min(0.0) * thick[..., :, None]).sum(-2)
    total = new.sum(-1, keepdim=True)
    return torch.where(total > 0.0, over(new, total), share)
