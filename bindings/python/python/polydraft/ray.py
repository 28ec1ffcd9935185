"""Replay on a cluster: Ray distributes the shards, polydraft replays each. `pip install polydraft[ray]`."""

import json
import os
from collections.abc import Iterable
from typing import Any

from . import _native
from ._native import Trace
from .errors import InvalidInput
from .traces import Replayed, names, together

__all__ = ["replay"]


def replay(
    directory: str | os.PathLike[str],
    verifiers: Iterable[str] | None = None,
    tree: str | None = None,
    **options: Any,
) -> Replayed:
    """`polydraft.replay` as a Ray Data job over the shards of a trace, which all workers must be able to read under this name.

    A shard is one task on one CPU core. Ray runs a task again whose worker died, and what a shard gives does not depend on who
    reads it, or when: the sums are those of a single machine, to the last bit. `options` are those of
    `ray.data.Dataset.map`, such as `concurrency` and `memory`.
    """
    import ray

    trace = Trace(directory)
    files = [os.path.abspath(file) for file in trace.files]
    if not files:
        raise InvalidInput(f"{os.fspath(directory)}: expected a trace with prompts, got none")
    kinds = names(verifiers)
    # What is wrong is said here, not by a worker.
    _native._replay(files[:1], kinds, tree)
    tasks = [{"number": number, "file": file} for number, file in enumerate(files)]
    dataset = ray.data.from_items(tasks, override_num_blocks=len(tasks))
    found = dataset.map(one, fn_kwargs={"verifiers": kinds, "tree": tree}, **options).take_all()
    return together(read(row["found"]) for row in sorted(found, key=lambda row: row["number"]))


def one(row: dict[str, Any], verifiers: list[str], tree: str | None) -> dict[str, Any]:
    """What a worker does: one shard."""
    # As text: floats come back as they were, and no column has to guess what is in it.
    return {"number": row["number"], "found": json.dumps(_native._replay([row["file"]], verifiers, tree))}


def read(text: str) -> Any:
    """What `one` wrote; JSON knows no tuples."""
    tree, kinds, samples = json.loads(text)
    return tree, kinds, [[sample and tuple(sample) for sample in sequences] for sequences in samples]
