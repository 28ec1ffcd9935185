#!/usr/bin/env python3
"""The first layers of a GGUF model as a model of its own.

  research/bench/first_layers.py SmolLM2-135M-Instruct.Q4_1.gguf 8 first8.gguf

A draft that agrees badly with the model, at which --tree auto must give up. Needs the package gguf.
Everything but the layers left out is copied bit for bit.
"""

import re
import sys

import _path  # noqa: F401
import harness
from gguf import GGUFReader
from gguf_copy import copy


def main():
    parser = harness.options(__doc__)
    parser.add_argument("source", help="a GGUF file")
    parser.add_argument("layers", type=int, help="to keep")
    parser.add_argument("target", help="the file to write")
    args = parser.parse_args()
    reader, layers = GGUFReader(args.source), args.layers
    architecture = reader.fields["general.architecture"].contents()
    key = f"{architecture}.block_count"
    had = reader.fields[key].contents()
    if not 1 <= layers <= had:
        sys.exit(f"{args.source}: expected from 1 to {had} layers, got {layers}")

    def kept(tensor):
        block = re.match(r"blk\.(\d+)\.", tensor.name)
        return block is None or int(block[1]) < layers

    left = filter(kept, reader.tensors)
    tensors = ((tensor.name, tensor.data, tensor.tensor_type) for tensor in left)
    copy(reader, args.target, tensors, {key: layers})


if __name__ == "__main__":
    main()
