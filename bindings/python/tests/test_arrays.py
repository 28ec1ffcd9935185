"""Arrays are read without copying; unsupported ones are rejected with advice."""

import threading
import time

import numpy as np
import polydraft
import pytest
from polydraft.errors import InvalidInput

LOGITS = np.log(np.array([0.5, 0.3, 0.2], dtype=np.float32))

# Records without padding: 21 bytes each, so only every fourth is aligned like the first.
PACKED = np.zeros(8, dtype=[("kind", "u1"), ("one", "f4"), ("row", "f4", 4)])
PACKED["one"], PACKED["row"] = np.arange(8), np.eye(8, 4)


class Foreign:
    """An object with DLPack, like a tensor, on any device."""

    def __init__(self, array, device=1):
        self.array, self.device = array, device

    def __dlpack_device__(self):
        return (self.device, 0)

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)


@pytest.mark.parametrize(
    "logits",
    [
        LOGITS,
        LOGITS.astype(np.float64),
        LOGITS.astype(np.float16),
        Foreign(LOGITS),
        LOGITS.tolist(),
        np.repeat(LOGITS[None], 2, 0)[1],
    ],
)
def test_accepts_arrays_lists_and_dlpack(logits):
    exact = polydraft.Distribution.from_logits(logits)
    assert exact.to_numpy() == pytest.approx([0.5, 0.3, 0.2], abs=1e-6 if getattr(logits, "dtype", None) != np.float16 else 1e-3)


def test_accepts_read_only_and_strided_rows():
    rows = np.zeros((4, 8), dtype=np.float32)[::2, :3]
    rows[:] = LOGITS
    rows.flags.writeable = False
    draft = polydraft.Draft("paths:2,1")
    draft.grow(rows[:1], rng=1)
    outcome = polydraft.verify(draft, np.broadcast_to(LOGITS, (len(draft), 3)), rng=1)
    assert len(outcome.accepted) == 1


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.arange(3), "float32 or float64, got int64"),
        (np.zeros((2, 3), dtype=np.float32), r"\[vocabulary\], got shape \[2, 3\]"),
        (np.zeros((3, 2), dtype=np.float32)[:, 0], "ascontiguousarray"),
        (np.ones(3, dtype=[("kind", "u1"), ("one", "f4")])["one"], "ascontiguousarray"),
        (PACKED["one"], "ascontiguousarray"),
        (PACKED["one"][::4], "addresses"),
        (np.frombuffer(bytes(13), dtype=np.float32, offset=1), "addresses.*copy"),
        (Foreign(LOGITS, device=2), r"CPU's memory, got one on CUDA.*\.cpu\(\)"),
        (Foreign(LOGITS, device=8), "Metal"),
        (Foreign(LOGITS, device=99), "device type 99"),
        ("logits", "got str"),
        (np.array([0.0, np.nan], dtype=np.float32), "entry 1"),
        (np.zeros(0, dtype=np.float32), "got 0"),
    ],
)
def test_rejects_unsupported_arrays(array, message):
    with pytest.raises(InvalidInput, match=message):
        polydraft.Distribution.from_logits(array)


def test_fields_of_structured_arrays():
    """Rows of padded records are read in place; rows of packed records are rejected, not misread."""
    padded = np.zeros(2, dtype=[("kind", "u4"), ("row", "f4", 4)])
    padded["row"] = np.eye(2, 4, k=1) * 9
    draft = polydraft.Draft("paths:2,1")
    for wrong in (PACKED["row"][:1], PACKED["row"][:2]):
        with pytest.raises(InvalidInput, match="contiguous numbers|addresses"):
            draft.grow(wrong, rng=1)
    draft.grow(padded["row"][1:], rng=1)
    assert draft.distribution(0).argmax() == 2
    assert polydraft.Distribution.from_logits(padded["row"][0]).argmax() == 1
    assert polydraft.Distribution.from_logits(PACKED["row"][1].copy()).argmax() == 1
    assert polydraft.Distribution.from_logits(np.ascontiguousarray(PACKED["one"])).argmax() == 7


def test_accepts_and_rejects_torch_tensors():
    torch = pytest.importorskip("torch")
    logits = torch.tensor(LOGITS)
    assert polydraft.Distribution.from_logits(logits).argmax() == 0
    assert polydraft.Distribution.from_logits(logits.double()).argmax() == 0
    assert polydraft.Distribution.from_logits(logits.bfloat16()).argmax() == 0
    assert polydraft.Distribution.from_logits(logits.clone().requires_grad_()).argmax() == 0
    with pytest.raises(InvalidInput, match="CPU's memory"):
        polydraft.Distribution.from_logits(logits.to("meta"))
    with pytest.raises(InvalidInput, match="contiguous numbers"):
        polydraft.Distribution.from_logits(torch.zeros(3, 2)[:, 0])


def test_tensors_are_not_copied():
    """Changes to a tensor are visible through its view."""
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(2, 3)
    view = np.from_dlpack(tensor)
    tensor[0, 1] = 5.0
    assert view[0, 1] == 5.0
    assert polydraft.Distribution.from_logits(tensor[0]).argmax() == 1


def test_other_threads_run_during_enumeration():
    """While Rust enumerates, another thread runs Python, even if a third one waits for the tree in use."""
    target, draft = polydraft.random_tables(3, 3, seed=1)
    ticks, done = [], threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    def read_depth():
        time.sleep(0.001)
        depths.append(tree.depth)

    tree, depths = polydraft.Tree("paths:3,2"), []
    ticker, reader = threading.Thread(target=tick), threading.Thread(target=read_depth)
    ticker.start()
    reader.start()
    start = time.perf_counter()
    polydraft.exact_distribution("nested-priority", tree, target, draft)
    end = time.perf_counter()
    done.set()
    ticker.join()
    reader.join()
    assert depths == [2]
    inside = [tick for tick in ticks if start < tick < end]
    assert end - start > 0.02, "too short for a measurement"
    assert len(inside) > 5, f"{len(inside)} ticks in {end - start:.3f} s"
