"""Makes what lies in bench/ importable: `import _path` stands before `import harness`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))
