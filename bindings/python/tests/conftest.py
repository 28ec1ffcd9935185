import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

# Triton looks at this when it is imported, and other tests may import it first: kernels run on the CPU.
os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture
def without_kernels(monkeypatch):
    """Kernels have tests of their own: in a test of whole models they would take minutes in Triton's interpreter. Tiny models are
    too small for threads."""
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
