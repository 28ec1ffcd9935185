"""One pass over a row of logits: the largest logit, Σ exp, and the masses of blocks.

Problem: at batch size 1 there is a single row, and one program for it would use one of many
multiprocessors. So a row is split into blocks of the vocabulary with a program each, and a second
kernel merges their results. No softmax is written: later kernels recompute weights from the
logits, the row's largest logit and its rate.
Source: the online softmax of Milakov and Gimelshein 2018 (arXiv 1805.02867), by blocks.
Deviations: (1) the blocks' masses are stored, and drawing selects a block by them; (2) filters and
temperature 0 are expressed as a smallest kept logit (`cut`) and the last kept token with exactly
this logit (`last`), so that all kernels are the same with and without filters.
Cost: one read of the logits; R · blocks numbers written.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def weight(x, y, top, cut, last, rate):
    """Returns exp((x - top) · rate) for kept tokens y with logits x, 0 for others."""
    kept = (x > cut) | ((x == cut) & (y <= last))
    return tl.where(kept, tl.exp((x - top) * rate), 0.0)


@triton.jit
def row_weights(logits, stride, row, y, inside, tops, cuts, lasts, rates):
    """Returns the weights of tokens y in a row; 0 where not `inside`."""
    x = tl.load(logits + row.to(tl.int64) * stride + y, mask=inside, other=float("-inf"))
    top = tl.load(tops + row)
    cut = tl.load(cuts + row)
    last = tl.load(lasts + row)
    rate = tl.load(rates + row)
    w = weight(x.to(tl.float32), y, top, cut, last, rate)
    return tl.where(inside, w, 0.0)


@triton.jit
def partials_kernel(logits, stride, vocabulary, given_rates, part_top, part_sum, part_at,
                    part_bad, blocks, BLOCK: tl.constexpr):
    """Program (row, block): largest logit and its token, Σ exp relative to it, invalid logits."""
    row = tl.program_id(0)
    block = tl.program_id(1)
    y = block * BLOCK + tl.arange(0, BLOCK)
    inside = y < vocabulary
    x = tl.load(logits + row.to(tl.int64) * stride + y, mask=inside, other=float("-inf"))
    x = x.to(tl.float32)
    bad = (x != x) | (x == float("inf"))
    # Excludes invalid logits from the sums: comparisons with NaN differ between devices.
    x = tl.where(bad, float("-inf"), x)
    top = tl.max(x, axis=0)
    rate = tl.load(given_rates + row)
    base = tl.where(top == float("-inf"), 0.0, top)
    total = tl.sum(tl.where(inside, tl.exp((x - base) * tl.where(rate == 0.0, 1.0, rate)), 0.0),
                   axis=0)
    at = tl.min(tl.where((x == top) & inside, y, vocabulary), axis=0)
    out = row * blocks + block
    tl.store(part_top + out, top)
    tl.store(part_sum + out, total)
    tl.store(part_at + out, at)
    tl.store(part_bad + out, tl.max(bad.to(tl.int32), axis=0))


@triton.jit
def join_kernel(given_rates, part_top, part_sum, part_at, part_bad, vocabulary, blocks, tops,
                cuts, lasts, rates, totals, status, masses, arguments, BLOCK: tl.constexpr,
                BLOCKS: tl.constexpr):
    """Program (row): merges the blocks. Rate 0 means temperature 0."""
    row = tl.program_id(0)
    b = tl.arange(0, BLOCKS)
    inside = b < blocks
    top_b = tl.load(part_top + row * blocks + b, mask=inside, other=float("-inf"))
    sum_b = tl.load(part_sum + row * blocks + b, mask=inside, other=0.0)
    at_b = tl.load(part_at + row * blocks + b, mask=inside, other=0)
    bad = tl.max(tl.load(part_bad + row * blocks + b, mask=inside, other=0), axis=0)
    top = tl.max(top_b, axis=0)
    empty = top == float("-inf")
    base = tl.where(empty, 0.0, top)
    rate = tl.load(given_rates + row)
    greedy = rate == 0.0
    used = tl.where(greedy, 1.0, rate)
    argument = tl.min(tl.where((top_b == top) & inside, at_b, vocabulary), axis=0)
    argument = tl.where(empty, 0, argument)
    mass = tl.where(top_b == float("-inf"), 0.0, sum_b * tl.exp((top_b - base) * used))
    mass = tl.where(greedy, tl.where(b == argument // BLOCK, 1.0, 0.0), mass)
    mass = tl.where(inside, mass, 0.0)
    total = tl.sum(mass.to(tl.float64), axis=0)
    tl.store(masses + row * blocks + b, mass, mask=inside)
    tl.store(tops + row, base)
    tl.store(cuts + row, tl.where(greedy, base, float("-inf")))
    tl.store(lasts + row, tl.where(greedy, argument, vocabulary))
    tl.store(rates + row, used)
    tl.store(totals + row, tl.where(total > 0.0, total, 1.0))
    tl.store(arguments + row, argument)
    tl.store(status + row, tl.where((bad != 0) | empty, 1, 0))


@triton.jit
def masses_kernel(logits, stride, vocabulary, tops, cuts, lasts, rates, masses, blocks,
                  BLOCK: tl.constexpr):
    """Program (row, block): the mass of a block after filtering."""
    row = tl.program_id(0)
    block = tl.program_id(1)
    y = block * BLOCK + tl.arange(0, BLOCK)
    w = row_weights(logits, stride, row, y, y < vocabulary, tops, cuts, lasts, rates)
    tl.store(masses + row * blocks + block, tl.sum(w, axis=0))


@triton.jit
def totals_kernel(masses, totals, blocks, BLOCKS: tl.constexpr):
    """Program (row): sums the blocks' masses."""
    row = tl.program_id(0)
    b = tl.arange(0, BLOCKS)
    mass = tl.load(masses + row * blocks + b, mask=b < blocks, other=0.0).to(tl.float64)
    total = tl.sum(mass, axis=0)
    tl.store(totals + row, tl.where(total > 0.0, total, 1.0))


