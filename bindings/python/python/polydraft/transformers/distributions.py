"""From a model's logits to those of its distribution: the logits processors of `generate`, at every node of a tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .._native import Draft


def fitted(logits: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """A draft's logits over the target's tokens: `[rows, vocabulary]`.

    Models of one tokenizer may have more rows than it has tokens, each its own number. What the target has no row for cannot be
    drafted, and what the draft has none for it does not draft.
    """
    missing = vocabulary - logits.shape[-1]
    if missing > 0:
        return torch.nn.functional.pad(logits, (0, missing), value=float("-inf"))
    return logits[..., :vocabulary]


def processed(processors: Any, text: torch.Tensor, draft: Draft, nodes: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
    """Applies logits processors at nodes: each sees the sequence, `[1, length]`, and then the tokens of the node's path.

    Gives float32 `[nodes, vocabulary]` in the CPU's memory, rows without gaps.
    """
    logits = logits.to(text.device, torch.float32)
    if processors:
        tokens, depths = draft.tokens, draft.depths
        logits = logits.clone()
        for depth in sorted({int(depths[node]) for node in nodes}):
            rows = [row for row, node in enumerate(nodes) if depths[node] == depth]
            paths = [[int(tokens[step]) for step in draft.path(nodes[row])] for row in rows]
            behind = torch.tensor(paths, dtype=text.dtype, device=text.device).reshape(len(rows), depth)
            before = torch.cat([text.expand(len(rows), -1), behind], dim=-1)
            logits[rows] = processors(before, logits[rows]).to(torch.float32)
    return logits.cpu().contiguous()
