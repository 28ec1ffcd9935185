"""Replay on a Ray cluster: one task for each shard of a trace. Needs `pip install polydraft[ray]`."""

import json
import os
from collections.abc import Iterable
from typing import Any

from . import _native
from ._native import Trace
from .errors import InvalidInput
from .traces import Replayed, merge, names

__all__ = ["replay"]


def replay(
    directory: str | os.PathLike[str],
    verifiers: Iterable[str] | None = None,
    tree: str | None = None,
    **options: Any,
) -> Replayed:
    """Runs `polydraft.replay` as a Ray Data job over the shards of a trace. All workers must be able to read `directory`.

    A shard is one task on one CPU core. Ray restarts the task of a worker that died, and a shard's result does not depend on
    the worker: sums equal those of a single machine to the last bit. `options` are passed to `ray.data.Dataset.map`, such as
    `concurrency` and `memory`.
    """
    try:
        import ray.data
    except ImportError as missing:
        message = f"polydraft.ray.replay needs Ray: pip install 'polydraft[ray]' ({missing})"
        raise ImportError(message, name=missing.name) from missing

    trace = Trace(directory)
    files = [os.path.abspath(file) for file in trace.files]
    if not files:
        raise InvalidInput(f"{os.fspath(directory)}: expected a trace with prompts, got none")
    kinds = names(verifiers)
    # Reports invalid arguments here rather than from a worker.
    _native._replay(files[:1], kinds, tree)
    tasks = [{"number": number, "file": file} for number, file in enumerate(files)]
    dataset = ray.data.from_items(tasks, override_num_blocks=len(tasks))
    found = dataset.map(replay_shard, fn_kwargs={"verifiers": kinds, "tree": tree}, **options).take_all()
    return merge(decoded(row["found"]) for row in sorted(found, key=lambda row: row["number"]))


def replay_shard(row: dict[str, Any], verifiers: list[str], tree: str | None) -> dict[str, Any]:
    """Replays one shard; runs in a worker."""
    # As JSON: floats survive unchanged, and no column type has to be inferred.
    return {"number": row["number"], "found": json.dumps(_native._replay([row["file"]], verifiers, tree))}


def decoded(result: str) -> Any:
    """Decodes the result of `replay_shard`; JSON has no tuples."""
    tree, kinds, samples = json.loads(result)
    return tree, kinds, [[sample and tuple(sample) for sample in sequences] for sequences in samples]
