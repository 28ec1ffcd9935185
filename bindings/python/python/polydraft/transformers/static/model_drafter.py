"""A causal model of transformers as the drafter of a static step.

Its cache holds what the target's holds, but for the last token of a fully accepted path, which it drafted and never read: the
first pass of a step reads the last two tokens, whichever of them it has. Below the root, slots go level by level.
"""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from .model import StaticModel


class ModelDrafter:
    """K rows a level."""

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
        self.own, self.two = torch.arange(k, device=device), torch.arange(2, device=device) - 1
        self.kept = torch.arange(length - 1, device=device)

    @property
    def room(self) -> int:
        """Slots from the context on."""
        return 1 + self.paths * self.length

    def resize(self, size: int) -> None:
        """Room for so many slots."""
        self.static.cache.resize(size, self.static.device)

    def level(self, level: int, given: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        """Logits `[batch, rows, vocabulary]` of a level: of one row at the first, whose `given` are the last two tokens; then of
        K rows, whose `given` are the tokens of the level above, `[batch, K]`."""
        start = context[:, None]
        if level == 0:
            places = start + self.two
            slots = torch.where(places < 0, self.static.cache.size - 1, places)
            return self.static.forward(given, slots, places.clamp_min(0), self.tables[0], context - 1, 1)
        slots = start + 1 + (level - 1) * self.paths + self.own
        places = (start + level).expand(-1, self.paths)
        return self.static.forward(given, slots, places, self.tables[level], context + 1, self.paths)

    def commit(self, tokens: torch.Tensor, path: torch.Tensor, kept: torch.Tensor, context: torch.Tensor) -> None:
        """The accepted path goes to where the sequence goes on; `context` is as it was."""
        start = context[:, None] + 1
        self.static.cache.move(start + self.kept * self.paths + path[:, None], start + self.kept)
