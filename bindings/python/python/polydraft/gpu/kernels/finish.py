"""Final kernels: the decision, the residual of the target, and the last token.

Problem: given each path's ratios target/selection at its tokens, decide which path to accept and
up to which token, and draw one more token from the residual of the target.
Source: block verification, Sun et al. 2024, algorithm 2 (also for nested priorities, against the
selection's distribution); walks down the tree, Sun et al. 2023 (SpecTr), algorithm 3.
Deviations: (1) all residual masses of a path are computed at once, by blocks of the vocabulary,
and the token is drawn from these blocks; (2) a residual without mass, which only rounding can
cause, is replaced by the target.
Cost: one read of the target's and the draft's rows along one path (block, nested) or at one node
(walks); then one block.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .pool import TAIL, draft_row_of, knot, node_of, ratio_of, target_row_of
from .rows import pick_block, pick_token, row_weights

# Choice of the path.
CHAIN = tl.constexpr(0)  # the only one
HIGHEST = tl.constexpr(1)  # the highest priority of all
WALK = tl.constexpr(2)  # at each node, the highest priority of the paths through it
# The selection's distribution, which is subtracted from the target.
CONSTANT = tl.constexpr(0)  # a multiple of the draft's probability
POOLED = tl.constexpr(1)  # by knots of ratios
K_SEQ = tl.constexpr(2)  # covered · min(draft, target/rho)


@triton.jit
def walk(tokens, priorities, accepts, uniforms, at, b, K: tl.constexpr, L: tl.constexpr,
         KP: tl.constexpr):
    """Walks down the tree. Returns the path and the number of its accepted tokens."""
    j = tl.arange(0, KP)
    alive = j < K
    path = b * 0
    length = b * 0
    going = length == 0
    for l in range(0, L):
        at_node = (b * K + j) * L + l
        z = tl.load(priorities + at_node, mask=alive, other=-1.0)
        z = tl.where(alive, z, -2.0)
        best = tl.min(tl.where(z == tl.max(z, axis=0), j, K - 1), axis=0)
        chance = tl.load(accepts + (b * K + best) * L + l)
        going = going & (tl.load(uniforms + at + l).to(tl.float64) < chance)
        token = tl.load(tokens + (b * K + best) * L + l)
        others = tl.load(tokens + at_node, mask=j < K, other=-1)
        alive = tl.where(going, alive & (others == token), alive)
        path = tl.where(going, best, path)
        length += going.to(tl.int32)
    return path, length


@triton.jit
def chosen(tokens, priorities, accepts, uniforms, width, coins, b, forced, K: tl.constexpr,
           L: tl.constexpr, KP: tl.constexpr, CHOICE: tl.constexpr, FORCED: tl.constexpr):
    """Returns the path, and for walks the accepted length."""
    if FORCED:
        path = tl.load(forced + b * 2)
        length = tl.load(forced + b * 2 + 1)
    elif CHOICE == CHAIN:
        path = b * 0
        length = b * 0
    elif CHOICE == HIGHEST:
        j = tl.arange(0, KP)
        z = tl.load(priorities + b * K + j, mask=j < K, other=-1.0)
        path = tl.min(tl.where(z == tl.max(z, axis=0), j, K - 1), axis=0)
        length = b * 0
    else:
        path, length = walk(tokens, priorities, accepts, uniforms, b * width + coins, b, K, L, KP)
    return path, length


@triton.jit
def weight_at(ratios, b, path, level, K: tl.constexpr, L: tl.constexpr):
    """Returns block verification's weight after `level` tokens."""
    weight = tl.load(ratios + b * K * L) * 0.0 + 1.0
    for l in range(0, L):
        ratio = tl.load(ratios + (b * K + path) * L + l)
        weight = tl.where(l < level, tl.minimum(weight * ratio, 1.0), weight)
    return weight


