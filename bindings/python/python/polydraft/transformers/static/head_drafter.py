"""A draft head or MTP layer as the drafter of a static step.

Problem: a head drafts from the target's hidden states, one for each accepted node.
Source: Li et al. 2025 (EAGLE-3); Gloeckle et al. 2024 and DeepSeek-AI 2024 (multi-token prediction).
Method: position i of the head combines the target's state after token i with the embedding of token i + 1. A step's first pass
processes the positions that the previous step accepted, at most L + 1, and returns the logits after the last one. Deeper levels
read the head's own state and the drafted token; the next step overwrites their keys, computed from the target's states.
"""

from __future__ import annotations

import torch

from .heads import DraftHead
from .model import StaticModel, mask_of


class HeadDrafter:
    """Drafts K paths of L tokens with a draft head, level by level."""

    def __init__(self, head: DraftHead, target: StaticModel, batch: int, paths: int, length: int) -> None:
        self.passes, self.target, self.paths, self.length = head.with_cache(batch), target, paths, length
        self.batch, self.size = batch, 0
        k, l, device = paths, length, head.device
        # The head's own state on each path, passed from level to level within a step.
        self.state: torch.Tensor
        # Accepted by the last step: states, the tokens after them, and their number.
        self.states = torch.zeros(batch, l + 1, head.width, dtype=head.dtype, device=device)
        self.tokens = torch.zeros(batch, l + 1, dtype=torch.long, device=device)
        self.count = torch.ones(batch, dtype=torch.long, device=device)
        self.tables = [target.table(torch.ones(l + 1, l + 1, dtype=torch.bool).tril())]
        for level in range(1, length):
            # Slots after the context: L pending positions, then the drafts, level by level.
            sees = torch.zeros(k, l + level * k, dtype=torch.bool)
            for path in range(k):
                sees[path, l + path :: k] = True
            self.tables.append(target.table(sees))
        self.path_index, self.offsets = torch.arange(k, device=device), torch.arange(l + 1, device=device)

    @property
    def slots_needed(self) -> int:
        """Number of slots needed after the context."""
        return self.length + 1 + self.paths * self.length

    def resize(self, size: int) -> None:
        """Grows the cache to `size` slots."""
        self.passes.resize(size)
        self.size = size

    def run(
        self, state: torch.Tensor, tokens: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor, sees: torch.Tensor,
        base: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        """Runs the head on rows that are written to `slots`; from slot `base` on, `sees` masks the attention."""
        columns = torch.arange(self.size, device=slots.device) - base[:, None]
        return self.passes.forward(state, tokens, slots, positions, mask_of(sees, columns)[:, None])

    def prefill(self, tokens: torch.Tensor, start: int, features: torch.Tensor) -> None:
        """Processes a chunk of the prompts that begins at `start`; `tokens`, `[batch, length]`, are shifted by one."""
        length = tokens.shape[1]
        positions = torch.arange(start, start + length, device=tokens.device).expand(self.batch, -1)
        sees = self.target.table(torch.ones(length, length, dtype=torch.bool).tril())
        self.run(self.passes.first(features), tokens, positions, positions, sees, positions[:, 0])

    def level(self, level: int, given: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        """Computes a level's logits, `[batch, rows, vocabulary]`: one row at the first level, then K rows."""
        if level == 0:
            state = self.passes.first(self.states)
            positions = (context - self.count)[:, None] + self.offsets
            slots = torch.where(positions < 0, self.size - 1, positions)
            found = self.run(state, self.tokens, slots, positions.clamp_min(0), self.tables[0], context - self.count)
            where = (self.count - 1)[:, None, None].expand(-1, 1, found.shape[2])
            self.state = found.gather(1, where)
            rows, self.state = self.state, self.state.expand(-1, self.paths, -1)
        else:
            start = context[:, None]
            slots = start + self.length + (level - 1) * self.paths + self.path_index
            positions = (start + level - 1).expand(-1, self.paths)
            rows = self.state = self.run(self.state, given, slots, positions, self.tables[level], context)
        return self.passes.logits(rows)

    def commit(self, tokens: torch.Tensor, path: torch.Tensor, accepted: torch.Tensor, context: torch.Tensor) -> None:
        """Stores the states of the accepted nodes and the tokens after them."""
        assert self.target.features is not None
        features = self.target.features
        nodes = (1 + path[:, None] * self.length + self.offsets - 1).where(self.offsets > 0, 0)
        self.states.copy_(features.gather(1, nodes[..., None].expand(-1, -1, features.shape[2])))
        self.tokens.copy_(tokens)
        self.count.copy_(accepted + 1)
