"""A decoder with random weights and a KV cache, for measuring what passes cost.

No script of its own; `passes.py` and `step.py` use it. Weights are random (a pass costs the same)
and so is the cache. Attention over a tree has these forms:
  gqa       scaled_dot_product_attention with enable_gqa
  folded    the same, a group's query heads as further rows of its KV head: keys are read once
  products  two batched matrix products and a softmax over folded rows
  causal    scaled_dot_product_attention without a mask: for one node, which sees everything
  triton    kernels of `decoder_kernels.py`, also between the products
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

SHAPES = {  # hidden, layers, heads, KV heads, head width, feed-forward, vocabulary
    "llama-3.1-8b": (4096, 32, 32, 8, 128, 14336, 128256),
    "qwen3-4b": (2560, 36, 32, 8, 128, 9728, 151936),
    "qwen3-0.6b": (1024, 28, 16, 8, 128, 3072, 151936),
    "one-layer": (4096, 1, 32, 8, 128, 14336, 128256),
    "one-layer-32k": (4096, 1, 32, 8, 128, 14336, 32768),
}
EPSILON = 1e-5
FORMS = ("gqa", "folded", "products")


class Decoder:
    """A decoder of `shape` with random weights and a KV cache of random numbers."""

    def __init__(self, shape, context, room, device, dtype, tokens=None) -> None:
        h, self.layers, self.heads, self.kv, self.width, ff, self.vocab = shape
        g = torch.Generator(device=device).manual_seed(1)

        def w(*s):
            x = torch.randn(*s, generator=g, device=device, dtype=dtype)
            return x.mul_(s[-1] ** -0.5)

        inner = self.heads * self.width
        self.embed = w(tokens or self.vocab, h)
        self.blocks = [
            dict(
                qkv=w(inner + 2 * self.kv * self.width, h),
                o=w(h, inner),
                up=w(2 * ff, h),
                down=w(h, ff),
            )
            for _ in range(self.layers)
        ]
        self.head = w(self.vocab, h)
        self.context, self.room, self.device, self.dtype = context, room, device, dtype
        half = self.width // 2
        scale = 10000.0 ** (-torch.arange(half, device=device) / half)
        angle = torch.arange(context + room, device=device)[:, None].float() * scale
        self.cosines, self.sines = angle.cos(), angle.sin()
        # Of the embedding a pass reads a few rows only.
        self.parameters = self.head.numel()
        self.parameters += sum(t.numel() for b in self.blocks for t in b.values())

    def batch(self, size) -> None:
        """A cache [layers, 2, size, KV heads, slots, width] for `size` sequences."""
        length = self.context + self.room
        shape = (self.layers, 2, size, self.kv, length, self.width)
        self.cache = None
        self.cache = torch.empty(shape, device=self.device, dtype=self.dtype).normal_()

    def rotate(self, x, c, s):
        """x [b, n, heads, w] turned by its position's angles."""
        half = self.width // 2
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * c - b * s, b * c + a * s], -1)

    def attend(self, form, q, k, v, mask):
        """[b, n, heads · w]."""
        b, n, heads, width = q.shape
        if form in ("gqa", "causal"):
            mask = None if form == "causal" else mask
            y = F.scaled_dot_product_attention(
                q.transpose(1, 2), k, v, attn_mask=mask, enable_gqa=True
            )
            return y.transpose(1, 2).reshape(b, n, -1)
        group = heads // self.kv
        # Query heads of a group lie side by side: [b, n, kv, group, w] to [b, kv, group·n, w].
        q = q.view(b, n, self.kv, group, width).permute(0, 2, 3, 1, 4)
        q = q.reshape(b, self.kv, group * n, width)
        mask = mask.repeat(group, 1)
        if form == "folded":
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        else:
            scores = (q * width**-0.5) @ k.transpose(-1, -2)
            scores = scores.masked_fill(~mask, float("-inf"))
            y = torch.softmax(scores, -1) @ v
        y = y.view(b, self.kv, group, n, width).permute(0, 3, 1, 2, 4)
        return y.reshape(b, n, -1)

    def forward(self, form, tokens, positions, mask, start=None, last=None):
        """Tokens [batch, n], positions [n], mask [n, keys] to logits of the last nodes.

        The tokens' keys go into the cache's slots from `start` (default: after the context), and
        the first `keys` slots are attended to where the mask says so.
        """
        b, n = tokens.shape
        start = self.context if start is None else start
        end, x = mask.shape[1], self.embed[tokens]
        if form == "triton":
            return self.fused(x, positions, mask, start, last)
        c = self.cosines[positions].to(x.dtype)[:, None]
        s = self.sines[positions].to(x.dtype)[:, None]
        for block, cache in zip(self.blocks, self.cache):
            y = F.linear(F.rms_norm(x, x.shape[-1:], eps=EPSILON), block["qkv"])
            y = y.view(b, n, self.heads + 2 * self.kv, self.width)
            qk, v = y.split([self.heads + self.kv, self.kv], 2)
            q, k = self.rotate(qk, c, s).split([self.heads, self.kv], 2)
            cache[0, :, :, start : start + n] = k.transpose(1, 2)
            cache[1, :, :, start : start + n] = v.transpose(1, 2)
            y = self.attend(form, q, cache[0, :, :, :end], cache[1, :, :, :end], mask)
            x = x + F.linear(y, block["o"])
            y = F.linear(F.rms_norm(x, x.shape[-1:], eps=EPSILON), block["up"])
            gate, up = y.chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, block["down"])
        # Contiguous: of a strided batch each sequence would be a product of its own.
        x = x if last is None else x[:, -last:].contiguous()
        return F.linear(F.rms_norm(x, x.shape[-1:], eps=EPSILON), self.head)

    def fused(self, x, positions, mask, start, last):
        """The same with the kernels of `decoder_kernels`."""
        import decoder_kernels as kernels

        y, n = None, x.shape[1]
        for block, cache in zip(self.blocks, self.cache):
            y = F.linear(kernels.norm(x, y, EPSILON), block["qkv"])
            q = kernels.rotate(y, self.cosines, self.sines, positions, cache, start, self.heads,
                               self.kv, self.width)
            y = F.linear(kernels.attend(q, cache, mask, n, mask.shape[1]), block["o"])
            y = F.linear(kernels.norm(x, y, EPSILON), block["up"])
            y = F.linear(kernels.gate(y), block["down"])
        y = kernels.norm(x, y, EPSILON)
        return F.linear(y if last is None else y[:, -last:].contiguous(), self.head)
