"""Forms of draft heads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .block import BlockHead, BlockShape
from .head import Head, Learned, Shape


def new(
    form: str, model: dict[str, Any], layers: int, steps: int, dtype: torch.dtype, embedding: Tensor | None, norm: Tensor | None
) -> Learned:
    """Returns a new head of a form, with `layers` layers like the target's, that drafts `steps` tokens. `model` is the folder's
    `model.json`, `embedding` the target's, if available, and `norm` the weights of its last norm."""
    if form == "eagle3":
        return Head(Shape.of_target(model, layers), dtype, norm)
    # No draft begins after an end token, so its embedding can serve as the mask.
    token = model["end_tokens"][0] if model["end_tokens"] else 0
    mask = torch.zeros(model["hidden_size"]) if embedding is None else embedding[token].float().cpu()
    return BlockHead(BlockShape.of_target(model, layers, steps, token), dtype, norm, mask)
