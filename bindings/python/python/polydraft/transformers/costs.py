"""Measurement of step costs on this machine, for the adaptive tree.

Method: that of the engine (`crates/polydraft-engine/src/costs.rs`). Complete steps are timed, plain and with chains of 1, 3, 7
and 11 tokens, separately for the draft and everything else; of two rounds the minimum counts. The chains give the time of one
draft pass, the extra time of a step's first pass, and the draft's rejection rate.
Deviations: measured after one context only, that of the first sequence.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

# Chain lengths in tokens; 0 is a plain step.
CHAINS = (0, 1, 3, 7, 11)
# Timed steps of a kind in a round, after one warm-up step; from `_LONG` seconds on the warm-up step itself counts.
_STEPS, _LONG = 2, 0.1
# Maximum number of rounds, and the seconds that one may take for another to follow.
_ROUNDS, _TIME = 2, 1.5


class Measurement:
    """State of a running measurement."""

    def __init__(self) -> None:
        self.rounds, self.began = 0, time.perf_counter()
        self.least = [[float("inf")] * 2 for _ in CHAINS]
        self.verified, self.rejected = 1.0, 0.5

    def goes_on(self) -> bool:
        """Starts the next round and returns True, or returns False when the measurement is complete."""
        spent = time.perf_counter() - self.began
        if self.rounds == _ROUNDS or (self.rounds > 0 and spent > _TIME * self.rounds):
            return False
        self.rounds += 1
        return True

    def note(self, kind: int, step: Callable[[], tuple[float, float, int]]) -> None:
        """Runs steps of a kind; each returns the draft's seconds, all other seconds, and the number of accepted tokens."""
        steps = [step()]
        if sum(steps[0][:2]) < _LONG:
            steps = [step() for _ in range(_STEPS)]
        for part in (0, 1):
            self.least[kind][part] = min(self.least[kind][part], sum(step[part] for step in steps) / len(steps))
        if CHAINS[kind] > 0:
            rejected = sum(accepted < CHAINS[kind] for *_, accepted in steps)
            self.verified += sum(accepted for *_, accepted in steps) + rejected
            self.rejected += rejected

    def costs(self) -> dict[str, Any]:
        """Returns the costs in the form that `tree={"tree": "auto", "costs": ..}` takes."""
        rest = [others for _, others in self.least]
        # Disturbances only lengthen a step, and a longer chain cannot take less time than a shorter one.
        for kind in reversed(range(1, len(rest))):
            rest[kind - 1] = min(rest[kind - 1], rest[kind])
        first, most = self.least[1][0], self.least[-1][0]
        draft = min(max((most - first) / (CHAINS[-1] - CHAINS[1]), 0.0), first)
        passes = [(1 + chain, seconds) for chain, seconds in zip(CHAINS, rest)]
        return {
            "target": [{"tokens": tokens, "seconds": seconds} for tokens, seconds in passes],
            "draft": [{"tokens": tokens, "seconds": draft * seconds / rest[0]} for tokens, seconds in passes],
            "first": first - draft,
            "rejected": self.rejected / self.verified,
        }
