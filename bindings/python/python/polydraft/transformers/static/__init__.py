"""Speculative decoding of transformers' models on their device: one CUDA graph and one small copy to the host for each step.

Every buffer has a fixed address and size: KV caches of numbered slots (`slots`), a model over them (`model`), a drafter that is
such a model or a draft head (`model_drafter`, `eagle`), a step of draft, target, verification and commit (`step`), and the loop
that runs steps and reads the emitted tokens (`loop`). On a CPU the same steps run without a graph.
"""

from .loop import Decoding, decode, head_of, release
from .model import takes_static

__all__ = ["Decoding", "decode", "head_of", "release", "takes_static"]
