"""Estimated costs of steps, for the adaptive tree.

They follow from the sizes of the models, as in the `polydraft` program with a seed: nothing is measured, so nobody waits for it,
and a seed gives the same output in every run.
"""

from __future__ import annotations

import json
from typing import Any

from transformers import PreTrainedModel

from .._native import _estimated_costs

# Costs of passes relative to one over one token, by number of tokens, on an accelerator: Llama 3.1 8B in bf16 on an H100
# (research/records/2026-11-26-h100-passes.json).
_ACCELERATOR = [(1, 1.0), (2, 1.1), (16, 1.11), (32, 1.13), (64, 1.16)]


def estimated(model: PreTrainedModel, draft: PreTrainedModel | None) -> dict[str, Any]:
    """Returns the costs in the form that `tree={"tree": "auto", "costs": ..}` takes; without a draft model those of n-grams."""
    weights, size = _size(model)
    ratio = None
    if draft is not None:
        # Small passes take as long as their layers take to start.
        ratio = max(_size(draft)[1] / max(size, 1), _layers(draft) / _layers(model))
    passes = None if model.device.type == "cpu" else _ACCELERATOR
    costs: dict[str, Any] = json.loads(_estimated_costs(size, weights, _cache(model), ratio, passes))
    return costs


def _size(model: PreTrainedModel) -> tuple[int, int]:
    """Returns the number of weights, and their bytes."""
    sizes = [(weight.numel(), weight.element_size()) for weight in model.parameters()]
    return sum(count for count, _ in sizes), sum(count * size for count, size in sizes)


def _layers(model: PreTrainedModel) -> int:
    return getattr(model.config.get_text_config(decoder=True), "num_hidden_layers", None) or 1


def _cache(model: PreTrainedModel) -> int:
    """Returns the bytes of the KV cache per token; 0 if the configuration does not define them."""
    config = model.config.get_text_config(decoder=True)
    heads = getattr(config, "num_attention_heads", None) or 0
    groups = getattr(config, "num_key_value_heads", None) or heads
    width = getattr(config, "head_dim", None) or (getattr(config, "hidden_size", None) or 0) // max(heads, 1)
    return 2 * _layers(model) * groups * width * model.dtype.itemsize
