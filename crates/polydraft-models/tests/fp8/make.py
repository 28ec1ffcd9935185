"""Makes the fixtures of tests/fp8.rs: tiny models in FP8 as they are published, from the models of ../fixtures. Run it
with the packages of requirements.txt; it writes beside itself.

Per model: config.json, tokenizer.json, model.safetensors, and expected.json with the CRC-32 of every matrix's numbers
in f32, by ml_dtypes and numpy.
"""

import json
import pathlib
import shutil
import struct
import zlib

import ml_dtypes
import numpy

HERE = pathlib.Path(__file__).parent
FIXTURES = HERE.parent / "fixtures"
BYTES = [byte for byte in range(256) if byte & 0x7F != 0x7F]
E4M3, E5M2, BF16, F32 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.bfloat16, numpy.float32
NAMES = {E4M3: "F8_E4M3", E5M2: "F8_E5M2", BF16: "BF16", F32: "F32", ml_dtypes.float8_e8m0fnu: "F8_E8M0"}
NAMES = {numpy.dtype(dtype): name for dtype, name in NAMES.items()}


def read(path):
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header, data = json.loads(data[8 : 8 + length]), data[8 + length :]
    dtypes = {name: dtype for dtype, name in NAMES.items()}
    header.pop("__metadata__", None)
    return {
        name: numpy.frombuffer(data[slice(*info["data_offsets"])], dtypes[info["dtype"]]).reshape(info["shape"])
        for name, info in header.items()
    }


def write(path, tensors):
    header, data = {}, b""
    for name in sorted(tensors):
        tensor = tensors[name]
        begin, data = len(data), data + numpy.ascontiguousarray(tensor).tobytes()
        info = dict(dtype=NAMES[tensor.dtype], shape=list(tensor.shape), data_offsets=[begin, len(data)])
        header[name] = info
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def spread(scales, shape, block):
    """The scale of every number."""
    wide = scales.astype(F32).repeat(block[0], -2).repeat(block[1], -1)
    return wide[..., : shape[-2], : shape[-1]]