@triton.jit
def excess(p, q, scale, p_factor, q_factor, gains, tails, rhos, node, threshold,
           COVER: tl.constexpr, NK: tl.constexpr):
    """Returns (p_factor · p - selection)+ for weights p and q, in float64.

    The factors convert weights to probabilities, including block verification's weight.
    """
    wide = p.to(tl.float64) * p_factor
    if COVER == POOLED:
        r = ratio_of(p, q, scale)
        r = tl.where(q < threshold, tl.load(tails + node), r)
        low, part = knot(r, NK)
        g = tl.load(gains + node * NK + low) * (1.0 - part)
        g += tl.load(gains + node * NK + low + 1) * part
        taken = q.to(tl.float64) * g.to(tl.float64) * q_factor
    elif COVER == K_SEQ:
        rho = tl.load(rhos + node * 2)
        cover = tl.load(rhos + node * 2 + 1)
        taken = cover * tl.minimum(q.to(tl.float64) * q_factor, wide / rho)
    else:
        taken = q.to(tl.float64) * (q_factor * tl.load(gains + node))
    return tl.maximum(wide - taken, 0.0)


@triton.jit
def residual_kernel(dl, ds, dtops, dcuts, dlasts, drates, dtotals, tl_, ts, ttops, tcuts, tlasts,
                    trates, ttotals, tokens, vocabulary, blocks, uniforms, width, coins, ratios,
                    priorities, accepts, gains, tails, rhos, forced, left, K: tl.constexpr,
                    L: tl.constexpr, KP: tl.constexpr, LP: tl.constexpr, NK: tl.constexpr,
                    LEVELS: tl.constexpr, CHOICE: tl.constexpr, COVER: tl.constexpr,
                    FORCED: tl.constexpr, BLOCK: tl.constexpr):
    """Program (sequence's level, block): the mass of a block of the residual.

    LEVELS is L for block verification, which needs all levels, and 1 for walks, whose last level
    is known.
    """
    program = tl.program_id(0)
    block = tl.program_id(1)
    b = program // LEVELS
    path, level = chosen(tokens, priorities, accepts, uniforms, width, coins, b, forced, K, L, KP,
                         CHOICE, FORCED)
    if CHOICE != WALK:
        level = program % LEVELS
    mass = tl.load(ratios + b * K * L) * 0.0
    if level < L:
        first, count = node_of(tokens, b, path, level, K, L, KP, LP)
        drow = draft_row_of(b, first, level, K, L)
        trow = target_row_of(b, first, level, K, L)
        y = block * BLOCK + tl.arange(0, BLOCK)
        inside = y < vocabulary
        q = row_weights(dl, ds, drow, y, inside, dtops, dcuts, dlasts, drates)
        p = row_weights(tl_, ts, trow, y, inside, ttops, tcuts, tlasts, trates)
        total = tl.load(dtotals + drow)
        target_total = tl.load(ttotals + trow)
        weight = mass + 1.0
        if CHOICE != WALK:
            weight = weight_at(ratios, b, path, level, K, L)
        node = (b * K + path) * L + level
        threshold = (total * (TAIL / vocabulary)).to(tl.float32)
        scale = (total / target_total).to(tl.float32)
        rest = excess(p, q, scale, weight / target_total, 1.0 / total, gains, tails, rhos, node,
                      threshold, COVER, NK)
        mass = tl.sum(rest, axis=0)
    tl.store(left + program * blocks + block, mass)


