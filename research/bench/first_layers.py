#!/usr/bin/env python3
"""The first layers of a GGUF model as a model of its own: a draft that agrees badly with it, at which --tree auto must give up.

  research/bench/first_layers.py SmolLM2-135M-Instruct.Q4_1.gguf 8 first8.gguf

Needs the package gguf. Everything but the layers left out is copied bit for bit.
"""

import re
import sys

from gguf import GGUFReader
from gguf_copy import copy


def main():
    if len(sys.argv) != 4 or not sys.argv[2].isdigit():
        sys.exit(__doc__)
    source, layers, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    reader = GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    key = f"{architecture}.block_count"
    had = reader.fields[key].contents()
    if not 1 <= layers <= had:
        sys.exit(f"{source}: expected from 1 to {had} layers, got {layers}")

    def kept(tensor):
        block = re.match(r"blk\.(\d+)\.", tensor.name)
        return block is None or int(block[1]) < layers

    tensors = ((tensor.name, tensor.data, tensor.tensor_type) for tensor in reader.tensors if kept(tensor))
    copy(reader, out, tensors, {key: layers})


if __name__ == "__main__":
    main()
