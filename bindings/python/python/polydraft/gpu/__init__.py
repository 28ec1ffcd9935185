"""Lossless multi-draft verification on GPUs: torch tensors in, torch tensors out.

    rows = distributions(draft_logits, Sampling(temperature=0.7))
    tokens = draw(rows, uniforms)
    verified = verify("nested-priority", tokens, rows, target_logits, more_uniforms)

Kernels are in Triton (NVIDIA and AMD); other devices take the same functions in plain PyTorch.
Nothing here waits for the device or looks at what it computed, so that all of it can be captured
in a CUDA graph. Nothing in this folder uses polydraft's compiled library: loaded by its path under
another name, as `research/bench/gpu/kernel_checks.py` does, it works without.
"""

from .distributions import distributions
from .draws import draw
from .methods import METHODS, Trace, Verified
from .rows import Rows
from .sampling import Sampling
from .verification import uniforms_needed, verify

__all__ = [
    "METHODS",
    "Rows",
    "Sampling",
    "Trace",
    "Verified",
    "distributions",
    "draw",
    "uniforms_needed",
    "verify",
]
