"""The forms that a head may have."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .block import BlockHead, BlockShape
from .head import Head, Learned, Shape


def new(
    form: str, model: dict[str, Any], layers: int, steps: int, dtype: torch.dtype, embedding: Tensor | None, norm: Tensor | None
) -> Learned:
    """A head of a form, of so many layers of the target's own shape, which drafts so many tokens. `model` is the folder's
    `model.json`, `embedding` the target's, if it is at hand, and `norm` the weights of its last norm."""
    if form == "eagle3":
        return Head(Shape.of_target(model, layers), dtype, norm)
    # A token that ends a text is never the last of one that goes on: its embedding is free to stand for a token not known.
    token = model["end_tokens"][0] if model["end_tokens"] else 0
    mask = torch.zeros(model["hidden_size"]) if embedding is None else embedding[token].float().cpu()
    return BlockHead(BlockShape.of_target(model, layers, steps, token), dtype, norm, mask)
