"""Lossless multi-draft verification on GPUs: torch tensors in, torch tensors out.

    rows = distributions(draft_logits, Sampling(temperature=0.7))
    tokens = draw(rows, uniforms)
    verified = verify("nested-priority", tokens, rows, target_logits, more_uniforms)

Kernels are in Triton (NVIDIA and AMD); on other devices the same functions use plain PyTorch.
No function synchronizes with the device, so all of them can be captured in a CUDA graph. The
package does not use polydraft's compiled library: it can be loaded on its own by path under
another name, as `research/bench/gpu/kernel_checks.py` does.
"""

try:
    import torch  # noqa: F401
except ImportError as missing:
    raise ImportError(f"polydraft.gpu needs torch: pip install 'polydraft[gpu]' ({missing})", name=missing.name) from missing

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
