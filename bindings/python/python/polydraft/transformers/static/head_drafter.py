"""A draft head, or a layer for predicting tokens ahead, as the drafter of a static step.

Problem: a head drafts from the target's hidden states, of which a pass gives one for each accepted node.
Source: Li et al. 2025 (EAGLE-3); Gloeckle et al. 2024 and DeepSeek-AI 2024 (multi-token prediction).
Method: place i of the head holds the target's state after token i and the embedding of token i + 1. A step's first pass takes
the places that the last one settled, at most L + 1, and says what the last of them leads to. Deeper levels read the head's own
state beside the token drafted; their keys are not kept, because the target's states replace them.
"""

from __future__ import annotations

import torch

from .heads import DraftHead
from .model import StaticModel, mask_of


class HeadDrafter:
    """K rows a level."""

    def __init__(self, head: DraftHead, target: StaticModel, batch: int, paths: int, length: int) -> None:
        self.passes, self.target, self.paths, self.length = head.started(batch), target, paths, length
        self.batch, self.size = batch, 0
        k, l, device = paths, length, head.device
        # The head's own state on each path, from level to level of a step.
        self.state: torch.Tensor
        # What the last pass settled: states, the tokens after them, how many.
        self.states = torch.zeros(batch, l + 1, head.width, dtype=head.dtype, device=device)
        self.tokens = torch.zeros(batch, l + 1, dtype=torch.long, device=device)
        self.count = torch.ones(batch, dtype=torch.long, device=device)
        self.tables = [target.table(torch.ones(l + 1, l + 1, dtype=torch.bool).tril())]
        for level in range(1, length):
            # From the context on: places that are not settled yet, then the drafts, level by level.
            sees = torch.zeros(k, l + level * k, dtype=torch.bool)
            for path in range(k):
                sees[path, l + path :: k] = True
            self.tables.append(target.table(sees))
        self.own, self.along = torch.arange(k, device=device), torch.arange(l + 1, device=device)

    @property
    def room(self) -> int:
        """Slots from the context on."""
        return self.length + 1 + self.paths * self.length

    def resize(self, size: int) -> None:
        """Room for so many slots."""
        self.passes.resize(size)
        self.size = size

    def run(
        self, state: torch.Tensor, tokens: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor, sees: torch.Tensor,
        base: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        """The head over rows that are written at slots and see what the table says, from the base on."""
        columns = torch.arange(self.size, device=slots.device) - base[:, None]
        return self.passes.forward(state, tokens, slots, positions, mask_of(sees, columns)[:, None])

    def prefill(self, tokens: torch.Tensor, start: int, features: torch.Tensor) -> None:
        """A piece of the prompts whose tokens begin at `start`: `tokens` are those after each, `[batch, length]`."""
        many = tokens.shape[1]
        places = torch.arange(start, start + many, device=tokens.device).expand(self.batch, -1)
        sees = self.target.table(torch.ones(many, many, dtype=torch.bool).tril())
        self.run(self.passes.first(features), tokens, places, places, sees, places[:, 0])

    def level(self, level: int, given: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        """Logits `[batch, rows, vocabulary]`: of one row at the first level, then of K."""
        if level == 0:
            state = self.passes.first(self.states)
            places = (context - self.count)[:, None] + self.along
            slots = torch.where(places < 0, self.size - 1, places)
            found = self.run(state, self.tokens, slots, places.clamp_min(0), self.tables[0], context - self.count)
            where = (self.count - 1)[:, None, None].expand(-1, 1, found.shape[2])
            self.state = found.gather(1, where)
            rows, self.state = self.state, self.state.expand(-1, self.paths, -1)
        else:
            start = context[:, None]
            slots = start + self.length + (level - 1) * self.paths + self.own
            places = (start + level - 1).expand(-1, self.paths)
            rows = self.state = self.run(self.state, given, slots, places, self.tables[level], context)
        return self.passes.logits(rows)

    def commit(self, tokens: torch.Tensor, path: torch.Tensor, kept: torch.Tensor, context: torch.Tensor) -> None:
        """Takes the states of the accepted nodes, and the tokens after them."""
        assert self.target.features is not None
        features = self.target.features
        nodes = (1 + path[:, None] * self.length + self.along - 1).where(self.along > 0, 0)
        self.states.copy_(features.gather(1, nodes[..., None].expand(-1, -1, features.shape[2])))
        self.tokens.copy_(tokens)
        self.count.copy_(kept + 1)
