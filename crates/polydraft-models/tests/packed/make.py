"""Makes the fixtures of tests/packed.rs: tiny models whose weights are whole numbers, as they are published. Run it
with the packages of requirements.txt; it writes beside itself.

GPTQ and AWQ are packed here, by the formats' definitions, and unpacked by vLLM; compressed-tensors packs and unpacks
its own. Per model: config.json, tokenizer.json, model.safetensors, and expected.safetensors with tokens [T] and the
logits [T, V] that transformers gives in f32 for the numbers that the unpacked weights stand for.
"""

import json
import pathlib
import shutil
import tempfile
import types

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config
from vllm.model_executor.layers.quantization import auto_awq
from vllm.model_executor.layers.quantization.utils.quant_utils import unpack_cols

HERE = pathlib.Path(__file__).parent
FIXTURES = HERE.parent / "fixtures"
LENGTH = 20
SHAPE = dict(
    vocab_size=62,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=64,
    bos_token_id=0,
    eos_token_id=1,
    pad_token_id=None,
    tie_word_embeddings=False,
)
# In AWQ, which column of eight a half of a byte of the word is of, from the lowest on.
ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def save(path, tensors):
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata={"format": "pt"})


def made(config, generator):
    """A model's tensors, random and of sizes that keep its logits apart."""
    model = AutoModelForCausalLM.from_config(config)
    state = {}
    for name, tensor in model.state_dict().items():
        width = tensor.shape[-1]
        random = torch.randn(tensor.shape, generator=generator)
        state[name] = random * 1.5 * width**-0.5 if tensor.dim() > 1 else 1 + 0.3 * random
    fields = config.to_dict() | dict(architectures=[type(model).__name__], torch_dtype="float16")
    for field in ["transformers_version", "dtype", "_name_or_path"]:
        fields.pop(field, None)
    return fields, state


def write(name, fields, said, packed, plain, generator):
    """`plain` holds all weights as they are meant."""
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    shutil.copy(FIXTURES / "llama" / "tokenizer.json", folder / "tokenizer.json")
    with tempfile.TemporaryDirectory() as wide:
        wide = pathlib.Path(wide)
        (wide / "config.json").write_text(json.dumps(fields))
        save(wide / "model.safetensors", {name: tensor.float() for name, tensor in plain.items()})
        model = AutoModelForCausalLM.from_pretrained(wide, dtype=torch.float32).eval()
    tokens = torch.randint(2, 62, (LENGTH,), generator=generator)
    with torch.no_grad():
        logits = model(tokens[None]).logits[0]
    (folder / "config.json").write_text(json.dumps(fields | dict(quantization_config=said), indent=1) + "\n")
    save(folder / "model.safetensors", packed)
    save(folder / "expected.safetensors", dict(tokens=tokens, logits=logits))
    print(f"{name}: logits {logits.std():.2f}, {sum(file.stat().st_size for file in folder.iterdir())} bytes")


def fitted(matrix, size, bits, symmetric, index=None):
    """Scales and what stands for 0, as signed numbers, of groups of `size` columns."""
    order = torch.arange(matrix.shape[1]) if index is None else index.argsort(stable=True)
    cut = matrix[:, order].reshape(matrix.shape[0], -1, size)
    half = 2 ** (bits - 1)
    if symmetric:
        scales = cut.abs().amax(-1) / (half - 0.5)
        return scales, torch.zeros(scales.shape, dtype=torch.int8)
    least, most = cut.amin(-1).clamp(max=0), cut.amax(-1).clamp(min=0)
    scales = (most - least) / (2 * half - 1)
    return scales, (-half - least / scales).round().clamp(-half, half - 1).to(torch.int8)


def shuffled(columns, size, generator):
    index = torch.arange(columns) // size
    return index[torch.randperm(columns, generator=generator)].to(torch.int32)


# compressed-tensors


