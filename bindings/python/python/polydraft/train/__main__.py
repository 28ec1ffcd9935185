"""Command `python -m polydraft.train`: trains a draft head for a model."""

from __future__ import annotations

import sys

from .options import parser


def main() -> int:
    args = parser().parse_args()
    try:
        import safetensors  # noqa: F401
        import torch  # noqa: F401
    except ImportError as problem:
        sys.exit(f"polydraft.train needs PyTorch and safetensors ({problem}): pip install 'polydraft[train]'")
    from .run import Refused, run

    try:
        return run(args)
    except Refused as problem:
        sys.exit(f"error: {problem}")


if __name__ == "__main__":
    sys.exit(main())
