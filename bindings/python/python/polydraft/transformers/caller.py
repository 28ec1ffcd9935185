"""Arguments that `model.generate` keeps for itself.

transformers up to 5.24, at least, hands a function given as `custom_generate` only those keyword arguments that `generate` does
not name in its own signature: `assistant_model` and `streamer`, which it names, do not arrive. They are read where they are, in
the frame of that call. When a version hands them over, they arrive as arguments, and nobody looks here.
"""

from __future__ import annotations

import inspect
from typing import Any

# Between a function and who called it may be decorators, of torch for one.
_FRAMES = 8


def kept_by_caller(name: str, function: Any) -> Any:
    """The argument of that name of the `generate` that was called with `custom_generate=function`; none if there is none."""
    frame = inspect.currentframe()
    try:
        for _ in range(_FRAMES):
            frame = None if frame is None else frame.f_back
            if frame is None:
                return None
            if frame.f_code.co_name == "generate" and frame.f_locals.get("custom_generate") is function:
                return frame.f_locals.get(name)
        return None
    finally:
        del frame
