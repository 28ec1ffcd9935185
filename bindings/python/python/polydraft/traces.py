"""Replay of verifiers on recorded distributions. Sums do not depend on how the trace was split or in what order it was read."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from . import _native
from .errors import InvalidInput

__all__ = ["COMPARED", "Replayed", "Row", "replay"]

# The verifiers that `polydraft-lab replay` compares by default.
COMPARED = [
    "nested-priority",
    "priority-block",
    "greedy-block",
    "traversal",
    "walk:priority",
    "spectr",
    "specinfer",
    "block",
    "token",
]

# For each prompt and sequence: positions, drafts, nodes, and the tokens of each verifier.
_Samples: TypeAlias = list[list[tuple[int, int, int, list[float]] | None]]
# The tree, the verifiers that are exact for it, and their results.
_Found: TypeAlias = tuple[str, list[str], _Samples]


@dataclass(frozen=True)
class Row:
    """Results of one verifier: expected tokens per target pass, with standard errors over sequences.

    `difference` is to the first verifier, on the same drafts. `sum` adds the means of all sequences.
    """

    tokens: float
    error: float
    difference: float
    difference_error: float
    sum: float


@dataclass(frozen=True)
class Replayed:
    """Comparison of verifiers on the same drafts of a `tree`; `verifiers` has a row for each that is exact for it."""

    tree: str
    sequences: int
    positions: int
    drafts: int
    nodes_per_call: float
    verifiers: dict[str, Row]


def replay(
    path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    verifiers: Iterable[str] | None = None,
    tree: str | None = None,
) -> Replayed:
    """Compares verifiers on a trace recorded by `polydraft-lab trace`, or on some of its files, in the given order.

    Several paths count as one trace: they must have been recorded with the same settings, and no file may appear twice.

    `tree` is the recorded tree or part of it (fewer or shorter paths). Results are the same as those of `polydraft-lab replay`.
    """
    paths = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    return merge([_native._replay(paths, names(verifiers), tree)])


def names(verifiers: Iterable[str] | None) -> list[str]:
    """Returns the verifiers' names, by default `COMPARED`."""
    if isinstance(verifiers, str):
        raise InvalidInput(f"verifiers: expected a list of names, got {verifiers!r}")
    return COMPARED if verifiers is None else list(verifiers)


def merge(parts: Iterable[_Found]) -> Replayed:
    """Merges the results for parts of a trace, given in the order of its prompts."""
    parts = list(parts)
    tree, kinds, _ = parts[0]
    found = _native._summary([sequences for _, _, samples in parts for sequences in samples])
    rows = {kind: Row(*row) for kind, row in zip(kinds, found.pop("rows"))}
    return Replayed(tree=tree, verifiers=rows, **found)
