#!/usr/bin/env bash
# gguf 0.19.0 (llama.cpp's Python package): a metadata array without elements is valid GGUF and is read, but is not written.
# GGUFWriter.add_array returns without a word, so a file that is read and written again loses the key; add_key_value with the
# type of an array fails only when the file is written. Seen with a tokenizer without merges: `tokenizer.ggml.merges` was there
# in the file that was read, and missing in the copy, which loaders then refuse.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check gguf==0.19.0 numpy==2.3.5
cd "$folder"
venv/bin/python - <<'PYTHON'
import struct
from importlib.metadata import version

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter

STRING, ARRAY = 8, 9


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


# Version 3, no tensors, two keys: an architecture, and an array of strings with no elements.
keys = text("general.architecture") + struct.pack("<I", STRING) + text("llama")
keys += text("tokenizer.ggml.merges") + struct.pack("<IIQ", ARRAY, STRING, 0)
with open("read.gguf", "wb") as file:
    file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + keys + bytes(64))

fields = GGUFReader("read.gguf").fields
print("gguf", version("gguf"))
print("read:", fields["tokenizer.ggml.merges"].contents())
assert fields["tokenizer.ggml.merges"].contents() == []

writer = GGUFWriter("written.gguf", "llama")
writer.add_array("tokenizer.ggml.merges", fields["tokenizer.ggml.merges"].contents())
writer.add_array("tokenizer.ggml.tokens", ["a"])
writer.add_tensor("t", np.zeros((1, 1), np.float32))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
written = [name for name in GGUFReader("written.gguf").fields if name.startswith("tokenizer.")]
print("written:", written)
assert written == ["tokenizer.ggml.tokens"], written

writer = GGUFWriter("refused.gguf", "llama")
writer.add_key_value("tokenizer.ggml.merges", [], GGUFValueType.ARRAY)
writer.write_header_to_file()
try:
    writer.write_kv_data_to_file()
except ValueError as error:
    print("add_key_value:", error)
else:
    raise SystemExit("an empty array was written")
PYTHON
# Seen on 2026-11-30:
# gguf 0.19.0
# read: []
# written: ['tokenizer.ggml.tokens']
# add_key_value: Invalid GGUF metadata array. Empty array
