#!/usr/bin/env python3
"""A model of a GGUF file in few bits, with its weights moved off their grid.

  research/bench/off_grid.py SmolLM2-135M-Instruct.Q4_1.gguf smollm2-off-grid.gguf

By up to half a step of four bits in blocks of 32. Weights that come from a file of 4 bits lie on
its grid, and a copy in 4 bits is then the model itself: what is measured with such a copy is
flattered. This one's are as far from that grid as those of a model that was never rounded. The file
is written in BF16 or F32, its vectors in F32, all else is kept. The same seed gives the same file.
Needs numpy, and gguf from the Python registry.
"""

import _path  # noqa: F401
import harness
import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, quants
from gguf_copy import copy

BLOCK = 32


def moved(matrix, random):
    """Each number by up to half of a fifteenth of its block's range."""
    blocks = matrix.reshape(-1, BLOCK)
    step = (blocks.max(axis=1, keepdims=True) - blocks.min(axis=1, keepdims=True)) / 15
    return (blocks + (random.random(blocks.shape, dtype=np.float32) - 0.5) * step).reshape(
        matrix.shape
    )


def main():
    parser = harness.options(__doc__)
    parser.add_argument("source", help="a GGUF file of the architecture llama")
    parser.add_argument("target", help="the file to write")
    parser.add_argument("--seed", type=int, default=1, help="of the moves")
    types = {"choices": ["BF16", "F32"], "default": "BF16"}
    parser.add_argument("--type", **types, help="of the matrices; the same numbers in both")
    args = parser.parse_args()
    reader, random = GGUFReader(args.source), np.random.default_rng(args.seed)
    kind = GGMLQuantizationType[args.type]

    def tensors():
        for tensor in reader.tensors:
            shape = tensor.shape.tolist()[::-1]
            numbers = (
                quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(shape)
            )
            if numbers.ndim < 2 or shape[-1] % BLOCK:
                yield tensor.name, numbers, None
            else:
                narrow = GGMLQuantizationType.BF16
                numbers = quants.quantize(moved(numbers, random), narrow)
                if kind != narrow:
                    numbers = quants.dequantize(numbers, narrow)
                yield tensor.name, numbers, kind

    copy(reader, args.target, tensors())


if __name__ == "__main__":
    main()
