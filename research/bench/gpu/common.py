"""`polydraft.gpu` without the compiled library, and a clock, for the GPU jobs.

No script of its own.
"""

import importlib.util
import statistics
import sys
import time
from pathlib import Path

import torch

FOLDER = Path(__file__).resolve().parents[3] / "bindings/python/python/polydraft/gpu"


def load_gpu():
    """`polydraft.gpu` without the compiled library that `polydraft` needs."""
    place = FOLDER / "__init__.py"
    spec = importlib.util.spec_from_file_location(
        "polydraft_gpu", place, submodule_search_locations=[str(FOLDER)])
    module = importlib.util.module_from_spec(spec)
    sys.modules["polydraft_gpu"] = module
    spec.loader.exec_module(module)
    return module


def clock(run, cuda, repeats, warm):
    """Median milliseconds of `run`, after `warm` runs that do not count."""
    if not cuda:
        start = time.perf_counter()
        run()
        return (time.perf_counter() - start) * 1e3
    for _ in range(warm):
        run()
    times = []
    for _ in range(repeats):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        run()
        b.record()
        b.synchronize()
        times.append(a.elapsed_time(b))
    return statistics.median(times)


def broken(device) -> bool:
    """Tells whether the device's context is lost."""
    try:
        torch.cuda.synchronize()
        torch.ones(1, device=device).sum().item()
    except RuntimeError:
        return True
    return False