def quantised(matrix, block, dtype=E4M3, of_scales=F32, every=False):
    """Numbers, scales as a grid, and what both make."""
    matrix = matrix.astype(F32)
    rows, columns = matrix.shape[-2:]
    block = [block[0] or rows, block[1] or columns]
    padding = [(0, 0)] * (matrix.ndim - 2) + [(0, -rows % block[0]), (0, -columns % block[1])]
    padded = numpy.pad(numpy.abs(matrix), padding)
    cut = padded.reshape(*matrix.shape[:-2], padded.shape[-2] // block[0], block[0], -1, block[1])
    scales = (cut.max((-3, -1)) / F32(ml_dtypes.finfo(dtype).max)).astype(of_scales)
    wide = spread(scales, matrix.shape, block)
    most = F32(ml_dtypes.finfo(dtype).max)
    numbers = numpy.clip(matrix / wide, -most, most).astype(dtype)
    if every:
        flat = numbers.view(numpy.uint8).copy().reshape(-1)
        flat[: len(BYTES)] = BYTES
        numbers = flat.view(dtype).reshape(matrix.shape)
    made = numbers.astype(F32) * wide
    assert numpy.isfinite(made).all()
    return numbers, scales, made


def make(name, source, tensors, plan, changes):
    """`plan` says of a tensor in which block, with which end of the scales' name and further settings; None leaves it
    as it is. A block's size of None is the whole matrix'."""
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    config = json.loads((FIXTURES / source / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    shutil.copy(FIXTURES / source / "tokenizer.json", folder / "tokenizer.json")
    all, expected = {}, {}
    for tensor in sorted(tensors):
        how = plan(tensor)
        if how is None:
            all[tensor] = tensors[tensor]
            continue
        block, end, shape, settings = how
        all[tensor], scales, made = quantised(tensors[tensor], block, **settings)
        all[tensor + end] = scales if shape is None else scales.reshape(shape)
        expected[tensor] = zlib.crc32(made.tobytes())
    write(folder / "model.safetensors", all)
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def with_more(name, more):
    path = HERE / name / "model.safetensors"
    write(path, read(path) | more)


def is_small(tensor):
    return "norm" in tensor or "bias" in tensor or tensor.endswith("mlp.gate.weight")


def fp8(block, **further):
    said = dict(activation_scheme="dynamic", fmt="e4m3", quant_method="fp8", weight_block_size=block)
    return dict(quantization_config=said | further)


def blocks():
    """As DeepSeek V3: latent attention, experts one by one, blocks that do not fit."""

    def plan(tensor):
        if is_small(tensor) or "embed" in tensor or "lm_head" in tensor:
            return None
        return [12, 20], "_scale_inv", None, dict(every="experts.3.up" in tensor)

    source = "deepseek-v3"
    make("blocks", source, read(FIXTURES / source / "model.safetensors"), plan, fp8([12, 20]))


def edges():
    """As Qwen3-*-FP8, with the blocks of published models, and rows and columns more than one has."""
    random, inner = numpy.random.default_rng(1), 144
    tensors = read(FIXTURES / "qwen3" / "model.safetensors")
    tensors = {name: tensor for name, tensor in tensors.items() if "layers.1." not in name}
    for part, shape in dict(gate=(inner, 32), up=(inner, 32), down=(32, inner)).items():
        matrix = random.standard_normal(shape) * shape[1] ** -0.5
        # Blocks that differ.
        matrix[128:] *= 0.2
        matrix[:, 128:] *= 3
        tensors[f"model.layers.0.mlp.{part}_proj.weight"] = matrix.astype(F32)

    def plan(tensor):
        if is_small(tensor) or "embed" in tensor or "lm_head" in tensor:
            return None
        return [128, 128], "_scale_inv", None, dict(of_scales=BF16)

    changes = dict(num_hidden_layers=1, intermediate_size=inner, layer_types=["full_attention"])
    make("edges", "qwen3", tensors, plan, changes | fp8([128, 128], modules_to_not_convert=["lm_head"]))


def scales():
    """As compressed-tensors: one scale of a matrix, or one a row, and what says how inputs are rounded."""
    ends = {
        "embed_tokens": ([None, None], [1], {}),
        "q_proj": ([1, None], None, {}),
        "k_proj": ([None, None], [], {}),
        "v_proj": ([1, None], [-1], dict(of_scales=BF16)),
        "o_proj": ([None, None], [1, 1], dict(dtype=E5M2)),
        "gate_proj": ([1, None], None, dict(of_scales=BF16)),
        "up_proj": ([None, None], [1], dict(every=True)),
        "down_proj": ([12, 20], None, {}),
        "lm_head": ([1, None], None, {}),
    }

    def plan(tensor):
        found = [how for part, how in ends.items() if part in tensor and "bias" not in tensor]
        return (found[0][0], "_scale", found[0][1], found[0][2]) if found else None

    weights = dict(num_bits=8, type="float", symmetric=True, dynamic=False)
    groups = dict(
        group_0=dict(targets=["Linear"], weights=weights | dict(strategy="channel")),
        group_1=dict(targets=["re:.*down_proj"], weights=weights | dict(strategy="block", block_structure=[12, 20])),
    )
    said = dict(quant_method="compressed-tensors", format="float-quantized", config_groups=groups, ignore=[])
    tensors = read(FIXTURES / "qwen3" / "model.safetensors")
    tensors = {name: tensor for name, tensor in tensors.items() if "layers.1." not in name}
    changes = dict(num_hidden_layers=1, layer_types=["full_attention"], quantization_config=said)
    make("scales", "qwen3", tensors, plan, changes)
    attention = "model.layers.0.self_attn"
    with_more(
        "scales",
        {
            f"{attention}.q_proj.input_scale": numpy.array([0.5], F32),
            f"{attention}.o_proj.activation_scale": numpy.array(0.5, F32),
            f"{attention}.k_proj.k_scale": numpy.array(0.5, F32),
            f"{attention}.v_scale": numpy.array([0.5], BF16),
        },
    )


def stacked():
    """All experts in one tensor, scales that are powers of two."""
    source = "qwen3-moe"
    tensors = read(FIXTURES / source / "model.safetensors")
    tensors = {name.replace("layers.1.", "layers.0."): tensors[name] for name in tensors if "layers.0." not in name}
    begin = "model.layers.0.mlp.experts"
    take = lambda part: numpy.stack([tensors.pop(f"{begin}.{i}.{part}_proj.weight") for i in range(6)])
    gate, up, down = take("gate"), take("up"), take("down")
    tensors |= {f"{begin}.gate_up_proj": numpy.concatenate([gate, up], 1), f"{begin}.down_proj": down}

    def plan(tensor):
        if tensor == f"{begin}.down_proj":
            return [None, None], "_scale_inv", [6, 1, 1], {}
        if is_small(tensor) or "embed" in tensor or "lm_head" in tensor:
            return None
        return [24, 20], "_scale_inv", None, dict(of_scales=ml_dtypes.float8_e8m0fnu)

    config = json.loads((FIXTURES / source / "config.json").read_text())
    changes = dict(num_hidden_layers=1, mlp_only_layers=[], decoder_sparse_step=1)
    if config.get("layer_types"):
        changes["layer_types"] = config["layer_types"][1:2]
    make("stacked", source, tensors, plan, changes | fp8([24, 20], scale_fmt="ue8m0"))
    more = {f"{begin}.gate_up_proj_activation_scale": numpy.ones(6, F32)}
    with_more("stacked", more)


if __name__ == "__main__":
    blocks()
    edges()
    scales()
    stacked()
