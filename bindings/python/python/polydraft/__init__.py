"""Lossless multi-draft speculative decoding: exact verification of several drafts, on numpy arrays or inside engines.

>>> import polydraft
>>> coupling = polydraft.couple("priority", [0.5, 0.3, 0.2], [0.2, 0.3, 0.5], drafts=2)
>>> round(coupling.acceptance().probability, 12)
0.86

`RULES`, `DRAFTINGS` and `VERIFIERS` list the accepted names; `TREES` has an example of every form of tree.
"""

from . import errors
from ._native import *  # noqa: F403
from ._native import DRAFTINGS, RULES, TREES, VERIFIERS, __version__
from .auditing import audit
from .errors import Error
from .paths import VerifiedArrays
from .traces import Replayed, replay
from .verification import enumerate_decisions, verify, verify_arrays

__all__ = [name for name in dir() if not name.startswith("_") and name not in ("auditing", "paths", "traces", "verification")] + ["__version__"]
