"""Grouped-query attention of a few queries to many keys, which replaces `sdpa` while a static step runs.

transformers repeats keys and values for each query head of a group before it calls PyTorch, which is most of the memory traffic
of a step over a long context. Here the query heads of a group are additional rows of one product, so keys are read once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F
from transformers import AttentionInterface, PreTrainedModel

NAME = "polydraft_folded"


def folded(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: torch.Tensor, dropout: float = 0.0,
    scaling: float | None = None, **kwargs: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """Attention of queries `[batch, heads, n, width]` to keys and values `[batch, shared, slots, width]`; mask
    `[batch, 1, n, slots]`."""
    batch, heads, n, _ = query.shape
    group = heads // key.shape[1]
    rows = query.reshape(batch, key.shape[1], group * n, query.shape[3])
    mask = attention_mask if group == 1 else attention_mask.repeat(1, 1, group, 1)
    found = F.scaled_dot_product_attention(rows, key, value, attn_mask=mask, scale=scaling)
    return found.reshape(batch, heads, n, -1).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, folded)


class Folding:
    """Context manager that replaces a model's `sdpa` attention by `folded`."""

    def __init__(self, model: PreTrainedModel) -> None:
        configs = {id(module.config): module.config for module in model.modules() if hasattr(module, "config")}
        self.configs = [config for config in configs.values() if getattr(config, "_attn_implementation", None) == "sdpa"]

    def __enter__(self) -> None:
        for config in self.configs:
            config._attn_implementation = NAME

    def __exit__(self, *error: object) -> None:
        for config in self.configs:
            config._attn_implementation = "sdpa"