def compressed(state, plan, schemes, formats):
    """`plan` says of a matrix which scheme it has; None leaves it as it is."""
    packed, plain = {}, {}
    generator = torch.Generator().manual_seed(5)
    for name, tensor in state.items():
        number = plan(name)
        if number is None:
            packed[name] = plain[name] = tensor.half()
            continue
        scheme, base = schemes[number], name.removesuffix("weight")
        weights = scheme.weights
        rows, columns = tensor.shape
        size = weights.group_size if weights.strategy == "group" else columns
        index = shuffled(columns, size, generator) if weights.actorder == "group" else None
        matrix = tensor.reshape(1, -1) if weights.strategy == "tensor" else tensor
        size = matrix.shape[1] if weights.strategy == "tensor" else size
        scales, zeros = fitted(matrix, size, weights.num_bits, weights.symmetric, index)
        scales = scales.bfloat16()
        if weights.strategy == "tensor":
            scales, zeros = scales.reshape(1), zeros.reshape(1)
        given = dict(weight=tensor, weight_scale=scales.float(), weight_zero_point=zeros)
        if index is not None:
            given["weight_g_idx"] = index
        compressor = BaseCompressor.get_value_from_registry(formats[number])
        parts = compressor.compress(given, scheme)
        plain[name] = compressor.decompress(parts, scheme)["weight"]
        parts["weight_scale"] = scales
        packed |= {base + part: value for part, value in parts.items()}
    return packed, plain


def described(schemes, formats, format):
    groups = {
        f"group_{number}": scheme.model_dump(mode="json") | dict(format=of)
        for number, (scheme, of) in enumerate(zip(schemes, formats))
    }
    return dict(
        quant_method="compressed-tensors",
        format=format,
        config_groups=groups,
        ignore=["lm_head"],
        kv_cache_scheme=None,
        quantization_status="compressed",
        sparsity_config={},
        transform_config={},
    )


def scheme(targets, inputs=None, **weights):
    inputs = inputs and QuantizationArgs(**inputs)
    return QuantizationScheme(targets=targets, weights=QuantizationArgs(type="int", **weights), input_activations=inputs)


def is_matrix(name):
    return "_proj.weight" in name


def ct_group():
    """Groups with zero points in an order of their own, and rows of 8 bits, in sizes that no word divides."""
    generator = torch.Generator().manual_seed(1)
    shape = SHAPE | dict(hidden_size=36, intermediate_size=60, num_attention_heads=3, num_key_value_heads=1, head_dim=12)
    fields, state = made(Qwen3Config(**shape), generator)
    group = dict(num_bits=4, strategy="group", group_size=12)
    schemes = [
        scheme(["re:.*(q|k|v|o)_proj"], **group, symmetric=False, actorder="group"),
        scheme(["re:.*(gate|up)_proj"], num_bits=8, strategy="channel", symmetric=True),
        scheme(["re:.*down_proj"], num_bits=4, strategy="channel", symmetric=False),
        scheme(["re:.*up_proj"], **group | dict(group_size=18), symmetric=True),
    ]
    formats = ["pack-quantized"] * 4

    def plan(name):
        if not is_matrix(name):
            return None
        return 0 if "attn" in name else 3 if "up_proj" in name else 1 if "gate" in name else 2

    packed, plain = compressed(state, plan, schemes, formats)
    write("ct-group", fields, described(schemes, formats, "pack-quantized"), packed, plain, generator)


