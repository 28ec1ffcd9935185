"""What steps cost here, measured: what the adaptive tree goes by.

Method: that of the engine (`crates/polydraft-engine/src/costs.rs`). Whole steps are timed, plain ones and with chains of 1, 3, 7
and 11 tokens; of each kind the least of two rounds, of the draft's seconds and of all others. Chains say what a pass of the draft
takes, and what the first one of a step takes beyond that; what became of them is what to expect of the draft.
Deviations: after one context alone, that of the first sequence.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

# Tokens of the chains; 0 is a plain step.
CHAINS = (0, 1, 3, 7, 11)
# Steps of a kind that count in a round, after one that does not; that one alone where it takes so many seconds.
_STEPS, _LONG = 2, 0.1
# Rounds, and the seconds that one may take for there to be another.
_ROUNDS, _TIME = 2, 1.5


class Measurement:
    """A measurement at work."""

    def __init__(self) -> None:
        self.rounds, self.began = 0, time.perf_counter()
        self.least = [[float("inf")] * 2 for _ in CHAINS]
        self.verified, self.rejected = 1.0, 0.5

    def goes_on(self) -> bool:
        """Whether there is another round, which begins."""
        spent = time.perf_counter() - self.began
        if self.rounds == _ROUNDS or (self.rounds > 0 and spent > _TIME * self.rounds):
            return False
        self.rounds += 1
        return True

    def note(self, kind: int, step: Callable[[], tuple[float, float, int]]) -> None:
        """Takes steps of a kind: each gives the draft's seconds, all others, and the accepted tokens."""
        steps = [step()]
        if sum(steps[0][:2]) < _LONG:
            steps = [step() for _ in range(_STEPS)]
        for part in (0, 1):
            self.least[kind][part] = min(self.least[kind][part], sum(step[part] for step in steps) / len(steps))
        if CHAINS[kind] > 0:
            wrong = sum(accepted < CHAINS[kind] for *_, accepted in steps)
            self.verified += sum(accepted for *_, accepted in steps) + wrong
            self.rejected += wrong

    def costs(self) -> dict[str, Any]:
        """The costs, as `tree={"tree": "auto", "costs": ..}` takes them."""
        rest = [others for _, others in self.least]
        # What disturbs a step makes it longer, and more tokens take no less.
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