@triton.jit
def emit_kernel(dl, ds, dtops, dcuts, dlasts, drates, dtotals, tl_, ts, ttops, tcuts, tlasts,
                trates, ttotals, target_masses, tokens, vocabulary, blocks, uniforms, width, coins,
                ratios, priorities, accepts, gains, tails, rhos, forced, left, states, out_path,
                out_length, out_next, out_tokens, out_state, chances, K: tl.constexpr,
                L: tl.constexpr, KP: tl.constexpr, LP: tl.constexpr, NK: tl.constexpr,
                LEVELS: tl.constexpr, CHOICE: tl.constexpr, COVER: tl.constexpr,
                FORCED: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr):
    """Program (sequence): the accepted length, the last token, and all outputs."""
    b = tl.program_id(0)
    n = tl.arange(0, BLOCKS)
    here = n < blocks
    path, length = chosen(tokens, priorities, accepts, uniforms, width, coins, b, forced, K, L, KP,
                          CHOICE, FORCED)
    if CHOICE != WALK:
        # The coins are independent; the longest prefix whose coin accepts counts.
        decided = b * 0
        for i in range(1, L + 1):
            weight = weight_at(ratios, b, path, i, K, L)
            inner = (i < L) & here
            rest = tl.sum(tl.load(left + (b * LEVELS + i) * blocks + n, mask=inner, other=0.0),
                          axis=0)
            sure = (weight <= 0.0) | (weight >= 1.0) | (i == L)
            chance = tl.where(sure, weight, rest / tl.where(sure, 1.0, rest + 1.0 - weight))
            tl.store(chances + b * L + i - 1, chance)
            coin = tl.load(uniforms + b * width + coins + i - 1).to(tl.float64)
            decided = tl.where(coin < chance, i, decided)
        if not FORCED:
            length = decided
    full = length >= L
    first, count = node_of(tokens, b, path, length, K, L, KP, LP)
    trow = target_row_of(b, first, length, K, L)
    # A full path has no draft row; any valid row can be read instead.
    drow = draft_row_of(b, tl.where(full, 0, first), tl.where(full, 0, length), K, L)
    level = tl.where(full, 0, length)
    at = b * LEVELS
    if CHOICE != WALK:
        at += level
    rest = tl.load(left + at * blocks + n, mask=here, other=0.0)
    rest = tl.where(full, 0.0, rest)
    plain = tl.sum(rest, axis=0) <= 0.0
    target = tl.load(target_masses + trow * blocks + n, mask=here, other=0.0).to(tl.float64)
    mass = tl.where(plain, target, rest)
    u = tl.load(uniforms + b * width + coins + L).to(tl.float64)
    block, into = pick_block(mass, here, u)
    y = block * BLOCK + tl.arange(0, BLOCK)
    inside = y < vocabulary
    q = row_weights(dl, ds, drow, y, inside, dtops, dcuts, dlasts, drates)
    p = row_weights(tl_, ts, trow, y, inside, ttops, tcuts, tlasts, trates)
    total = tl.load(dtotals + drow)
    target_total = tl.load(ttotals + trow)
    weight = tl.load(ratios + b * K * L) * 0.0 + 1.0
    if CHOICE != WALK:
        weight = weight_at(ratios, b, path, level, K, L)
    node = (b * K + path) * L + level
    threshold = (total * (TAIL / vocabulary)).to(tl.float32)
    scale = (total / target_total).to(tl.float32)
    over = excess(p, q, scale, weight / target_total, 1.0 / total, gains, tails, rhos, node,
                  threshold, COVER, NK)
    token = pick_token(tl.where(plain, p.to(tl.float64), over), y, into)
    # Checks all paths of the sequence, not only the chosen one.
    kk = tl.arange(0, KP)
    ll = tl.arange(0, LP)
    both = (kk[:, None] < K) & (ll[None, :] < L)
    each = tl.load(states + (b * K + kk[:, None]) * L + ll[None, :], mask=both, other=0)
    refused = (tl.max(each & 1, axis=1) | tl.max(each & 2, axis=1))
    state = tl.max(refused & 1, axis=0) | tl.max(refused & 2, axis=0)
    wrong = state != 0
    length = tl.where(wrong, 0, length)
    path = tl.where(wrong, -1, path)
    token = tl.where(wrong, -1, token).to(tl.int64)
    accepted = tl.load(tokens + (b * K + tl.maximum(path, 0)) * L + ll, mask=ll < length,
                       other=-1).to(tl.int64)
    row = tl.where(ll == length, token, accepted)
    tl.store(out_tokens + b * (L + 1) + ll, row, mask=ll <= L)
    tl.store(out_path + b, path)
    tl.store(out_length + b, length)
    tl.store(out_next + b, token)
    tl.store(out_state + b, state)
