"""Estimate of a head's speedup from pass costs measured on this machine, before any training.

A step with a chain of L drafts costs a target pass over L + 1 tokens and L levels of the head, and emits
1 + a + a^2 + .. + a^L tokens if each is accepted with probability a. `polydraft bench speed` measures the costs with a head of
the right shape, whose weights do not matter.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Maximum chain length.
LONGEST = 12
SHOWN = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)


@dataclass(frozen=True)
class Costs:
    """Costs in units of a target pass over one token: target passes over 1, 2, .. tokens, each level of a draft, and the extra
    cost of the first level (for block heads nearly all of the cost)."""

    target: tuple[float, ...]
    head: float
    first: float = 0.0

    def gain(self, acceptance: Sequence[float]) -> tuple[float, int]:
        """Returns the speedup over plain decoding at the best chain length, and that length. `acceptance` is by position; the
        last value applies to all later positions."""
        best, tokens, reached = (1.0, 0), 1.0, 1.0
        for length in range(1, len(self.target)):
            reached *= acceptance[min(length, len(acceptance)) - 1]
            tokens += reached
            best = max(best, (tokens / (self.target[length] + self.first + length * self.head), length))
        return best


def at(passes: list[dict[str, float]], tokens: int) -> float:
    """Returns the seconds of a pass over `tokens` tokens, linearly interpolated between measurements."""
    for low, high in zip(passes, passes[1:]):
        if tokens <= high["tokens"]:
            share = (tokens - low["tokens"]) / (high["tokens"] - low["tokens"])
            return low["seconds"] + max(share, 0.0) * (high["seconds"] - low["seconds"])
    return passes[-1]["seconds"]


def measure(target: Path, head: Path, dtype: str | None, threads: int | None) -> Costs:
    """Measures the costs on this machine, in a few seconds."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "polydraft", "bench", "speed", "--json", "--no-config", "--quiet", "--seconds", "1"]
        command += ["--max-tokens", "8", "--target", str(target), "--draft", str(head), "--costs", f"{folder}/costs.json"]
        command += ["--dtype", dtype] if dtype else []
        command += ["--threads", str(threads)] if threads else []
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"measuring pass costs: {done.stderr.strip() or done.returncode}")
    costs: dict[str, Any] = json.loads(done.stdout)["costs"]
    one = at(costs["target"], 1)
    passes = tuple(at(costs["target"], n) / one for n in range(1, LONGEST + 2))
    return Costs(passes, at(costs["draft"], 1) / one, costs["first"] / one)


def table(costs: Costs) -> str:
    lines = [
        f"on this machine, in target passes: a draft of the head costs {costs.first + costs.head:.3f}, each further level "
        f"{costs.head:.3f}, a target pass over 4 tokens {costs.target[3]:.2f}, "
        f"over 8 {costs.target[7]:.2f}",
        "acceptance " + "  ".join(f"{a:5.1f}" for a in SHOWN),
        "speedup   " + " ".join(f"{costs.gain([a])[0]:6.2f}" for a in SHOWN),
    ]
    return "\n".join(lines)
