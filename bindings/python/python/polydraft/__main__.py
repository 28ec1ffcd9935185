"""Entry point of the program `polydraft` and of `python -m polydraft`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path


def main() -> None:
    """Runs the program with this process's arguments, and ends the process with its exit code."""
    demo = Path(__file__).parent / "demo"
    if demo.is_dir():
        os.environ.setdefault("POLYDRAFT_DEMO", str(demo))
    # The program handles Ctrl-C, not Python.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from ._native import _run_program
    except ImportError:
        sys.exit("polydraft: this wheel was built without the program (the feature `program`)")
    _run_program(["polydraft", *sys.argv[1:]])


if __name__ == "__main__":
    main()
