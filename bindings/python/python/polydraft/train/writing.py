"""Text that the target writes itself, by polydraft's own engine, beside the learning."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Order:
    """What is to be written; None is polydraft's own choice."""

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
    """Writes until all is there or `stop` is called. `shards`, `kept` and `open` say where it is: what lies in the folder, and
    tokens of samples that do not yet."""

    def __init__(self, order: Order) -> None:
        super().__init__(daemon=True)
        self.order = order
        self.problem: Exception | None = None
        self.shards = self.kept = self.open = 0
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

    def watch(self, shards: int, kept: int, open_: int) -> bool:
        self.shards, self.kept, self.open = shards, kept, open_
        return not self.stopped

    def stop(self) -> None:
        self.stopped = True
        self.join()