@triton.jit
def pick_block(mass, inside, u):
    """Returns the block that contains u of the cumulative mass, and the position in it, 0 to 1.

    Blocks of mass 0 are never picked. `mass` is in float64; u is in [0, 1).
    """
    b = tl.arange(0, mass.shape[0])
    total = tl.sum(mass, axis=0)
    upto = tl.cumsum(mass, axis=0)
    wanted = u * total
    # Falls back to the last block with mass if rounding leaves none above.
    last = tl.max(tl.where(inside & (mass > 0.0), b, 0), axis=0)
    first = tl.min(tl.where(inside & (mass > 0.0) & (upto > wanted), b, last), axis=0)
    block_mass = tl.sum(tl.where(b == first, mass, 0.0), axis=0)
    below = tl.sum(tl.where(b == first, upto - mass, 0.0), axis=0)
    into = (wanted - below) / tl.where(block_mass > 0.0, block_mass, 1.0)
    return first, tl.minimum(tl.maximum(into, 0.0), 1.0)


@triton.jit
def pick_token(w, y, into):
    """Returns the token at `into` of a block's cumulative weight; never one of weight 0."""
    w = w.to(tl.float64)
    upto = tl.cumsum(w, axis=0)
    wanted = into * tl.sum(w, axis=0)
    last = tl.max(tl.where(w > 0.0, y, 0), axis=0)
    return tl.min(tl.where((w > 0.0) & (upto > wanted), y, last), axis=0)


@triton.jit
def draw_kernel(logits, stride, vocabulary, tops, cuts, lasts, rates, masses, blocks, status,
                uniforms, draws, tokens, BLOCK: tl.constexpr, BLOCKS: tl.constexpr):
    """Program (row, draw): inverts the cumulative distribution, by blocks, then within one."""
    row = tl.program_id(0)
    draw = tl.program_id(1)
    b = tl.arange(0, BLOCKS)
    mass = tl.load(masses + row * blocks + b, mask=b < blocks, other=0.0).to(tl.float64)
    u = tl.load(uniforms + row * draws + draw).to(tl.float64)
    block, into = pick_block(mass, b < blocks, u)
    y = block * BLOCK + tl.arange(0, BLOCK)
    w = row_weights(logits, stride, row, y, y < vocabulary, tops, cuts, lasts, rates)
    token = tl.where(tl.load(status + row) == 0, pick_token(w, y, into), -1)
    tl.store(tokens + row * draws + draw, token.to(tl.int64))
