"""Applies the logits processors of `generate` at every node of a tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .._native import Draft


def fitted(logits: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Cuts or pads a draft's logits to the target's vocabulary: `[rows, vocabulary]`.

    Models with the same tokenizer may pad their vocabularies to different sizes. Tokens that the target lacks are dropped, and
    tokens that the draft lacks get -inf.
    """
    missing = vocabulary - logits.shape[-1]
    if missing > 0:
        return torch.nn.functional.pad(logits, (0, missing), value=float("-inf"))
    return logits[..., :vocabulary]


def processed(processors: Any, sequence: torch.Tensor, draft: Draft, nodes: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
    """Applies logits processors at nodes: each gets the sequence, `[1, length]`, followed by the tokens of the node's path.

    Returns contiguous float32 `[nodes, vocabulary]` in CPU memory.
    """
    logits = logits.to(sequence.device, torch.float32)
    if processors:
        tokens, depths = draft.tokens, draft.depths
        logits = logits.clone()
        for depth in sorted({int(depths[node]) for node in nodes}):
            rows = [row for row, node in enumerate(nodes) if depths[node] == depth]
            paths = [[int(tokens[step]) for step in draft.path(nodes[row])] for row in rows]
            drafted = torch.tensor(paths, dtype=sequence.dtype, device=sequence.device).reshape(len(rows), depth)
            before = torch.cat([sequence.expand(len(rows), -1), drafted], dim=-1)
            logits[rows] = processors(before, logits[rows]).to(torch.float32)
    return logits.cpu().contiguous()
