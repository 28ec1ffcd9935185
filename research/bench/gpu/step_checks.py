"""Checks that a step's passes are those of the paths they stand for.

No script of its own; `step.py` runs it before it times. With two layers, so that the second one's
keys depend on what the first one attended to: after draft, target, verification and gather, both
caches hold along the accepted path what one pass over this path alone, with a causal mask, writes;
and the target's logits at its nodes are that pass's logits.
"""

from __future__ import annotations

import torch
from decoder import Decoder
from kernel_checks import DEVICE

from step_graph import Step, padded


def gap(a, b) -> float:
    """Relative distance."""
    return ((a.float() - b.float()).norm() / b.float().norm()).item()


def alone(model, before, tokens, start):
    """The logits of one causal pass over `tokens` [B, n]; the cache was `before`."""
    model.cache.copy_(before)
    n, end = tokens.shape[1], padded(start + tokens.shape[1])
    at = torch.arange(n, device=DEVICE) + start
    mask = torch.arange(end, device=DEVICE)[None] <= at[:, None]
    return model.forward("gqa", tokens, at, mask, start)


def check_tree(pool, form, small) -> dict:
    """Gaps of both caches and of the target's logits, for one form of attention."""
    width, wide = (16, 64) if small else (128, 1024)
    shape = (wide, 2, 16 if not small else 4, 8 if not small else 2, width, 2 * wide,
             pool.p.shape[1])
    # A short context in float32: one slot too many in a mask must not hide behind rounding.
    context, room = 32, 80
    target, draft = (Decoder(shape, context, room, DEVICE, torch.float32) for _ in range(2))
    b, k, l = 2, 2, 3
    target.batch(b)
    draft.batch(b)
    before = target.cache.clone(), draft.cache.clone()
    step = Step(pool, b, k, l, "walk:priority", (target, draft), (form, form))
    step.last.random_(0, pool.p.shape[1])
    last = step.last.clone()
    step.fresh()
    step.again()
    nodes = torch.cat([last[:, 1:], step.tokens.view(b, k * l)], 1)
    logits = target.forward(form, nodes, step.places, step.target_mask)
    step.path.copy_(torch.tensor([1, 0], device=DEVICE))  # both paths, whatever was accepted
    step.gather()
    own = step.tokens[torch.arange(b, device=DEVICE), step.path]
    at = 1 + step.path[:, None] * l + torch.arange(l, device=DEVICE)
    logits = torch.cat([logits[:, :1], logits.gather(1, at[..., None].expand(-1, -1, shape[-1]))],
                       1)
    c, found = context, {"form": form, "rows_refused": int(step.packed[:, -1].max())}
    after = target.cache.clone(), draft.cache.clone()
    wanted = alone(target, before[0], torch.cat([last[:, 1:], own], 1), c)
    found["logits"] = gap(logits, wanted)
    found["target_cache"] = gap(after[0][..., c : c + 1 + l, :],
                                target.cache[..., c : c + 1 + l, :])
    alone(draft, before[1], torch.cat([last, own[:, :-1]], 1), c - 1)
    found["draft_cache"] = gap(after[1][..., c - 1 : c + l, :], draft.cache[..., c - 1 : c + l, :])
    bound = 3e-3
    worst = max(found[key] for key in ("logits", "target_cache", "draft_cache"))
    return found | {"ok": worst < bound and found["rows_refused"] == 0}
