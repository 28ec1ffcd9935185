#!/usr/bin/env python3
"""A GGUF file with its matrices in another type, rounded as llama.cpp rounds.

  bench/gguf_type.py SmolLM2-135M-Instruct.Q4_1.gguf smollm2-Q8_0.gguf Q8_0

Needs the package gguf, which knows F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0 and Q5_1.
"""

import sys

from gguf import GGMLQuantizationType, GGUFReader, LlamaFileType, quants

from gguf_copy import copy


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    source, target, name = sys.argv[1:]
    kind = GGMLQuantizationType[name]
    reader = GGUFReader(source)

    def tensors():
        for tensor in reader.tensors:
            numbers = quants.dequantize(tensor.data, tensor.tensor_type)
            # Vectors are held in f32 everywhere.
            own = GGMLQuantizationType.F32 if numbers.ndim == 1 else kind
            yield tensor.name, quants.quantize(numbers, own), own

    file_type = LlamaFileType["ALL_F32" if name == "F32" else f"MOSTLY_{name}"]
    copy(reader, target, tensors(), {"general.file_type": int(file_type)})


main()
