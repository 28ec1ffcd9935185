"""Makes mtp.gguf from model.gguf in folders with MTP layers: these layers only, as files such as `mtp-NAME.gguf` have them
that are published beside a model. Needs gguf (0.19) and numpy.

usage: mtp_file.py FOLDER.."""

import pathlib
import sys

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter

SHARED = ("token_embd.weight", "output_norm.weight", "output.weight")

for folder in map(pathlib.Path, sys.argv[1:]):
    reader = GGUFReader(folder / "model.gguf")
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    architecture = fields.pop("general.architecture").contents()
    writer = GGUFWriter(folder / "mtp.gguf", architecture)
    for name, field in fields.items():
        if field.types[0] == GGUFValueType.ARRAY:
            writer.add_array(name, field.contents())
        else:
            writer.add_key_value(name, field.contents(), field.types[0])
    first = fields[f"{architecture}.block_count"].contents() - fields[f"{architecture}.nextn_predict_layers"].contents()
    for tensor in reader.tensors:
        parts = tensor.name.split(".")
        if tensor.name in SHARED or (parts[0] == "blk" and int(parts[1]) >= first):
            writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
