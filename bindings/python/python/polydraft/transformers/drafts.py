"""The draft of `generate`, from what its caller names."""

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

# The draft that needs no model: what the sequence repeats.
NGRAM = "ngram"

_EXPECTED = (
    "a causal model, the folder of a draft head (config.json and model.safetensors), "
    f'"{MTP}" or "{NGRAM}"'
)  # fmt: skip
# Drafts of `Engine` and of the program that are something else here.
_ELSEWHERE = {"auto": "leave it out, which is that", "none": 'give verifier="none", which drafts nothing'}


def find_draft(draft: Any, model: PreTrainedModel) -> Any:
    """The model or the head that a value stands for; none for n-grams.

    Raises:
        ValueError: a value that is no draft, or a head that cannot be read.
    """
    if isinstance(draft, str) and draft == NGRAM:
        return None
    if isinstance(draft, (str, PathLike)):
        if draft != MTP and not Path(draft).is_dir():
            advice = _ELSEWHERE.get(str(draft))
            got = f"{str(draft)!r}" + (f" ({advice})" if advice else "")
            raise ValueError(f"polydraft: expected draft_model to be {_EXPECTED}, got {got}")
        return head_of(draft, model)
    if is_mtp(draft):
        return head_of(draft, model)
    if not isinstance(draft, (DraftHead, torch.nn.Module)):
        raise ValueError(f"polydraft: expected draft_model to be {_EXPECTED}, got {type(draft).__name__}")
    return draft


def own_layer(model: PreTrainedModel) -> DraftHead | None:
    """The model's own layer for predicting several tokens; none, and a warning, where it cannot be read."""
    try:
        return head_of(MTP, model)
    except Exception as error:  # noqa: BLE001 what can be missing or wrong in a model's files is many things
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        warnings.warn(f"polydraft: the model's own layer cannot be read, n-grams draft: {reason}", stacklevel=3)
        return None


def kind_of(draft: Any) -> str:
    """What drafts, in a word."""
    if draft is None:
        return NGRAM
    if isinstance(draft, DraftHead):
        return MTP if isinstance(draft, MtpHead) else "head"
    return "model"
