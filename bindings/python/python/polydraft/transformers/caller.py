"""Arguments that `model.generate` does not pass on.

transformers (up to 5.24, at least) passes a `custom_generate` function only the keyword arguments that `generate` does not name
in its own signature, so `assistant_model` and `streamer` never arrive. They are read from the frame of that call instead. If a
later version passes them, they arrive as arguments and this module is not used.
"""

from __future__ import annotations

import inspect
from typing import Any

# Maximum number of frames searched: decorators (such as torch's) may lie between a function and its caller.
_FRAMES = 8


def caller_argument(name: str, function: Any) -> Any:
    """Returns the argument `name` of the `generate` call with `custom_generate=function`, or None if there is no such call."""
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
