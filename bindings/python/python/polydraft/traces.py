"""Verifiers replayed on recorded distributions: sums that do not depend on where, or in what order, the parts were made."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from . import _native
from .errors import InvalidInput

__all__ = ["COMPARED", "Replayed", "Row", "replay"]

# Those that `polydraft-lab replay` compares where none is named.
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

# By prompt and sequence: positions, drafts, nodes, tokens of each verifier.
_Samples: TypeAlias = list[list[tuple[int, int, int, list[float]] | None]]
# The tree, the verifiers that are exact for it, what they found.
_Found: TypeAlias = tuple[str, list[str], _Samples]


@dataclass(frozen=True)
class Row:
    """What one verifier emits: expected tokens per target pass, with standard errors over sequences.

    `difference` is to the first verifier, on the same drafts. `sum` is over sequences, each counted as its mean.
    """

    tokens: float
    error: float
    difference: float
    difference_error: float
    sum: float


@dataclass(frozen=True)
class Replayed:
    """Verifiers compared on the same drafts of a `tree`; `verifiers` has a row for each that is exact for it."""

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
    """Compares verifiers on a trace that `polydraft-lab trace` recorded, or on some of its files, in this order; on all threads.

    Several are looked at as one: they must have been recorded alike, and none may be there twice.

    `tree` is the recorded one or part of it (of K paths any fewer and shorter). The numbers are those of `polydraft-lab replay`.
    """
    paths = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    return together([_native._replay(paths, names(verifiers), tree)])


def names(verifiers: Iterable[str] | None) -> list[str]:
    """The verifiers that are meant."""
    if isinstance(verifiers, str):
        raise InvalidInput(f"verifiers: expected a list of names, got {verifiers!r}")
    return COMPARED if verifiers is None else list(verifiers)


def together(parts: Iterable[_Found]) -> Replayed:
    """Parts of one trace, in the order of its prompts, as one."""
    parts = list(parts)
    tree, kinds, _ = parts[0]
    found = _native._summary([sequences for _, _, samples in parts for token_lists in samples])
    rows = {kind: Row(*row) for kind, row in zip(kinds, found.pop("rows"))}
    return Replayed(tree=tree, verifiers=rows, **found)
