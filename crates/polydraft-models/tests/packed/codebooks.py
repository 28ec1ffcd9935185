"""Makes those fixtures of tests/packed.rs whose numbers are indices into a table, and MXFP8: MXFP4 and MXFP8 are packed
and unpacked by compressed-tensors; NVFP4 is packed by it, also under the names of NVIDIA's Model Optimizer, and unpacked
by vLLM; bitsandbytes' NF4, FP4 and INT8 go by its own functions. Run it with the packages of requirements.txt.
"""

import torch
from bitsandbytes import functional as bnb
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from make import SHAPE, described, is_matrix, made, write
from transformers import LlamaConfig, Qwen3Config
from vllm.model_executor.layers.quantization.utils.nvfp4_emulation_utils import dequantize_to_dtype

# Rows that end within blocks of 64.
ODD = SHAPE | dict(hidden_size=48, intermediate_size=96, head_dim=12)
BLOCK, NESTED = 64, 64


def packed_by(function, state):
    """What `function` makes of each matrix: its tensors by the ends of their names, and what they stand for."""
    packed, plain = {}, {}
    for name, tensor in state.items():
        if not is_matrix(name) or "k_proj" in name:
            packed[name] = plain[name] = tensor.half()
            continue
        parts, plain[name] = function(tensor)
        packed |= {name.removesuffix("weight") + end: part for end, part in parts.items()}
    return packed, plain


def float_scheme(bits, size, strategy, scales):
    weights = QuantizationArgs(num_bits=bits, type="float", strategy=strategy, group_size=size, scale_dtype=scales)
    return QuantizationScheme(targets=["Linear"], weights=weights)


def by_compressed_tensors(scheme, format, most, scales_of, of_all=False):
    compressor = BaseCompressor.get_value_from_registry(format)

    def function(tensor):
        size = scheme.weights.group_size
        largest = tensor.unflatten(-1, (-1, size)).abs().amax(-1)
        given = dict(weight=tensor, weight_scale=largest / most)
        if of_all:
            given["weight_global_scale"] = (448 * 6 / tensor.abs().amax()).reshape(1)
            given["weight_scale"] = given["weight_scale"] * given["weight_global_scale"]
        given["weight_scale"] = scales_of(given["weight_scale"])
        parts = compressor.compress(given, scheme)
        if of_all:
            # compressed-tensors unpacks these in bf16, in which they are rounded.
            return parts, by_vllm(parts["weight_packed"], parts["weight_scale"], 1 / parts["weight_global_scale"])
        return parts, compressor.decompress(parts, scheme)["weight"].float()

    return function


def by_vllm(numbers, scales, of_all):
    return dequantize_to_dtype(numbers, scales, of_all, torch.float32, block_size=16, swizzle=False)


def eighth(scales):
    return scales.to(torch.float8_e4m3fn).float()


def power(scales):
    return 2.0 ** scales.log2().ceil()


def compressed():
    for number, (name, format, scheme, most, scales_of) in enumerate(
        [
            ("nvfp4", "nvfp4-pack-quantized", float_scheme(4, 16, "tensor_group", torch.float8_e4m3fn), 6, eighth),
            ("mxfp4", "mxfp4-pack-quantized", float_scheme(4, 32, "group", torch.uint8), 6, power),
            ("mxfp8", "mxfp8-quantized", float_scheme(8, 32, "group", torch.uint8), 448, power),
        ]
    ):
        generator = torch.Generator().manual_seed(31 + number)
        fields, state = made(Qwen3Config(**SHAPE), generator)
        function = by_compressed_tensors(scheme, format, most, scales_of, of_all=name == "nvfp4")
        packed, plain = packed_by(function, state)
        if name == "nvfp4":
            packed["model.layers.0.self_attn.q_proj.input_global_scale"] = torch.tensor([3.0])
        write(name, fields, described([scheme], [format], format), packed, plain, generator)


def model_optimizer():
    generator = torch.Generator().manual_seed(41)
    fields, state = made(LlamaConfig(**SHAPE), generator)
    scheme = float_scheme(4, 16, "tensor_group", torch.float8_e4m3fn)
    function = by_compressed_tensors(scheme, "nvfp4-pack-quantized", 6, eighth, of_all=True)

    def renamed(tensor):
        parts, _ = function(tensor)
        numbers, scales, of_all = parts["weight_packed"], parts["weight_scale"], 1 / parts["weight_global_scale"][0]
        parts = dict(weight=numbers, weight_scale=scales, weight_scale_2=of_all, input_scale=torch.tensor(0.01))
        return parts, by_vllm(numbers, scales, of_all)

    packed, plain = packed_by(renamed, state)
    said = dict(quant_method="modelopt", quant_algo="NVFP4", ignore=["lm_head", "*k_proj"], producer=dict(name="modelopt"))
    write("nvfp4-modelopt", fields, said, packed, plain, generator)


def four_bits(kind, nested):
    def function(tensor):
        numbers, state = bnb.quantize_4bit(tensor, blocksize=BLOCK, quant_type=kind)
        if nested:
            state.offset = state.absmax.mean()
            state.absmax, state.state2 = bnb.quantize_blockwise(state.absmax - state.offset, blocksize=NESTED)
            state.nested = True
        plain = bnb.dequantize_4bit(numbers, state)
        parts = {f"weight.{name}": part for name, part in state.as_dict(packed=True).items()}
        return dict(weight=numbers) | parts, plain

    return function


def eight_bits(tensor):
    numbers, scales, _ = bnb.int8_vectorwise_quant(tensor.half())
    plain = bnb.int8_vectorwise_dequant(numbers, scales)
    return dict(weight=numbers, SCB=scales, weight_format=torch.tensor(0, dtype=torch.uint8)), plain


def bitsandbytes():
    for number, (name, function) in enumerate(
        [("bnb-nf4", four_bits("nf4", True)), ("bnb-fp4", four_bits("fp4", False)), ("bnb-int8", eight_bits)]
    ):
        generator = torch.Generator().manual_seed(51 + number)
        fields, state = made(LlamaConfig(**ODD), generator)
        packed, plain = packed_by(function, state)
        of_four = number < 2
        said = dict(quant_method="bitsandbytes", load_in_4bit=of_four, load_in_8bit=not of_four)
        if of_four:
            said |= dict(bnb_4bit_quant_type=name.removeprefix("bnb-"), bnb_4bit_use_double_quant=name == "bnb-nf4")
        write(name, fields, said | dict(llm_int8_skip_modules=["k_proj"]), packed, plain, generator)


if __name__ == "__main__":
    compressed()
    model_optimizer()
    bitsandbytes()
