"""Triton kernels of `decoder.py`'s form "triton": what lies between a decoder's matrix products.

No script of its own. A pass of one layer is four products and six of these kernels: a sum with its
norm (twice), rotation with the write into the KV cache, attention over parts of the keys, the
parts joined, and the gate. In plain PyTorch it is some forty kernels, which at batch 1 take as long
as the weights do.
Attention over a tree: every row of queries has its own mask over all keys; the keys are split, so
that at batch 1 more than one program per KV head works, and joined by their largest scores and
sums (Dao et al. 2023, "Flash-Decoding").
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

KEYS = 64  # keys of one turn of the loop
PROGRAMS = 264  # enough for two on each of 132 multiprocessors


@triton.jit
def norm_kernel(x, y, out, width, eps, ADD: tl.constexpr, BLOCK: tl.constexpr):
    """Program (row): x + y, written back to x if ADD, and its root-mean-square norm."""
    row = tl.program_id(0).to(tl.int64) * width
    i = tl.arange(0, BLOCK)
    inside = i < width
    v = tl.load(x + row + i, mask=inside, other=0.0)
    if ADD:
        v = (v.to(tl.float32) + tl.load(y + row + i, mask=inside, other=0.0).to(tl.float32))
        v = v.to(x.dtype.element_ty)
        tl.store(x + row + i, v, mask=inside)
    v = v.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(v * v, axis=0) / width + eps)
    tl.store(out + row + i, (v * scale).to(out.dtype.element_ty), mask=inside)


@triton.jit
def gate_kernel(x, out, width, BLOCK: tl.constexpr):
    """Program (row, block): silu(first half) · second half."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = i < width
    a = tl.load(x + row * 2 * width + i, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(x + row * 2 * width + width + i, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + i, (a / (1.0 + tl.exp(-a)) * b).to(out.dtype.element_ty),
             mask=inside)


@triton.jit(do_not_specialize=["nodes", "start", "slots", "size"])
def rotate_kernel(qkv, cosines, sines, positions, queries, cache, nodes, start, slots, size,
                  HEADS: tl.constexpr, KV: tl.constexpr, HALF: tl.constexpr):
    """Program (token, head): rotated queries [b, kv, n·group, w]; keys, values to their slots."""
    token = tl.program_id(0)
    head = tl.program_id(1)
    b = token // nodes
    n = token % nodes
    i = tl.arange(0, HALF)
    at = (token * (HEADS + 2 * KV) + head).to(tl.int64) * (2 * HALF)
    x = tl.load(qkv + at + i).to(tl.float32)
    y = tl.load(qkv + at + HALF + i).to(tl.float32)
    turn = tl.load(positions + n) * HALF
    c = tl.load(cosines + turn + i)
    s = tl.load(sines + turn + i)
    still = head >= HEADS + KV
    c = tl.where(still, 1.0, c)
    s = tl.where(still, 0.0, s)
    u = x * c - y * s
    v = y * c + x * s
    group: tl.constexpr = HEADS // KV
    if head < HEADS:
        kv = head // group
        query = (((b * KV + kv) * nodes + n) * group + head % group).to(tl.int64) * (2 * HALF)
        tl.store(queries + query + i, u.to(queries.dtype.element_ty))
        tl.store(queries + query + HALF + i, v.to(queries.dtype.element_ty))
    else:
        own = (head - HEADS) % KV
        side = (head - HEADS) // KV
        slot = ((side * size + b) * KV + own).to(tl.int64) * slots + start + n
        slot = slot * (2 * HALF)
        tl.store(cache + slot + i, u.to(cache.dtype.element_ty))
        tl.store(cache + slot + HALF + i, v.to(cache.dtype.element_ty))


@triton.jit(do_not_specialize=["rows", "length", "slots", "size", "splits"])
def attend_kernel(queries, cache, mask, parts, tops, sums, rows, length, slots, size, splits,
                  scale, KV: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr,
                  ROWS: tl.constexpr, PART: tl.constexpr, KEYS: tl.constexpr):
    """Program (sequence's KV head, split of the keys, tile of query rows)."""
    head = tl.program_id(0)
    split = tl.program_id(1)
    r = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    i = tl.arange(0, WIDTH)
    real = r < rows
    q = tl.load(queries + (head.to(tl.int64) * rows + r)[:, None] * WIDTH + i[None, :],
                mask=real[:, None], other=0.0)
    keys = cache + head.to(tl.int64) * slots * WIDTH
    values = keys + (size * KV).to(tl.int64) * slots * WIDTH
    top = tl.full([ROWS], -1.0e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    out = tl.zeros([ROWS, WIDTH], tl.float32)
    for at in range(0, PART, KEYS):
        j = split * PART + at + tl.arange(0, KEYS)
        inside = j < length
        k = tl.load(keys + j[None, :] * WIDTH + i[:, None], mask=inside[None, :], other=0.0)
        seen = tl.load(mask + (r // GROUP)[:, None] * length + j[None, :],
                       mask=real[:, None] & inside[None, :], other=0)
        s = tl.dot(q, k, input_precision="ieee") * scale
        s = tl.where(seen != 0, s, -1.0e30)
        new = tl.maximum(top, tl.max(s, axis=1))
        e = tl.where(seen != 0, tl.exp(s - new[:, None]), 0.0)
        fade = tl.exp(top - new)
        v = tl.load(values + j[:, None] * WIDTH + i[None, :], mask=inside[:, None], other=0.0)
        out = out * fade[:, None] + tl.dot(e.to(v.dtype), v, input_precision="ieee")
        total = total * fade + tl.sum(e, axis=1)
        top = new
    to = (head.to(tl.int64) * splits + split) * rows + r
    tl.store(parts + to[:, None] * WIDTH + i[None, :], out, mask=real[:, None])
    tl.store(tops + to, top, mask=real)
    tl.store(sums + to, total, mask=real)


@triton.jit(do_not_specialize=["rows", "splits", "nodes"])
def join_kernel(parts, tops, sums, out, rows, splits, nodes, KV: tl.constexpr,
                GROUP: tl.constexpr, WIDTH: tl.constexpr, SPLITS: tl.constexpr):
    """Program (sequence's KV head, query row): all splits joined, to [b, n, heads · w]."""
    head = tl.program_id(0)
    row = tl.program_id(1)
    s = tl.arange(0, SPLITS)
    i = tl.arange(0, WIDTH)
    inside = s < splits
    at = (head.to(tl.int64) * splits + s) * rows + row
    top = tl.load(tops + at, mask=inside, other=-1.0e30)
    fade = tl.where(inside, tl.exp(top - tl.max(top, axis=0)), 0.0)
    total = tl.sum(tl.load(sums + at, mask=inside, other=0.0) * fade, axis=0)
    each = tl.load(parts + at[:, None] * WIDTH + i[None, :], mask=inside[:, None], other=0.0)
    value = tl.sum(each * fade[:, None], axis=0) / total
    b = head // KV
    place = ((b * nodes + row // GROUP) * KV + head % KV) * GROUP + row % GROUP
    tl.store(out + place.to(tl.int64) * WIDTH + i, value.to(out.dtype.element_ty))


def norm(x: torch.Tensor, y: torch.Tensor | None, eps: float) -> torch.Tensor:
    """The norm of x + y, which x becomes; of x without y."""
    out, width = torch.empty_like(x), x.shape[-1]
    block = triton.next_power_of_2(width)
    norm_kernel[(x.numel() // width,)](
        x, x if y is None else y, out, width, eps, ADD=y is not None,
        BLOCK=block, num_warps=8 if block >= 2048 else 4)
    return out


def gate(x: torch.Tensor) -> torch.Tensor:
    """silu of the first half times the second."""
    width = x.shape[-1] // 2
    out = x.new_empty(*x.shape[:-1], width)
    block = min(1024, triton.next_power_of_2(width))
    gate_kernel[(out.numel() // width, triton.cdiv(width, block))](x, out, width, BLOCK=block)
    return out


def rotate(qkv, cosines, sines, positions, cache, start, heads, kv, width) -> torch.Tensor:
    """Queries [b, kv, n·group, w]; keys and values are written to the layer's cache."""
    b, n = qkv.shape[:2]
    queries = qkv.new_empty(b, kv, n * (heads // kv), width)
    rotate_kernel[(b * n, heads + 2 * kv)](
        qkv, cosines, sines, positions, queries, cache, n, start, cache.shape[3], b, HEADS=heads,
        KV=kv, HALF=width // 2, num_warps=1)
    return queries


def attend(queries, cache, mask, nodes, length) -> torch.Tensor:
    """[b, n, heads · w] from queries [b, kv, n·group, w] over the first `length` slots."""
    b, kv, rows, width = queries.shape
    group, tile = rows // nodes, min(64, max(16, triton.next_power_of_2(rows)))
    tiles, turns = triton.cdiv(rows, tile), triton.cdiv(length, KEYS)
    splits = max(1, min(turns, PROGRAMS // (b * kv * tiles)))
    split = triton.cdiv(turns, splits)
    splits = triton.cdiv(turns, split)
    parts = queries.new_empty(b * kv * splits * rows, width, dtype=torch.float32)
    tops, sums = parts.new_empty(2, b * kv * splits * rows).unbind()
    attend_kernel[(b * kv, splits, tiles)](
        queries, cache, mask.view(torch.uint8), parts, tops, sums, rows, length, cache.shape[3], b,
        splits, width**-0.5, KV=kv, GROUP=group, WIDTH=width, ROWS=tile, PART=split * KEYS,
        KEYS=KEYS, num_warps=8 if tile >= 64 else 4)
    out = queries.new_empty(b, nodes, kv * group * width)
    join_kernel[(b * kv, rows)](
        parts, tops, sums, out, rows, splits, nodes, KV=kv, GROUP=group, WIDTH=width,
        SPLITS=triton.next_power_of_2(splits), num_warps=4)
    return out
