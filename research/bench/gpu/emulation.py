"""Emulated acceptance: pairs of distributions (p, q) that stand in for a target and its draft.

No script of its own; `step.py` uses it. Weights are random there, so what a draft and a target
would say of each other has to be made: a pool of pairs, each with Σ min(p, q) as asked for, and at
every node of a tree the pair that a hash of the sequence's salt and the node's prefix chooses:
siblings differ, equal prefixes agree, and p of a prefix is a language model like any other.
Logits are in bfloat16; the distributions are exactly their softmax.
  noise    q is p with normal noise on its logits, as much at every position: so peaked positions
           are easy and flat ones are hard, as with models; Σ min(p, q) is right on average
  even     the same with as much noise at each position as makes Σ min(p, q) the same everywhere
  mixture  q = (1 - x) · p + x · r, where r is another pair's p: almost all that is wrong with the
           draft is where the target never goes, which is what several paths help with most
Drafts of one model by a smaller one lie between the two.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

KINDS = ("noise", "mixture", "even")
BINS = 32


@triton.jit
def stir(h, t):
    """The next hash, in [0, 2^31)."""
    h = ((h ^ t) * 1103515245 + 12345) & 0x7FFFFFFF
    h = h ^ (h >> 15)
    h = (h * 747796405) & 0x7FFFFFFF
    return h ^ (h >> 13)


@triton.jit(do_not_specialize=["level"])
def rows_kernel(salts, tokens, pool, out, which, vocabulary, count, level, K: tl.constexpr,
                L: tl.constexpr, TARGET: tl.constexpr, BLOCK: tl.constexpr):
    """Program (row, block): copies the row that the node's prefix has in the pool.

    Rows of the target are [B, 1 + K·L]; of the draft [B, K] of [B, K, L], at one level.
    """
    row = tl.program_id(0)
    if TARGET:
        r = row % (1 + K * L)
        b = row // (1 + K * L)
        k = tl.maximum(r - 1, 0) // L
        n = tl.where(r == 0, 0, (r - 1) % L + 1)
        to = row.to(tl.int64)
    else:
        b = row // K
        k = row % K
        n = level
        to = (row * L + level).to(tl.int64)
    h = tl.load(salts + b)
    for i in range(0, L):
        t = tl.load(tokens + (b * K + k) * L + i, mask=i < n, other=0)
        h = tl.where(i < n, stir(h, t), h)
    pair = (h >> 7) % count
    if tl.program_id(1) == 0:
        tl.store(which + to, pair)
    y = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = y < vocabulary
    x = tl.load(pool + pair * vocabulary + y, mask=inside, other=0.0)
    tl.store(out + to * vocabulary + y, x, mask=inside)


def copy_rows(salts, tokens, pool, out, which, level=None) -> None:
    """The target's rows, or with a level those that the draft's tokens of this level have."""
    b, k, l = tokens.shape
    v = pool.shape[1]
    block = min(8192, triton.next_power_of_2(v))
    rows_kernel[(b * (1 + k * l) if level is None else b * k, triton.cdiv(v, block))](
        salts, tokens, pool, out, which, v, pool.shape[0], 0 if level is None else level, K=k,
        L=l, TARGET=level is None, BLOCK=block)


def pairs_of(salts, tokens, count):
    """The pairs after all of `tokens` [B, n], in PyTorch: the kernel's hash again."""
    h = salts
    for t in tokens.unbind(-1):
        h = ((h ^ t) * 1103515245 + 12345) & 0x7FFFFFFF
        h = h ^ (h >> 15)
        h = (h * 747796405) & 0x7FFFFFFF
        h = h ^ (h >> 13)
    return (h >> 7) % count


def softmax(logits):
    """Rows of probabilities in float64."""
    return torch.softmax(logits.double(), -1)


