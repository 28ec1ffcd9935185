"""One step of a batch: K paths of L tokens are drafted, scored by the target in one pass, verified, and the accepted one kept.

Problem: every token that a step emits must have the target's distribution, and nothing in it may wait for the host.
Source: the draws and the verification are `polydraft.gpu`'s; see there.
Method: node 0 is the last token; node 1 + path * L + i the token i of a path. All nodes see the sequence, and those before them
on their path. The slots of the sequence are 0 to `context`, not with it; the nodes' follow.
Cost: the target's pass, L of the drafter, and of polydraft.gpu two launches a level and about ten.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ...gpu import Sampling, distributions, draw, uniforms_needed, verify
from ...gpu.rows import wide
from ..distributions import fitted
from .model import StaticModel


@dataclass
class Form:
    """What a step does. Filters map logits `[rows, V]` to those of the distribution; none leaves them as they are."""

    method: str
    paths: int
    length: int
    sampling: Sampling
    draft_sampling: Sampling
    filters: Callable[[torch.Tensor], torch.Tensor] | None
    draft_filters: Callable[[torch.Tensor], torch.Tensor] | None
    # What the filters are, for they cannot be compared.
    named: str = ""

    def key(self) -> tuple[Any, ...]:
        """Forms of one key do the same."""
        filtered = (self.filters is None, self.draft_filters is None, self.named)
        return (self.method, self.paths, self.length, self.sampling, self.draft_sampling, filtered)

    @property
    def uniforms(self) -> int:
        """How many a sequence needs for a step."""
        return self.paths * self.length + uniforms_needed(self.method, self.paths, self.length)


class Step:
    """The buffers of a batch, and what is done to them."""

    def __init__(self, form: Form, target: StaticModel, drafter: Any, batch: int, vocabulary: int) -> None:
        self.form, self.target, self.drafter, self.vocabulary = form, target, drafter, vocabulary
        k, l, device = form.paths, form.length, target.device
        self.context = torch.zeros(batch, dtype=torch.long, device=device)
        self.last = torch.zeros(batch, 2, dtype=torch.long, device=device)
        self.alive = torch.ones(batch, dtype=torch.long, device=device)
        self.uniforms = torch.zeros(batch, form.uniforms, dtype=wide(device), device=device)
        self.packed = torch.zeros(batch, l + 3, dtype=torch.long, device=device)
        sees = torch.zeros(1 + k * l, 1 + k * l, dtype=torch.bool)
        sees[:, 0] = True
        depths = torch.zeros(1 + k * l, dtype=torch.long)
        for path in range(k):
            for i in range(l):
                node = 1 + path * l + i
                sees[node, node - i : node + 1] = True
                depths[node] = i + 1
        self.sees, self.depths = target.table(sees), depths.to(device)
        self.nodes, self.along = torch.arange(1 + k * l, device=device), torch.arange(l, device=device)

    def run(self) -> None:
        """The whole step; what it emits is in `packed`: L + 1 tokens, the number accepted, the status."""
        tokens, q = self.draft()
        p = self.score(tokens)
        f = self.form
        coins = self.uniforms[:, f.paths * f.length :]
        found = verify(
            f.method, tokens, q, p, coins.contiguous(), sampling=f.sampling, draft_sampling=f.draft_sampling
        )  # fmt: skip
        self.commit(found)

    def draft(self) -> tuple[torch.Tensor, torch.Tensor]:
        """K i.i.d. paths, `[batch, K, L]`, and the logits that they were drawn from, `[batch, K, L, V]`."""
        f, k, l = self.form, self.form.paths, self.form.length
        batch = len(self.context)
        drawn: list[torch.Tensor] = []
        rows: list[torch.Tensor] = []
        for level in range(l):
            logits = self.drafter.level(level, drawn[-1] if drawn else self.last, self.context)
            logits = self.filtered(fitted(logits, self.vocabulary), f.draft_filters)
            # After nothing all paths draw from one row.
            many = logits.shape[1]
            made = distributions(logits, f.draft_sampling)
            uniforms = self.uniforms[:, level * k : (level + 1) * k].reshape(batch, many, k // many)
            drawn.append(draw(made, uniforms).view(batch, k))
            rows.append(logits.expand(-1, k, -1))
        return torch.stack(drawn, 2), torch.stack(rows, 2)

    def score(self, tokens: torch.Tensor) -> torch.Tensor:
        """The target's logits at all nodes, `[batch, 1 + K * L, V]`."""
        nodes = torch.cat([self.last[:, 1:], tokens.flatten(1)], 1)
        start = self.context[:, None]
        logits = self.target.forward(nodes, start + self.nodes, start + self.depths, self.sees, self.context, nodes.shape[1])
        return self.filtered(logits, self.form.filters)

    def filtered(self, logits: torch.Tensor, filters: Any) -> torch.Tensor:
        """The logits of what is drawn from, rows without gaps."""
        if filters is None:
            return logits.contiguous()
        return filters(logits.float().flatten(0, 1)).view(logits.shape)

    def commit(self, found: Any) -> None:
        """Keeps the accepted path, and takes what was emitted."""
        kept, path = found.length.long(), found.path.long().clamp_min(0)
        start = self.context[:, None] + 1
        self.target.cache.move(start + path[:, None] * self.form.length + self.along, start + self.along)
        self.drafter.commit(found.tokens.clamp_min(0), path, kept, self.context)
        before = found.tokens.gather(1, (kept - 1).clamp_min(0)[:, None])
        before = torch.where(kept[:, None] > 0, before, self.last[:, 1:])
        self.last.copy_(torch.cat([before, found.next[:, None]], 1).clamp_min(0))
        self.context.add_((kept + 1) * self.alive)
        self.packed.copy_(torch.cat([found.tokens, kept[:, None], found.status[:, None]], 1))
