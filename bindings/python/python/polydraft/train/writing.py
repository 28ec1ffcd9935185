"""Generation of training samples with the target by polydraft's engine, in parallel with training."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Order:
    """Options of the generated samples; None means polydraft's default."""

    target: Path
    folder: Path
    tokens: int
    dtype: str | None = None
    layers: list[int] | None = None
    shard: int = 100_000
    together: int = 64
    longest: int = 512
    temperatures: Sequence[float] = (0.7, 1.0)
    given: Sequence[Path] = ()


class Writer(threading.Thread):
    """Thread that writes samples until all are written or `stop` is called. Progress: the number of `shards`, the tokens `stored`
    in the folder, and the tokens of samples still `open`."""

    def __init__(self, order: Order) -> None:
        super().__init__(daemon=True)
        self.order = order
        self.problem: Exception | None = None
        self.shards = self.stored = self.open = 0
        self.stopped = False

    def run(self) -> None:
        from polydraft._native import _write_lessons

        order = self.order
        try:
            _write_lessons(
                order.target,
                order.folder,
                order.tokens,
                self.watch,
                dtype=order.dtype,
                layers=order.layers,
                shard=order.shard,
                together=order.together,
                longest=order.longest,
                temperatures=list(order.temperatures),
                given=list(order.given),
            )
        except Exception as problem:
            self.problem = problem

    def watch(self, shards: int, stored: int, open_: int) -> bool:
        self.shards, self.stored, self.open = shards, stored, open_
        return not self.stopped

    def stop(self) -> None:
        self.stopped = True
        self.join()