def ct_bytes():
    """A number a byte: per row with inputs in 8 bits too, one scale of all, groups, 4 bits in a byte."""
    generator = torch.Generator().manual_seed(2)
    fields, state = made(LlamaConfig(**SHAPE), generator)
    inputs = dict(num_bits=8, type="int", strategy="token", dynamic=True, symmetric=True)
    still = dict(num_bits=8, type="int", strategy="tensor", dynamic=False, symmetric=False)
    schemes = [
        scheme(["Linear"], inputs, num_bits=8, strategy="channel", symmetric=True),
        scheme(["re:.*k_proj"], still, num_bits=8, strategy="tensor", symmetric=True),
        scheme(["re:.*v_proj"], num_bits=8, strategy="tensor", symmetric=False),
        scheme(["re:.*down_proj"], num_bits=8, strategy="group", group_size=16, symmetric=False),
        scheme(["re:.*up_proj"], num_bits=4, strategy="channel", symmetric=False),
    ]
    formats = ["int-quantized", "int-quantized", "naive-quantized", "naive-quantized", "naive-quantized"]
    numbers = dict(k_proj=1, v_proj=2, down_proj=3, up_proj=4)

    def plan(name):
        if not is_matrix(name):
            return None
        return next((number for part, number in numbers.items() if part in name), 0)

    packed, plain = compressed(state, plan, schemes, formats)
    attention = "model.layers.0.self_attn"
    packed[f"{attention}.k_proj.input_scale"] = torch.tensor([0.5])
    packed[f"{attention}.k_proj.input_zero_point"] = torch.tensor([3], dtype=torch.int8)
    write("ct-bytes", fields, described(schemes, formats, "mixed-precision"), packed, plain, generator)


def ct_experts():
    """As Kimi K2 Thinking: experts in groups of 32, without zero points; the rest as it was."""
    generator = torch.Generator().manual_seed(3)
    fields = json.loads((FIXTURES / "qwen3-moe" / "config.json").read_text())
    state = {name: tensor.float() for name, tensor in load_file(FIXTURES / "qwen3-moe" / "model.safetensors").items()}
    schemes = [scheme(["Linear"], num_bits=4, strategy="group", group_size=32, symmetric=True)]
    formats = ["pack-quantized"]
    packed, plain = compressed(state, lambda name: 0 if ".experts." in name else None, schemes, formats)
    write("ct-experts", fields, described(schemes, formats, "pack-quantized"), packed, plain, generator)


# GPTQ and AWQ


def words(numbers, bits):
    """Columns of whole numbers of 0 to 2^bits - 1 as words, the first in the lowest bits."""
    each = 32 // bits
    cut = numbers.to(torch.int64).reshape(numbers.shape[0], -1, each)
    whole = (cut << (bits * torch.arange(each))).sum(-1)
    return torch.where(whole >= 2**31, whole - 2**32, whole).to(torch.int32)


