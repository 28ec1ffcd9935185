"""Writes a head in the layout published by the authors of EAGLE-3 or DFlash, which `--draft` reads."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from .head import Learned


def export(head: Learned, tokens: Tensor, rows: Tensor | None, model: dict[str, Any], folder: Path) -> None:
    """Writes `config.json` and `model.safetensors` (bf16) to `folder`. `tokens` is the head's vocabulary; their `rows` of the
    target's output matrix, if given, are included for programs that do not read them from the target."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        **head.shape.config(),
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
        "vocab_size": model["vocab_size"],
        "draft_vocab_size": len(tokens),
        "max_position_embeddings": model["max_position_embeddings"],
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tensors = {name: weight.detach().bfloat16().cpu().contiguous() for name, weight in head.named().items()}
    tensors["d2t"] = tokens - torch.arange(len(tokens))
    if rows is not None:
        tensors["lm_head.weight"] = rows.bfloat16().cpu().contiguous()
    partial = folder / "model.partial"
    # Some readers reject files without this metadata entry.
    save_file(tensors, partial, {"format": "pt"})
    os.replace(partial, folder / "model.safetensors")
