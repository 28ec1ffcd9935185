"""Makes the harness in bench/ importable; use `import _path` before `import harness`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3] / "bench"))

# Packages whose versions are recorded with measurements in Python.
PACKAGES = ("polydraft", "numpy", "torch", "transformers")