def unpacked(packed, bits):
    rows, columns = packed.shape
    return unpack_cols(packed.contiguous(), bits, rows, columns * (32 // bits))


def rounded(tensor, size, bits, symmetric, index):
    """Numbers, scales, and what stands for 0, which is 1 or more, `[columns or groups, rows]`."""
    scales, zeros = fitted(tensor, size, bits, symmetric, index)
    scales = scales.half()
    zeros = (zeros.int() + 2 ** (bits - 1)).clamp(min=1)
    numbers = tensor / scales.float()[:, index] + zeros[:, index]
    return numbers.round().clamp(0, 2**bits - 1).to(torch.int32).T, scales.T, zeros.T


def gptq(name, config, bits, size, said, generator, with_index=True, shuffle=False, symmetric=False, skipped=()):
    less = 0 if said.get("checkpoint_format") == "gptq_v2" else 1
    fields, state = made(config, generator)
    packed, plain = {}, {}
    for tensor in state:
        base = tensor.removesuffix(".weight")
        if not (is_matrix(tensor) or "lm_head" in tensor and said.get("lm_head")) or any(s in tensor for s in skipped):
            packed[tensor] = plain[tensor] = state[tensor].half()
            continue
        matrix = state[tensor]
        columns = matrix.shape[1]
        width = columns if size == -1 else size
        index = shuffled(columns, width, generator) if shuffle else (torch.arange(columns) // width).to(torch.int32)
        numbers, scales, zeros = rounded(matrix, width, bits, symmetric, index)
        if less and not symmetric and "q_proj" in tensor:
            # The largest that is stored stands for one more than numbers can be.
            zeros[0, 0] = 2**bits
        parts = dict(qweight=words(numbers.T, bits).T, qzeros=words(zeros - less, bits), scales=scales)
        if with_index:
            parts["g_idx"] = index
        packed |= {f"{base}.{part}": value for part, value in parts.items()}
        # By vLLM.
        numbers = unpacked(parts["qweight"].T, bits).T
        zeros = unpacked(parts["qzeros"], bits) + less
        wide = (numbers - zeros[index]).float() * parts["scales"].float()[index]
        plain[tensor] = wide.T
        if shuffle:
            # As old versions of AutoGPTQ: a bias where the model has none.
            packed[f"{base}.bias"] = torch.zeros(matrix.shape[0], dtype=torch.float16)
    said = dict(quant_method="gptq", bits=bits, group_size=size, sym=symmetric, desc_act=shuffle) | said
    write(name, fields, said, packed, plain, generator)


def gptq_4():
    generator = torch.Generator().manual_seed(11)
    said = dict(damp_percent=0.1, true_sequential=True, model_file_base_name="model")
    gptq("gptq", LlamaConfig(**SHAPE), 4, 16, said, generator, shuffle=True)


def gptq_v2():
    generator = torch.Generator().manual_seed(12)
    said = dict(checkpoint_format="gptq_v2", lm_head=True, dynamic={"-:.*k_proj.*": {}}, pack_dtype="int32")
    config = Qwen3Config(**SHAPE | dict(vocab_size=64))
    gptq("gptq-v2", config, 8, -1, said, generator, with_index=False, skipped=["k_proj"])


def gptq_symmetric():
    """As most are: the same everywhere stands for 0."""
    generator = torch.Generator().manual_seed(13)
    said = dict(checkpoint_format="gptq", lm_head=False)
    gptq("gptq-symmetric", Qwen3Config(**SHAPE), 8, 32, said, generator, symmetric=True)


def awq():
    generator = torch.Generator().manual_seed(21)
    fields, state = made(Qwen3Config(**SHAPE), generator)
    # As they are, for vLLM's kernels.
    auto_awq.PackedvLLMParameter = lambda data, **_: data
    packed, plain = {}, {}
    for tensor, matrix in state.items():
        if not is_matrix(tensor) or "v_proj" in tensor:
            packed[tensor] = plain[tensor] = matrix.half()
            continue
        index = torch.arange(matrix.shape[1]) // 16
        numbers, scales, zeros = rounded(matrix, 16, 4, False, index)
        mixed = lambda numbers: numbers.reshape(numbers.shape[0], -1, 8)[:, :, ORDER].reshape(numbers.shape)
        parts = dict(qweight=words(mixed(numbers), 4), qzeros=words(mixed(zeros), 4), scales=scales)
        packed |= {f"{tensor.removesuffix('.weight')}.{part}": value for part, value in parts.items()}
        layer = types.SimpleNamespace(
            qweight=types.SimpleNamespace(data=parts["qweight"], device="cpu", shape=parts["qweight"].shape),
            qzeros=types.SimpleNamespace(data=parts["qzeros"]),
        )
        auto_awq._convert_awq_to_standard_format(layer, "qweight", "qzeros", 4)
        numbers, zeros = unpacked(layer.qweight.T, 4), unpacked(layer.qzeros.T, 4).T
        plain[tensor] = (numbers - zeros[:, index]).float() * scales.T.float()[:, index]
    said = dict(quant_method="awq", bits=4, group_size=16, version="gemm", zero_point=True)
    write("awq", fields, said | dict(modules_to_not_convert=["v_proj"]), packed, plain, generator)


if __name__ == "__main__":
    ct_group()
    ct_bytes()
    ct_experts()
    gptq_4()
    gptq_v2()
    gptq_symmetric()
    awq()
