import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))

# Triton looks at this when it is imported, and other tests may import it first: kernels run on the CPU.
os.environ.setdefault("TRITON_INTERPRET", "1")
