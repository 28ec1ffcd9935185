"""Choice of the backend: Triton on NVIDIA and AMD, plain PyTorch elsewhere.

`TRITON_INTERPRET=1`, set before Triton is imported, runs the Triton kernels on a CPU.
"""

from __future__ import annotations

import os
from types import ModuleType

import torch

__all__ = ["name_of", "of"]


def interpreted() -> bool:
    """Whether Triton's interpreter is enabled."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def name_of(tensor: torch.Tensor) -> str:
    """Returns the backend for a tensor: `triton` or `plain`."""
    if tensor.device.type == "cuda" or (tensor.device.type == "cpu" and interpreted()):
        return "triton"
    return "plain"


def of(tensor: torch.Tensor) -> ModuleType:
    """Returns the backend module for a tensor.

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
