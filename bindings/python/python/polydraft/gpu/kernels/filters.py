"""Filters top-k, top-p and min-p as a smallest kept logit, found without sorting.

Problem: keep the first tokens in the order of decreasing logits, lower tokens first among equal
ones, until k are kept (top-k) or they reach the part p of the mass (top-p); then drop those below
a share of the largest probability (min-p).
Source: the filters and their order are those of Hugging Face transformers
(`generation/logits_process.py`), with the Rust `Sampling`'s ties: exactly k tokens are kept.
A 16-ary search over the 32 bits of a float, mapped to integers of the same order, ends after 8
passes exactly at the logit of the last kept token; then the last kept token is found by counting
the tokens with this logit.
Deviations: (1) different logits are ordered by logit even if their weights are equal in float32;
-0 equals 0; (2) masses are summed in float32 within a split of the row and in float64 across
splits: if p·total is within rounding, 1e-7, of the mass at a token, that token may be kept or not;
(3) once the bracket contains a single value, the remaining passes return immediately.
Cost: at most 9 reads of the row for each of top-k and top-p, if enabled.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..rows import Rows
from .rows import weight

WAYS = tl.constexpr(16)
PASSES = 8
SPLIT = 2048
CHUNK = 512


@triton.jit
def key_of(x):
    """Maps float32 to int64 of the same order."""
    x = tl.where(x == 0.0, 0.0, x)
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF).to(tl.int64)


@triton.jit
def logit_of(key):
    """Inverts `key_of`."""
    bits = key.to(tl.int32)
    return tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF).to(tl.float32, bitcast=True)


@triton.jit
def narrowed(brackets, sums, goals, row, splits, SPLITS: tl.constexpr, SCALE: tl.constexpr):
    """Returns the bracket [low, high) after the last pass, and the goal."""
    low = tl.load(brackets + row * 2)
    high = tl.load(brackets + row * 2 + 1)
    goal = tl.load(goals + row)
    w = tl.arange(0, WAYS)
    s = tl.arange(0, SPLITS)
    at = (row * splits + s[:, None]) * WAYS + w[None, :]
    part = tl.load(sums + at, mask=(s < splits)[:, None], other=0.0)
    reached = tl.sum(part.to(tl.float64), axis=0)
    if SCALE:
        # The sum at the first pass' lowest pivot is the total mass: p becomes p · total.
        goal = goal * tl.sum(tl.where(w == 0, reached, 0.0), axis=0)
    step = (high - low + WAYS - 1) // WAYS
    pivot = low + w * step
    # The lowest pivot is the current lower bound, which has reached the goal.
    good = ((reached >= goal) | (w == 0)) & (pivot < high)
    best = tl.max(tl.where(good, w, 0), axis=0)
    high = tl.minimum(low + (best + 1) * step, high)
    low = low + best * step
    return low, high, goal


@triton.jit
def pass_kernel(logits, stride, vocabulary, tops, cuts, lasts, rates, given, brackets, goals,
                sums, new_brackets, new_goals, new_sums, splits, SPLITS: tl.constexpr,
                FIRST: tl.constexpr, SCALE: tl.constexpr, MASS: tl.constexpr,
                SPLIT: tl.constexpr, CHUNK: tl.constexpr):
    """Program (row, split): narrows the bracket by the last pass and sums for the next."""
    row = tl.program_id(0)
    split = tl.program_id(1)
    w = tl.arange(0, WAYS)
    top = tl.load(tops + row)
    cut = tl.load(cuts + row)
    last = tl.load(lasts + row)
    rate = tl.load(rates + row)
    if FIRST:
        low = key_of(tl.full([1], float("-inf"), tl.float32))
        high = key_of(tl.full([1], 0.0, tl.float32) + top) + 1
        low = tl.max(low, axis=0)
        high = tl.max(high, axis=0)
        wanted = tl.load(given + row)
        goal = wanted.to(tl.float64)
    else:
        low, high, goal = narrowed(brackets, sums, goals, row, splits, SPLITS, SCALE)
    if split == 0:
        tl.store(new_brackets + row * 2, low)
        tl.store(new_brackets + row * 2 + 1, high)
        tl.store(new_goals + row, goal)
    if high - low > 1:
        step = (high - low + WAYS - 1) // WAYS
        pivots = low + w * step
        reached = tl.zeros([WAYS], tl.float32)
        for start in range(0, SPLIT, CHUNK):
            y = split * SPLIT + start + tl.arange(0, CHUNK)
            inside = y < vocabulary
            x = tl.load(logits + row.to(tl.int64) * stride + y, mask=inside, other=float("-inf"))
            x = x.to(tl.float32)
            if MASS:
                amount = tl.where(inside, weight(x, y, top, cut, last, rate), 0.0)
            else:
                amount = (inside & ((x > cut) | ((x == cut) & (y <= last)))).to(tl.float32)
            above = key_of(x)[None, :] >= pivots[:, None]
            reached += tl.sum(tl.where(above, amount[None, :], 0.0), axis=1)
        tl.store(new_sums + (row * splits + split) * WAYS + w, reached)


@triton.jit
def ties_kernel(logits, stride, vocabulary, tops, cuts, lasts, rates, brackets, goals, sums,
                found, above_sums, equals, splits, SPLITS: tl.constexpr, MASS: tl.constexpr,
                SPLIT: tl.constexpr):
    """Program (row, split): the logit found by the search, the sum above it, and the number of
    tokens with this logit."""
    row = tl.program_id(0)
    split = tl.program_id(1)
    low, high, goal = narrowed(brackets, sums, goals, row, splits, SPLITS, False)
    y = split * SPLIT + tl.arange(0, SPLIT)
    inside = y < vocabulary
    top = tl.load(tops + row)
    cut = tl.load(cuts + row)
    last = tl.load(lasts + row)
    rate = tl.load(rates + row)
    x = tl.load(logits + row.to(tl.int64) * stride + y, mask=inside, other=float("-inf"))
    x = x.to(tl.float32)
    kept = inside & ((x > cut) | ((x == cut) & (y <= last)))
    if MASS:
        amount = tl.where(inside, weight(x, y, top, cut, last, rate), 0.0)
    else:
        amount = kept.to(tl.float32)
    key = key_of(x)
    tl.store(above_sums + row * splits + split, tl.sum(tl.where(key > low, amount, 0.0), axis=0))
    tl.store(equals + row * splits + split, tl.sum((kept & (key == low)).to(tl.int32), axis=0))
    if split == 0:
        tl.store(found + row, low)


@triton.jit
def cut_kernel(logits, stride, vocabulary, tops, cuts, lasts, rates, given, goals, found,
               above_sums, equals, splits, SPLITS: tl.constexpr, MASS: tl.constexpr,
               SPLIT: tl.constexpr):
    """Program (row): the smallest kept logit, and the last kept token with it."""
    row = tl.program_id(0)
    low = tl.load(found + row)
    goal = tl.load(goals + row)
    s = tl.arange(0, SPLITS)
    here = s < splits
    above = tl.sum(tl.load(above_sums + row * splits + s, mask=here, other=0.0).to(tl.float64),
                   axis=0)
    equal = tl.load(equals + row * splits + s, mask=here, other=0)
    count = tl.sum(equal, axis=0)
    top = tl.load(tops + row)
    cut = tl.load(cuts + row)
    last = tl.load(lasts + row)
    rate = tl.load(rates + row)
    value = logit_of(low)
    each = 1.0
    if MASS:
        each = tl.exp((value - top) * rate)
    missing = (goal - above) / tl.maximum(each, 1e-37)
    # Number of equal tokens that cover the missing part; at least the one found by the search.
    needed = tl.minimum(tl.maximum(tl.ceil(missing), 1.0), count.to(tl.float64)).to(tl.int32)
    upto = tl.cumsum(equal, axis=0)
    split = tl.min(tl.where(here & (upto >= needed), s, splits - 1), axis=0)
    before = tl.sum(tl.where(s == split, upto - equal, 0), axis=0)
    y = split * SPLIT + tl.arange(0, SPLIT)
    inside = y < vocabulary
    x = tl.load(logits + row.to(tl.int64) * stride + y, mask=inside, other=float("-inf"))
    x = x.to(tl.float32)
    same = inside & ((x > cut) | ((x == cut) & (y <= last))) & (key_of(x) == low)
    rank = before + tl.cumsum(same.to(tl.int32), axis=0)
    new_last = tl.min(tl.where(same & (rank >= needed), y, vocabulary), axis=0)
    wanted = tl.load(given + row).to(tl.float32)
    if MASS:
        on = wanted < 1.0
    else:
        on = wanted > 0.0
    on = on & (count > 0) & (value >= cut)
    tl.store(cuts + row, tl.where(on, value, cut))
    tl.store(lasts + row, tl.where(on, new_last, last))


@triton.jit
def floor_kernel(tops, cuts, lasts, rates, given, vocabulary):
    """Program (row): applies min-p."""
    row = tl.program_id(0)
    share = tl.load(given + row)
    top = tl.load(tops + row)
    cut = tl.load(cuts + row)
    floor = top + tl.log(share) / tl.load(rates + row)
    higher = floor > cut
    tl.store(cuts + row, tl.where(higher, floor, cut))
    tl.store(lasts + row, tl.where(higher, vocabulary, tl.load(lasts + row)))


def search(made: Rows, given: torch.Tensor, mass: bool) -> None:
    """Reduces the kept tokens to `given` tokens, or to the part `given` of the mass."""
    logits, count = made.logits, made.logits.shape[0]
    split = min(SPLIT, triton.next_power_of_2(made.vocabulary))
    chunk = min(CHUNK, split)
    splits = triton.cdiv(made.vocabulary, split)

    def new(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, device=logits.device, dtype=dtype)

    brackets = [new((count, 2), torch.int64) for _ in range(2)]
    goals = [new((count,), torch.float64) for _ in range(2)]
    sums = [new((count, splits, 16), torch.float32) for _ in range(2)]
    row = [logits, logits.stride(0), made.vocabulary]
    row += [made.tops, made.cuts, made.lasts, made.rates]
    padded = triton.next_power_of_2(splits)
    for index in range(PASSES):
        old, now = (index + 1) % 2, index % 2
        pass_kernel[(count, splits)](
            *row, given, brackets[old], goals[old], sums[old], brackets[now], goals[now],
            sums[now], splits, SPLITS=padded, FIRST=index == 0, SCALE=mass and index == 1,
            MASS=mass, SPLIT=split, CHUNK=chunk, num_warps=4)
    now = (PASSES - 1) % 2
    found, above = new((count,), torch.int64), new((count, splits), torch.float32)
    equals = new((count, splits), torch.int32)
    ties_kernel[(count, splits)](
        *row, brackets[now], goals[now], sums[now], found, above, equals, splits, SPLITS=padded,
        MASS=mass, SPLIT=split, num_warps=4)
    cut_kernel[(count,)](
        *row, given, goals[now], found, above, equals, splits, SPLITS=padded, MASS=mass,
        SPLIT=split, num_warps=4)


def narrow(made: Rows, rates: torch.Tensor) -> None:
    """Applies the filters enabled in `made.sampling` to cuts and lasts."""
    top_k, top_p, min_p = made.sampling.filters
    device, shape = made.logits.device, made.shape
    if top_k:
        search(made, made.sampling.setting("top_k", shape, device), False)
    if top_p:
        search(made, made.sampling.setting("top_p", shape, device), True)
    if min_p:
        given = made.sampling.setting("min_p", shape, device)
        floor_kernel[(made.logits.shape[0],)](
            made.tops, made.cuts, made.lasts, made.rates, given, made.vocabulary, num_warps=1)
