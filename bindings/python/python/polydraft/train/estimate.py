"""What a head will give, from what passes cost here, before it has learned anything.

A step with a chain of L drafts costs a pass of the target over L + 1 tokens and what the head takes for L levels, and gives
1 + a + a^2 + .. + a^L tokens where each is accepted with probability a. `polydraft bench speed` measures the costs with a
head of the right shape; its weights do not matter for that.
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

# Chains that are considered.
LONGEST = 12
SHOWN = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)


@dataclass(frozen=True)
class Costs:
    """In passes of the target over one token: of its passes over 1, 2, .. tokens, of each level of a draft, and what the
    first takes beyond another: of a head that predicts blocks nearly all."""

    target: tuple[float, ...]
    head: float
    first: float = 0.0

    def gain(self, acceptance: Sequence[float]) -> tuple[float, int]:
        """Times as fast as plain decoding with the best length of a chain, and that length. The last of the acceptances, by
        position, holds for all after it."""
        best, tokens, reached = (1.0, 0), 1.0, 1.0
        for length in range(1, len(self.target)):
            reached *= acceptance[min(length, len(acceptance)) - 1]
            tokens += reached
            best = max(best, (tokens / (self.target[length] + self.first + length * self.head), length))
        return best


def at(passes: list[dict[str, float]], tokens: int) -> float:
    """Seconds of a pass over so many tokens: on a straight line between those that were measured."""
    for low, high in zip(passes, passes[1:]):
        if tokens <= high["tokens"]:
            share = (tokens - low["tokens"]) / (high["tokens"] - low["tokens"])
            return low["seconds"] + max(share, 0.0) * (high["seconds"] - low["seconds"])
    return passes[-1]["seconds"]


def measure(target: Path, head: Path, dtype: str | None, threads: int | None) -> Costs:
    """Measures on this machine; a few seconds."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "polydraft", "bench", "speed", "--json", "--no-config", "--quiet", "--seconds", "1"]
        command += ["--max-tokens", "8", "--target", str(target), "--draft", str(head), "--costs", f"{folder}/costs.json"]
        command += ["--dtype", dtype] if dtype else []
        command += ["--threads", str(threads)] if threads else []
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"measuring what passes cost: {done.stderr.strip() or done.returncode}")
    costs: dict[str, Any] = json.loads(done.stdout)["costs"]
    one = at(costs["target"], 1)
    passes = tuple(at(costs["target"], n) / one for n in range(1, LONGEST + 2))
    return Costs(passes, at(costs["draft"], 1) / one, costs["first"] / one)


def table(costs: Costs) -> str:
    lines = [
        f"here a draft of the head costs {costs.first + costs.head:.3f} of the target's pass and each further level "
        f"{costs.head:.3f}, one of the target over 4 tokens {costs.target[3]:.2f}, "
        f"over 8 {costs.target[7]:.2f}",
        "acceptance " + "  ".join(f"{a:5.1f}" for a in SHOWN),
        "times plain " + " ".join(f"{costs.gain([a])[0]:6.2f}" for a in SHOWN),
    ]
    return "\n".join(lines)
