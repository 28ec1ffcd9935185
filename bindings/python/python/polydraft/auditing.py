"""Audits of servers: the command `polydraft audit` as a function."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from .errors import Error, InvalidInput

__all__ = ["audit"]


def audit(
    url: str,
    *,
    model: str | None = None,
    reference: str | None = None,
    reference_model: str | None = None,
    target: str | None = None,
    api_key: str | None = None,
    checks: Sequence[str] = (),
    requests: int | None = None,
    minutes: int | None = None,
    connections: int | None = None,
    error_rate: float | None = None,
    sensitivity: float | None = None,
    tolerance: float | None = None,
    save: str | None = None,
    html: str | None = None,
    seed: int | None = None,
) -> dict[str, Any]:
    """Tests over HTTP whether the speculative decoding of a server is lossless.

    The arguments are the options of `polydraft audit` (see its help); None means the command's default. Progress goes to
    standard error if it is a terminal.

    Returns the report: `verdict` ("passed", "fault" or "not-enough-data"), `findings`, with a dictionary for every check of
    `check`, `verdict` (also "ignored" and "not-applicable"), `p_value`, `would_find`, `seen`, `summary` and `evidence`, and the
    server's properties.

    Raises InvalidInput for invalid options, Error if the server cannot be audited.
    """
    options = {
        "model": model,
        "reference": reference,
        "reference-model": reference_model,
        "target": target,
        "api-key": api_key,
        "requests": requests,
        "minutes": minutes,
        "connections": connections,
        "error-rate": error_rate,
        "sensitivity": sensitivity,
        "tolerance": tolerance,
        "save": save,
        "html": html,
        "seed": seed,
    }
    command = [sys.executable, "-m", "polydraft", "audit", url, "--json", "--no-config"]
    command += [f"--{name}={value}" for name, value in options.items() if value is not None]
    command += [f"--check={check}" for check in checks]
    terminal = sys.stderr is not None and sys.stderr.isatty()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=None if terminal else subprocess.PIPE, text=True)
    if done.stdout:
        return json.loads(done.stdout)
    message = (done.stderr or "").strip() or "see standard error"
    wrong_options = "error: invalid value" in message or "error: the argument" in message or "unknown check" in message
    raise (InvalidInput if wrong_options else Error)(f"polydraft audit ended with exit code {done.returncode}: {message}")
