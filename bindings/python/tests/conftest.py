import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

# Runs kernels on the CPU. Triton reads this at import, and other tests may import it first.
os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture
def without_kernels(monkeypatch):
    """Disables kernels, which have separate tests and would take minutes in Triton's interpreter, and threads, which do not pay
    off for tiny models."""
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
