"""A step of speculation as functions over static buffers, which `step.py` captures and times.

No script of its own. A step of B sequences with K paths of L tokens:
  fresh   new uniforms and new salts of the emulated distributions, drawn on the device
  draft   L passes of the draft: the last two tokens (a fully accepted path's last token was never
          in the draft's cache), then K rows a level; after each the emulated rows are copied over
          the model's and one token a path is drawn by `polydraft.gpu`
  target  one pass over 1 + K·L nodes with a tree mask; the emulated rows copied over its logits
  verify  `polydraft.gpu.verify`; what is emitted goes to one small tensor for the host
  gather  the accepted path's keys and values, in both caches, to the slots after the context
The context stays at its length: every replay writes and gathers the same slots, so that each does
the same work. Without models only the emulated rows are made.
"""

from __future__ import annotations

import torch
from kernel_checks import CUDA, DEVICE, gpu

import emulation


def padded(slots):
    """Keys that a pass attends to: a multiple of 16, for the attention kernels."""
    return -(-slots // 16) * 16


class Step:
    """Buffers and parts of a step; `models` are (target, draft) or none."""

    def __init__(self, pool, batch, paths, length, method, models=None, forms=None) -> None:
        b, k, l = self.size = batch, paths, length
        self.pool, self.method, self.models, self.forms = pool, method, models, forms

        def new(*shape, dtype=torch.int64):
            return torch.zeros(*shape, device=DEVICE, dtype=dtype)

        v, f = pool.p.shape[1], torch.float64
        self.salts, self.tokens = new(b), new(b, k, l)
        self.draws, self.second = new(b, l, k, dtype=f), new(b, 1, dtype=f)
        self.coins = new(b, gpu.uniforms_needed(method, k, l), dtype=f)
        self.q = new(b, k, l, v, dtype=torch.bfloat16)
        self.p = new(b, 1 + k * l, v, dtype=torch.bfloat16)
        self.of_draft, self.of_target = new(b, k, l, dtype=torch.int32), new(b, 1 + k * l,
                                                                           dtype=torch.int32)
        self.last, self.path, self.length = new(b, 2), new(b), new(b)
        self.packed = new(b, l + 3)
        self.host = torch.zeros(b, l + 3, dtype=torch.int64, pin_memory=CUDA)
        self.sums, self.wrong = new(4, dtype=f), new(1)
        self.first = new(pool.count, emulation.BINS)
        self.next = new(pool.count, emulation.BINS)
        if models is not None:
            self.masks(models[0].context)

    def masks(self, c) -> None:
        """Who sees which slots: everybody the context and the root, then its own path."""
        _, k, l = self.size
        end = padded(c + 1 + k * l)
        mask = torch.zeros(1 + k * l, end, dtype=torch.bool)
        mask[:, : c + 1] = True
        place = [c]
        for path in range(k):
            for i in range(l):
                at = c + 1 + path * l
                mask[1 + path * l + i, at : at + i + 1] = True
                place.append(c + 1 + i)
        self.target_mask, self.places = mask.to(DEVICE), torch.tensor(place, device=DEVICE)
        end, self.levels = padded(c + 1 + k * (l - 1)), []
        for i in range(l):
            mask = torch.zeros(k if i else 2, end, dtype=torch.bool)
            mask[:, : c + 1] = True
            if i == 0:
                mask[0, c] = False
                place = torch.tensor([c - 1, c])
            else:
                for path in range(k):
                    mask[path, c + 1 + path : c + 1 + i * k : k] = True
                place = torch.full((k,), c + i)
            self.levels.append((mask.to(DEVICE), place.to(DEVICE)))
        own = torch.arange(l, device=DEVICE)
        self.from_target, self.from_draft = c + 1 + own, c + 1 + own[:-1] * k

    def fresh(self) -> None:
        """Uniforms and salts."""
        for buffer in (self.draws, self.coins, self.second):
            buffer.uniform_()
        self.salts.random_(0, 1 << 31)

    def copies(self) -> None:
        """All that emulation adds, for its own time."""
        for level in range(self.size[2]):
            emulation.copy_rows(self.salts, self.tokens, self.pool.q, self.q, self.of_draft, level)
        emulation.copy_rows(self.salts, self.tokens, self.pool.p, self.p, self.of_target)

    def draft(self) -> None:
        """K i.i.d. paths, level by level."""
        b, k, l = self.size
        for level in range(l):
            if self.models is not None:
                model, c = self.models[1], self.models[1].context
                mask, places = self.levels[level]
                given = self.tokens[:, :, level - 1] if level else self.last
                model.forward(self.forms[1], given, places, mask,
                              c + 1 + (level - 1) * k if level else c - 1, k if level else 1)
            emulation.copy_rows(self.salts, self.tokens, self.pool.q, self.q, self.of_draft, level)
            # After nothing all paths draw from one row.
            rows = k if level else 1
            made = gpu.distributions(self.q[:, :rows, level])
            drawn = gpu.draw(made, self.draws[:, level].reshape(b, rows, k // rows))
            self.tokens[:, :, level] = drawn.view(b, k)

    def target(self) -> None:
        """All nodes in one pass."""
        b, k, l = self.size
        if self.models is not None:
            nodes = torch.cat([self.last[:, 1:], self.tokens.view(b, k * l)], 1)
            self.models[0].forward(self.forms[0], nodes, self.places, self.target_mask)
        emulation.copy_rows(self.salts, self.tokens, self.pool.p, self.p, self.of_target)

    def verify(self) -> None:
        """Tokens that are emitted, and what the next step begins with."""
        out = gpu.verify(self.method, self.tokens, self.q, self.p, self.coins)
        kept = out.length.long()
        before = out.tokens.gather(1, (kept - 1).clamp(0, self.size[2])[:, None])
        before = torch.where(kept[:, None] > 0, before, self.last[:, 1:])
        self.last.copy_(torch.cat([before, out.next[:, None]], 1).clamp_min(0))
        self.path.copy_(out.path.clamp_min(0))
        self.length.copy_(kept)
        self.packed.copy_(torch.cat([out.tokens, kept[:, None], out.status[:, None]], 1))

    def gather(self) -> None:
        """Keys and values of the accepted path to where the context goes on."""
        b, k, l = self.size
        starts = (self.from_target + self.path[:, None] * l, self.from_draft + self.path[:, None])
        for model, slots in zip(self.models, starts):
            many, c = slots.shape[1], model.context
            layers, _, _, kv, _, width = model.cache.shape
            at = slots[None, None, :, None, :, None].expand(layers, 2, b, kv, many, width)
            model.cache[..., c + 1 : c + 1 + many, :] = model.cache.gather(4, at)

    def whole(self) -> None:
        """A step."""
        self.fresh()
        self.again()
        if self.models is not None:
            self.gather()

    def again(self) -> None:
        """Draft, target and verification with the uniforms that are there."""
        self.draft()
        self.target()
        self.verify()

    def counted(self) -> None:
        """A step without models, and what is counted of it."""
        self.whole()
        kept, one = self.length.double(), torch.ones_like(self.length)
        self.sums += torch.stack([kept.sum(), (kept * kept).sum(), (kept > 0).double().sum(),
                                  one.double().sum()])
        self.wrong += (self.packed[:, -1] != 0).sum()
        self.count(self.first, self.of_target[:, 0].long(), self.packed[:, 0], one)
        # The second token too: where it was not accepted, from p after the first.
        pair = emulation.pairs_of(self.salts, self.packed[:, :1], self.pool.count)
        drawn = gpu.draw(gpu.distributions(self.pool.p[pair]), self.second)[:, 0]
        token = torch.where(self.length > 0, self.packed[:, 1], drawn)
        self.count(self.next, pair, token, one)

    def count(self, into, pair, token, one) -> None:
        """Counts a token in its pair's bin."""
        place = self.pool.bins[pair, token.clamp(0, self.p.shape[-1] - 1)]
        into.view(-1).scatter_add_(0, pair * emulation.BINS + place, one)


class Plain:
    """Plain decoding: a pass over one token, a draw, one small copy to the host."""

    def __init__(self, pool, batch, model, form) -> None:
        self.pool, self.model, self.form = pool, model, form
        self.tokens = torch.zeros(batch, 1, 1, device=DEVICE, dtype=torch.int64)
        self.p = torch.zeros(batch, 2, pool.p.shape[1], device=DEVICE, dtype=torch.bfloat16)
        self.pairs = torch.zeros(batch, 2, device=DEVICE, dtype=torch.int32)
        self.salts = torch.zeros(batch, device=DEVICE, dtype=torch.int64)
        self.draws = torch.zeros(batch, 1, 1, device=DEVICE, dtype=torch.float64)
        self.packed = torch.zeros(batch, 1, device=DEVICE, dtype=torch.int64)
        self.host = torch.zeros(batch, 1, dtype=torch.int64, pin_memory=CUDA)
        c = model.context
        end = c + 1 if form == "causal" else padded(c + 1)
        self.mask = (torch.arange(end, device=DEVICE) <= c)[None]
        self.places = torch.tensor([c], device=DEVICE)

    def whole(self) -> None:
        """A step."""
        self.draws.uniform_()
        logits = self.model.forward(self.form, self.tokens[:, 0], self.places, self.mask)
        # The model's own logits: what they are does not matter, and nothing has to be copied.
        drawn = gpu.draw(gpu.distributions(logits), self.draws)
        self.packed.copy_(drawn[:, 0])
        self.tokens[:, 0] = drawn[:, 0]
