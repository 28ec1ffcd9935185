"""Makes the harness in bench/ importable: `import _path` stands before `import harness`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3] / "bench"))

# What records of measurements in Python name the versions of.
PACKAGES = ("polydraft", "numpy", "torch", "transformers")
