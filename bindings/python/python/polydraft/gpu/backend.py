"""Where tensors are worked on: Triton on NVIDIA and AMD, plain PyTorch elsewhere.

`TRITON_INTERPRET=1`, set before Triton is imported, runs the Triton kernels on a CPU.
"""

from __future__ import annotations

import os
from types import ModuleType

import torch

__all__ = ["as_rows", "name_of", "of", "wide"]

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def interpreted() -> bool:
    """Whether Triton's interpreter was asked for."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def name_of(tensor: torch.Tensor) -> str:
    """`triton` or `plain`: what works on this tensor."""
    if tensor.device.type == "cuda" or (tensor.device.type == "cpu" and interpreted()):
        return "triton"
    return "plain"


def of(tensor: torch.Tensor) -> ModuleType:
    """The module that works on this tensor.

    Raises:
        ImportError: a CUDA or ROCm tensor without Triton.
    """
    if name_of(tensor) == "plain":
        from . import plain

        return plain
    try:
        from .kernels import launch
    except ImportError as error:
        message = "polydraft.gpu: tensors on a GPU need Triton; install the package `triton`"
        raise ImportError(message) from error
    return launch


def wide(device: torch.device) -> torch.dtype:
    """The dtype of sums: float64 where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def as_rows(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Size]:
    """Logits as rows `[rows, V]` without copying, and the rows' shape.

    Raises:
        ValueError: a dtype or layout that kernels cannot read.
    """
    if logits.dtype not in DTYPES:
        raise ValueError(f"logits: must be float32, float16 or bfloat16, got {logits.dtype}")
    if logits.dim() < 1 or logits.numel() == 0:
        raise ValueError(f"logits: must be [..., V] and not empty, got {list(logits.shape)}")
    if logits.shape[-1] >= 1 << 24:
        raise ValueError(f"logits: a vocabulary below 2^24, got {logits.shape[-1]}")
    if logits.stride(-1) != 1 and logits.shape[-1] > 1:
        raise ValueError("logits: the last dimension must be contiguous; call .contiguous()")
    shape = logits.shape[:-1]
    try:
        return logits.view(-1, logits.shape[-1]), shape
    except RuntimeError as error:
        message = "logits: rows must lie at equal distances; call .contiguous()"
        raise ValueError(message) from error
