"""Finds the draft of `generate` from its arguments."""

from __future__ import annotations

import warnings
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from .static import head_of
from .static.heads import DraftHead
from .static.mtp import MTP, MtpHead, is_mtp

# Draft without a model: n-grams of the sequence itself.
NGRAM = "ngram"

_EXPECTED = (
    "a causal model, the folder of a draft head (config.json and model.safetensors), "
    f'"{MTP}" or "{NGRAM}"'
)  # fmt: skip
# Drafts of `Engine` and of the program that are given in another way here.
_ADVICE = {"auto": "leave it out for that", "none": 'give verifier="none" for plain decoding'}


def find_draft(draft: Any, model: PreTrainedModel) -> Any:
    """Returns the draft model or draft head that a value names, or None for n-grams.

    Raises:
        ValueError: a value that names no draft, or a head that cannot be read.
    """
    if isinstance(draft, str) and draft == NGRAM:
        return None
    if isinstance(draft, (str, PathLike)):
        if draft != MTP and not Path(draft).is_dir():
            advice = _ADVICE.get(str(draft))
            got = f"{str(draft)!r}" + (f" ({advice})" if advice else "")
            raise ValueError(f"polydraft: expected draft_model to be {_EXPECTED}, got {got}")
        return head_of(draft, model)
    if is_mtp(draft):
        return head_of(draft, model)
    if not isinstance(draft, (DraftHead, torch.nn.Module)):
        raise ValueError(f"polydraft: expected draft_model to be {_EXPECTED}, got {type(draft).__name__}")
    return draft


def builtin_mtp(model: PreTrainedModel) -> DraftHead | None:
    """Returns the model's own MTP layer, or None, with a warning, if it cannot be read."""
    try:
        return head_of(MTP, model)
    except Exception as error:  # noqa: BLE001 a model's files can be wrong in many ways
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        warnings.warn(f"polydraft: cannot read the model's own MTP layer, drafting with n-grams instead: {reason}", stacklevel=3)
        return None


def kind_of(draft: Any) -> str:
    """Returns the kind of a draft: `ngram`, `mtp`, `head` or `model`."""
    if draft is None:
        return NGRAM
    if isinstance(draft, DraftHead):
        return MTP if isinstance(draft, MtpHead) else "head"
    return "model"
