"""Copies of GGUF files in which something is changed. Needs the package gguf."""

from gguf import GGUFValueType, GGUFWriter


def copy(source, target, tensors, changed=()):
    """Writes the file `target` with all that `source`, a reader, says of itself.

    Values in `changed`, by key, are others; `tensors` yields arguments of the writer's add_tensor.
    """
    architecture = source.fields["general.architecture"].contents()
    writer = GGUFWriter(target, architecture)
    for name, field in source.fields.items():
        # The writer sets these itself.
        if name == "general.architecture" or name.startswith("GGUF."):
            continue
        value = changed[name] if name in changed else field.contents()
        inner = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, field.types[0], inner)
    for name, numbers, kind in tensors:
        writer.add_tensor(name, numbers, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
