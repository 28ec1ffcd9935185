"""A causal model of transformers as the drafter of a static step.

Its cache matches the target's except for the last token of a fully accepted path, which was drafted but never processed. So the
first pass of a step always processes the last two tokens. Below the root, slots are ordered level by level.
"""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from .model import StaticModel


class ModelDrafter:
    """Drafts K paths of L tokens with a model, level by level."""

    reads: tuple[int, ...] = ()

    def __init__(self, model: PreTrainedModel, batch: int, paths: int, length: int) -> None:
        self.static, self.paths, self.length = StaticModel(model, batch), paths, length
        k, device = paths, model.device
        first = self.static.table(torch.tensor([[1, 0], [1, 1]], dtype=torch.bool))
        self.tables = [first]
        for level in range(1, length):
            sees = torch.zeros(k, level * k, dtype=torch.bool)
            for path in range(k):
                sees[path, path::k] = True
            self.tables.append(self.static.table(sees))
        self.path_index, self.last_two = torch.arange(k, device=device), torch.arange(2, device=device) - 1
        self.offsets = torch.arange(length - 1, device=device)

    @property
    def slots_needed(self) -> int:
        """Number of slots needed after the context."""
        return 1 + self.paths * self.length

    def resize(self, size: int) -> None:
        """Grows the cache to `size` slots."""
        self.static.cache.resize(size, self.static.device)

    def level(self, level: int, given: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        """Computes a level's logits, `[batch, rows, vocabulary]`: one row at the first level, where `given` are the last two
        tokens; then K rows, where `given` are the tokens of the level above, `[batch, K]`."""
        start = context[:, None]
        if level == 0:
            positions = start + self.last_two
            slots = torch.where(positions < 0, self.static.cache.size - 1, positions)
            return self.static.forward(given, slots, positions.clamp_min(0), self.tables[0], context - 1, 1)
        slots = start + 1 + (level - 1) * self.paths + self.path_index
        positions = (start + level).expand(-1, self.paths)
        return self.static.forward(given, slots, positions, self.tables[level], context + 1, self.paths)

    def commit(self, tokens: torch.Tensor, path: torch.Tensor, accepted: torch.Tensor, context: torch.Tensor) -> None:
        """Moves the accepted path to the end of the sequence; `context` is still that before the step."""
        start = context[:, None] + 1
        self.static.cache.move(start + self.offsets * self.paths + path[:, None], start + self.offsets)
