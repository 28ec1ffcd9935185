"""One step of a batch: drafts K paths of L tokens, scores them in one target pass, verifies them and commits the accepted path.

Problem: every emitted token must have the target's distribution, and no part of a step may synchronize with the host.
Source: drawing and verification are in `polydraft.gpu`.
Method: node 0 is the last token; node 1 + path * L + i is token i of a path. All nodes attend to the sequence and to the nodes
before them on their path. The sequence has slots 0 to `context` (exclusive); the nodes have the slots after it.
Cost: one target pass, L drafter passes, and from polydraft.gpu two launches for each level plus about ten.
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
    """Configuration of a step. Filters map logits `[rows, V]` to filtered logits; None leaves them unchanged."""

    method: str
    paths: int
    length: int
    sampling: Sampling
    draft_sampling: Sampling
    filters: Callable[[torch.Tensor], torch.Tensor] | None
    draft_filters: Callable[[torch.Tensor], torch.Tensor] | None
    # Description of the filters, which cannot be compared themselves.
    named: str = ""

    def key(self) -> tuple[Any, ...]:
        """Returns a key that is equal for equal configurations."""
        filtered = (self.filters is None, self.draft_filters is None, self.named)
        return (self.method, self.paths, self.length, self.sampling, self.draft_sampling, filtered)

    @property
    def uniforms(self) -> int:
        """Number of uniforms that a sequence needs for a step."""
        return self.paths * self.length + uniforms_needed(self.method, self.paths, self.length)


class Step:
    """Buffers of a batch and the operations of a step."""

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
        self.nodes, self.offsets = torch.arange(1 + k * l, device=device), torch.arange(l, device=device)

    def run(self) -> None:
        """Runs the step. The result is in `packed`: L + 1 tokens, the number of accepted ones, the status."""
        tokens, q = self.draft()
        p = self.score(tokens)
        f = self.form
        coins = self.uniforms[:, f.paths * f.length :]
        found = verify(
            f.method, tokens, q, p, coins.contiguous(), sampling=f.sampling, draft_sampling=f.draft_sampling
        )  # fmt: skip
        self.commit(found)

    def draft(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Drafts K i.i.d. paths. Returns tokens, `[batch, K, L]`, and the logits they were drawn from, `[batch, K, L, V]`."""
        f, k, l = self.form, self.form.paths, self.form.length
        batch = len(self.context)
        drawn: list[torch.Tensor] = []
        rows: list[torch.Tensor] = []
        for level in range(l):
            logits = self.drafter.level(level, drawn[-1] if drawn else self.last, self.context)
            logits = self.filtered(fitted(logits, self.vocabulary), f.draft_filters)
            # At the first level all paths draw from one row.
            count = logits.shape[1]
            made = distributions(logits, f.draft_sampling)
            uniforms = self.uniforms[:, level * k : (level + 1) * k].reshape(batch, count, k // count)
            drawn.append(draw(made, uniforms).view(batch, k))
            rows.append(logits.expand(-1, k, -1))
        return torch.stack(drawn, 2), torch.stack(rows, 2)

    def score(self, tokens: torch.Tensor) -> torch.Tensor:
        """Computes the target's logits at all nodes, `[batch, 1 + K * L, V]`."""
        nodes = torch.cat([self.last[:, 1:], tokens.flatten(1)], 1)
        start = self.context[:, None]
        logits = self.target.forward(nodes, start + self.nodes, start + self.depths, self.sees, self.context, nodes.shape[1])
        return self.filtered(logits, self.form.filters)

    def filtered(self, logits: torch.Tensor, filters: Any) -> torch.Tensor:
        """Applies filters to logits; returns contiguous rows."""
        if filters is None:
            return logits.contiguous()
        return filters(logits.float().flatten(0, 1)).view(logits.shape)

    def commit(self, found: Any) -> None:
        """Moves the accepted path to the end of the sequence and appends the emitted tokens."""
        accepted, path = found.length.long(), found.path.long().clamp_min(0)
        start = self.context[:, None] + 1
        self.target.cache.move(start + path[:, None] * self.form.length + self.offsets, start + self.offsets)
        self.drafter.commit(found.tokens.clamp_min(0), path, accepted, self.context)
        before = found.tokens.gather(1, (accepted - 1).clamp_min(0)[:, None])
        before = torch.where(accepted[:, None] > 0, before, self.last[:, 1:])
        self.last.copy_(torch.cat([before, found.next[:, None]], 1).clamp_min(0))
        self.context.add_((accepted + 1) * self.alive)
        self.packed.copy_(torch.cat([found.tokens, accepted[:, None], found.status[:, None]], 1))
