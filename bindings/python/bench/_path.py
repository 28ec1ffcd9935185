"""Machine, commit and versions of a measurement, as the records in bench/records have them."""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "bench"))
import harness  # noqa: E402


def provenance():
    return harness.provenance(packages=("polydraft", "numpy", "torch", "transformers"))
