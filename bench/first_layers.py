#!/usr/bin/env python3
"""The first layers of a GGUF model as a model of its own: a draft that agrees badly with it, at which --tree auto must give up.

  bench/first_layers.py SmolLM2-135M-Instruct.Q4_1.gguf 8 first8.gguf

Needs the package gguf. Everything but the layers left out is copied bit for bit.
"""

import re
import sys

from gguf import GGUFReader, GGUFValueType, GGUFWriter


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
    writer = GGUFWriter(out, architecture)
    for name, field in reader.fields.items():
        # The writer sets these itself.
        if name == "general.architecture" or name.startswith("GGUF."):
            continue
        value = layers if name == key else field.contents()
        inner = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, field.types[0], inner)
    for tensor in reader.tensors:
        block = re.match(r"blk\.(\d+)\.", tensor.name)
        if block is None or int(block[1]) < layers:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
