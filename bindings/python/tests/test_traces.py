"""Traces: reading, and replay with the program's results. `trace` was recorded by the program, `trace.json` is its replay."""

import gzip
import json
import math
import pathlib
import shutil
from collections.abc import Iterable

import numpy as np
import polydraft
import pytest
from polydraft import Trace, Verifier, replay
from polydraft.errors import InvalidInput, Unsupported

HERE = pathlib.Path(__file__).parent
TRACE = HERE / "trace"
KEYS = ("block_efficiency", "block_efficiency_error", "difference", "difference_error")


def expected():
    """Reads the output of `polydraft-lab replay bindings/python/tests/trace --save bindings/python/tests/trace.json`."""
    return json.loads((HERE / "trace.json").read_text())["results"][0]


def test_replay_equals_program():
    found, program = replay(TRACE), expected()
    assert (found.tree, found.sequences, found.positions, found.drafts) == (
        program["tree"],
        program["texts"],
        program["positions"],
        program["drafts"],
    )
    assert found.nodes_per_call == program["nodes_per_call"]
    assert list(found.verifiers) == [row["verifier"] for row in program["verifiers"]]
    for name, row in found.verifiers.items():
        theirs = next(row for row in program["verifiers"] if row["verifier"] == name)
        ours = (row.tokens, row.error, row.difference, row.difference_error)
        # Stored results may differ in the last bits from a later version with another order of sums.
        assert ours == pytest.approx([theirs[key] for key in KEYS], rel=0, abs=1e-12)
        assert row.sum == pytest.approx(row.tokens * found.sequences)


def test_replay_of_files_equals_replay_of_trace():
    files = Trace(TRACE).files
    assert all(isinstance(file, pathlib.Path) for file in files)
    assert replay(files, ["nested-priority", "block"]) == replay(TRACE, ["nested-priority", "block"])
    one = replay(files[2], ["traversal"], tree="paths:2,1")
    assert one.tree == "paths:2,1" and list(one.verifiers) == ["traversal"] and 1 <= one.verifiers["traversal"].tokens <= 2


def test_positions_have_drafts_and_distributions():
    trace = Trace(TRACE)
    assert trace.tree == "paths:3,2" and trace.header["vocabulary"] == 4096 and len(trace) == len(trace.files) == 8
    assert isinstance(trace, Iterable) and isinstance(trace[0], Iterable)
    seen = 0
    for shard in trace:
        assert 0 < shard.left_out <= 0.2 and shard.made["version"] and len(shard.sequences) == 2
        for position in shard:
            draft, text = position.draft, shard.sequences[position.sequence]
            before = [*shard.prompt, *text[: position.at]]
            assert draft.tokens[0] == before[-1] and draft.form == "3 i.i.d. paths"
            assert len(position.target) == len(draft)
            for node, exact in enumerate(position.target):
                tokens, mass = exact.support()
                assert mass.sum() == pytest.approx(1) and np.all(np.diff(tokens.astype(int)) > 0)
                assert (draft.distribution(node) is None) == (node in draft.leaves())
            outcome = Verifier("nested-priority").verify(draft, position.target, rng=1)
            assert 1 <= len(outcome.tokens) <= 3
            seen += 1
    assert seen == trace.positions == expected()["positions"]


def test_trace_is_readable_without_polydraft():
    """Tensors have the layout of docs/traces.md."""
    shard = Trace(TRACE)[0]
    data = gzip.decompress(pathlib.Path(Trace(TRACE).files[0]).read_bytes())
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    types = {"U8": "u1", "U16": "<u2", "U32": "<u4", "U64": "<u8", "F32": "<f4", "F64": "<f8"}

    def tensor(name):
        begin, end = header[name]["data_offsets"]
        return np.frombuffer(data[8 + length + begin : 8 + length + end], types[header[name]["dtype"]])

    entries, exact = tensor("target.entries")[0], shard[0].target[0]
    tokens, mass = exact.support()
    assert np.array_equal(tensor("target.tokens")[:entries], tokens)
    assert np.array_equal(tensor("target.weights")[:entries].astype("f8") * tensor("target.scale")[0], mass)
    assert np.array_equal(tensor("prompt"), shard.prompt)


def test_rejects_invalid_arguments_and_damaged_files(tmp_path):
    with pytest.raises(InvalidInput, match="trace.json"):
        Trace(tmp_path)
    with pytest.raises(Unsupported, match="K up to 3"):
        replay(TRACE, tree="paths:4,2")
    with pytest.raises(InvalidInput, match="verifier"):
        replay(TRACE, ["blok"])
    with pytest.raises(InvalidInput, match="list of names"):
        replay(TRACE, "block")
    with pytest.raises(InvalidInput, match="at least one"):
        replay([])
    with pytest.raises(InvalidInput, match=r"prompt-000002\S*: expected a recording that is there once"):
        replay([TRACE, Trace(TRACE).files[2]])
    with pytest.raises(IndexError):
        Trace(TRACE)[8]
    shutil.copytree(TRACE, tmp_path / "trace")
    shard = tmp_path / "trace" / "prompt-000003.safetensors.gz"
    damaged = bytearray(shard.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    shard.write_bytes(damaged)
    with pytest.raises(InvalidInput, match="prompt-000003.*checksum"):
        replay(tmp_path / "trace")
    assert not math.isnan(polydraft.replay(TRACE, ["token"]).verifiers["token"].tokens)
