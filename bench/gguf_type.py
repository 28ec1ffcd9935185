#!/usr/bin/env python3
"""A GGUF file with its matrices in another type, rounded as llama.cpp rounds.

  bench/gguf_type.py SmolLM2-135M-Instruct.Q4_1.gguf smollm2-Q8_0.gguf Q8_0

Needs the package gguf, which knows F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0 and Q5_1.
"""

import harness
from gguf import GGMLQuantizationType, GGUFReader, LlamaFileType, quants
from gguf_copy import copy


def main():
    parser = harness.options(__doc__)
    parser.add_argument("source", help="a GGUF file")
    parser.add_argument("target", help="the file to write")
    parser.add_argument("type", help="of the matrices")
    args = parser.parse_args()
    kind = GGMLQuantizationType[args.type]
    reader = GGUFReader(args.source)

    def tensors():
        for tensor in reader.tensors:
            numbers = quants.dequantize(tensor.data, tensor.tensor_type)
            # Vectors are held in f32 everywhere.
            own = GGMLQuantizationType.F32 if numbers.ndim == 1 else kind
            yield tensor.name, quants.quantize(numbers, own), own

    file_type = LlamaFileType["ALL_F32" if args.type == "F32" else f"MOSTLY_{args.type}"]
    copy(reader, args.target, tensors(), {"general.file_type": int(file_type)})


main()