class Pool:
    """`count` pairs over `vocabulary` tokens with Σ min(p, q) = `acceptance`."""

    def __init__(self, kind, acceptance, count, vocabulary, device, seed=7) -> None:
        g = torch.Generator(device=device).manual_seed(seed)

        def normal():
            return torch.randn(count, vocabulary, generator=g, device=device)

        # Zipf's law with exponents from flat to peaked: the largest p from 0.05 to 0.9.
        steep = torch.linspace(0.9, 3.5, count, device=device)[:, None]
        ranks = torch.rand(count, vocabulary, generator=g, device=device).argsort(-1)
        p = -steep * torch.log(ranks.float() + 1.0 + 2.0 / steep) + 0.3 * normal()
        self.p = p.to(torch.bfloat16)
        exact = softmax(self.p)
        low = torch.zeros(count, 1, device=device)
        high = torch.full_like(low, 1.0 if kind == "mixture" else 12.0)
        noise, other = normal(), exact.roll(1, 0)

        def made(x):
            if kind != "mixture":
                return (self.p.float() + x * noise).to(torch.bfloat16)
            return torch.log((1 - x) * exact + x * other).to(torch.bfloat16)

        for _ in range(24):
            middle = (low + high) / 2
            both = torch.minimum(exact, softmax(made(middle))).sum(-1, keepdim=True)
            both = both.mean().expand_as(both) if kind == "noise" else both
            low = torch.where(both > acceptance, middle, low)
            high = torch.where(both > acceptance, high, middle)
        self.q, self.count, self.kind, self.asked = made(high), count, kind, acceptance
        q = softmax(self.q)
        self.acceptance = torch.minimum(exact, q).sum(-1).mean().item()
        self.largest = exact.amax(-1).mean().item()
        place = exact.argsort(-1, descending=True).argsort(-1)
        single = BINS - 8
        rest = (place.float() / single).clamp_min(1).log2().long().clamp_max(7)
        self.bins = torch.where(place < single, place, single + rest)
        self.masses = torch.zeros(count, BINS, device=device, dtype=torch.float64)
        self.masses.scatter_add_(1, self.bins, exact)
        samples = 1 << (14 if vocabulary > 1000 else 12)
        u = torch.rand(count, samples, generator=g, device=device, dtype=torch.float64)
        token = torch.searchsorted(q.cumsum(-1), u).clamp_max(vocabulary - 1)
        ratio = exact.gather(-1, token) / q.gather(-1, token)
        # In random order: what one token's p/q is where the pair is a random one.
        order = torch.rand(ratio.numel(), generator=g, device=device).argsort()
        self.ratios = ratio.flatten()[order]

    def token_length(self, length) -> float:
        """Tokens of one path that token verification accepts: every coin has Σ min(p, q)."""
        return sum(self.acceptance**i for i in range(1, length + 1))

    def block_length(self, length) -> tuple[float, float]:
        """Tokens that block verification accepts, Σ E[w] for w = min(w · p/q, 1), with the error.

        The mean is over drawn ratios, in PyTorch alone.
        """
        many = self.ratios.numel() // length
        r = self.ratios[: many * length].view(many, length)
        w, total = torch.ones_like(r[:, 0]), torch.zeros_like(r[:, 0])
        for i in range(length):
            w = (w * r[:, i]).clamp_max(1.0)
            total += w
        return total.mean().item(), (total.std() / many**0.5).item()

    def first_bound(self, paths) -> float:
        """At most this often can any of `paths` drafts be the first token."""
        p, q = softmax(self.p), softmax(self.q)
        return torch.minimum(p, 1.0 - (1.0 - q) ** paths).sum(-1).mean().item()

    def g_test(self, counts) -> tuple[float, int, float]:
        """G, degrees of freedom and p-value of tokens counted by pair and bin."""
        g, free = 0.0, 0
        for seen, mass in zip(counts.double().cpu(), self.masses.cpu()):
            expected = mass * seen.sum()
            own = expected >= 5.0
            e = torch.cat([expected[own], expected[~own].sum()[None]])
            o = torch.cat([seen[own], seen[~own].sum()[None]])
            if e[-1] < 5.0:  # what is left goes to the least of the others
                e, o = e[:-1] + 0.0, o[:-1] + 0.0
                if e.numel() < 2:
                    continue
                e[-1] += expected[~own].sum()
                o[-1] += seen[~own].sum()
            some = o > 0
            g += 2.0 * (o[some] * torch.log(o[some] / e[some])).sum().item()
            free += e.numel() - 1
        half = torch.tensor([free / 2, g / 2], dtype=torch.float64)
        value = torch.special.gammaincc(half[0], half[1]).item() if free else 1.0
        return g, free, value
