"""Where a measurement comes from, as the repository's own records have it, with the wheel's versions."""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "bench"))
import harness  # noqa: E402


def provenance():
    return harness.provenance(packages=("polydraft", "numpy", "torch", "transformers"))
