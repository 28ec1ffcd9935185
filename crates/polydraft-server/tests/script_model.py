"""Model that writes given texts, for exact tests of everything between tokens and answers.

Its only layer is zero, so its logits depend on the position alone: at position `first + step * k` it begins script k.
A prompt of that many tokens, one per letter, chooses the script. Needs numpy."""

import json
import struct
from pathlib import Path

import numpy

WIDTH = 128
END = "<|im_end|>"
SPECIAL = ["<|endoftext|>", END, "<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|return|>", "<|call|>",
           "<|constrain|>", "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|\"|>", "<|tool_call_start|>",
           "<|tool_call_end|>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
           "<|tool_call_end|>", "<|tool_call_argument_begin|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"]
PLAIN = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<seed:think>", "</seed:think>", "<seed:tool_call>"]


def letters():
    """Characters of the bytes 0 to 255 in vocabularies of GPT-2's kind."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{byte: chr(byte) for byte in printable}, **{byte: chr(256 + number) for number, byte in enumerate(others)}}


class Scripts:
    """Vocabulary and writer of the model."""

    def __init__(self):
        self.of_byte = letters()
        self.marks = list(dict.fromkeys([*SPECIAL, *PLAIN]))
        self.ids = {letter: number for number, letter in enumerate(sorted(self.of_byte.values()))}
        for mark in self.marks:
            self.ids[mark] = len(self.ids)

    def encode(self, text):
        tokens = []
        while text:
            found = max((mark for mark in self.marks if text.startswith(mark)), key=len, default=None)
            if found:
                tokens.append(self.ids[found])
            else:
                tokens += [self.ids[self.of_byte[byte]] for byte in text[0].encode()]
            text = text[len(found or text[0]):]
        return tokens

    def tokenizer(self):
        added = [{"id": self.ids[mark], "content": mark, "single_word": False, "lstrip": False, "rstrip": False,
                  "normalized": False, "special": mark in SPECIAL} for mark in self.marks]
        bytes_only = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        vocabulary = {token: number for token, number in self.ids.items() if token not in self.marks}
        return {"version": "1.0", "added_tokens": added, "normalizer": None, "post_processor": None, "truncation": None,
                "padding": None, "pre_tokenizer": bytes_only, "decoder": bytes_only,
                "model": {"type": "BPE", "vocab": vocabulary, "merges": []}}

    def write(self, folder, scripts, step, first=None):
        """Writes the model of these scripts in a folder; each has less than `step` tokens, the default of `first`."""
        first = first or step
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        size, positions = len(self.ids), first + step * len(scripts)
        codes = numpy.sign(numpy.random.default_rng(1).standard_normal((size, WIDTH))).astype("f4")
        codes -= codes.mean(1, keepdims=True)
        wanted = numpy.full(positions, self.ids[END])
        for number, script in enumerate(scripts):
            tokens = [*self.encode(script), self.ids[END]]
            start = first + step * number - 1
            wanted[start:start + len(tokens)] = tokens
        zeros, ones = (lambda *shape: numpy.zeros(shape, "f4")), (lambda: numpy.ones(WIDTH, "f4"))
        layer = "model.decoder.layers.0."
        tensors = {"lm_head.weight": codes, "model.decoder.embed_tokens.weight": zeros(size, WIDTH),
                   "model.decoder.embed_positions.weight": numpy.concatenate([zeros(2, WIDTH), codes[wanted]])}
        for name, rows, columns in [("fc1", 32, WIDTH), ("fc2", WIDTH, 32)] + [
                (f"self_attn.{part}_proj", WIDTH, WIDTH) for part in ("q", "k", "v", "out")]:
            tensors[f"{layer}{name}.weight"], tensors[f"{layer}{name}.bias"] = zeros(rows, columns), zeros(rows)
        for name in (f"{layer}self_attn_layer_norm", f"{layer}final_layer_norm", "model.decoder.final_layer_norm"):
            tensors[f"{name}.weight"], tensors[f"{name}.bias"] = ones(), zeros(WIDTH)
        header, offset = {}, 0
        for name, tensor in tensors.items():
            header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [offset, offset + tensor.nbytes]}
            offset += tensor.nbytes
        head = json.dumps(header).encode()
        with open(folder / "model.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(head)) + head)
            for tensor in tensors.values():
                file.write(numpy.ascontiguousarray(tensor).tobytes())
        config = {"architectures": ["OPTForCausalLM"], "model_type": "opt", "vocab_size": size, "hidden_size": WIDTH,
                  "num_hidden_layers": 1, "ffn_dim": 32, "max_position_embeddings": positions, "num_attention_heads": 2,
                  "word_embed_proj_dim": WIDTH, "activation_function": "relu", "do_layer_norm_before": True,
                  "enable_bias": True, "layer_norm_elementwise_affine": True, "tie_word_embeddings": False,
                  "bos_token_id": None, "eos_token_id": self.ids[END], "pad_token_id": None, "torch_dtype": "float32"}
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "bos_token": None}
        for name, value in [("config", config), ("tokenizer", self.tokenizer()), ("tokenizer_config", settings),
                            ("generation_config", {"eos_token_id": [self.ids[END]], "do_sample": False})]:
            (folder / f"{name}.json").write_text(json.dumps(value, ensure_ascii=False))
