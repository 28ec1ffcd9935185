"""Makes a GGUF file of random weights in the shape of a published model, to time what cannot be fetched here:

    python bench/random_gguf.py SHAPE OUT.gguf [--layers N] [--type q4_0|q8_0]

Shapes: qwen3.5-0.8b, qwen3.5-4b (hybrids of the gated delta rule and attention), qwen3.5-35b-a3b (the same with
experts), lfm2-1.2b (short convolutions and attention), qwen3-30b-a3b (experts). Matrices are of one type, norms and small tensors in f32.
Needs the package gguf. Texts of such a model mean nothing; its speed is that of the published one.
"""

import argparse
import sys

import gguf
import numpy as np

QWEN = dict(
    arch="qwen35", head=256, kernel=4, key=128, value=128, key_heads=16, vocabulary=248_320, interval=4, turned=64
)
SHAPES = {
    "qwen3.5-0.8b": QWEN | dict(hidden=1024, inner=3584, layers=24, heads=8, kv=2, value_heads=16, tied=True),
    "qwen3.5-4b": QWEN | dict(hidden=2560, inner=9216, layers=32, heads=16, kv=4, value_heads=32, tied=True),
    "qwen3.5-35b-a3b": QWEN
    | dict(arch="qwen35moe", hidden=2048, inner=512, layers=40, heads=16, kv=2, value_heads=32, tied=False)
    | dict(experts=256, used=8),
    "qwen3-30b-a3b": dict(
        arch="qwen3moe", hidden=2048, inner=768, layers=48, heads=32, kv=4, head=128, vocabulary=151_936, tied=False
    )
    | dict(experts=128, used=8, interval=1),
    "lfm2-1.2b": dict(
        arch="lfm2", hidden=2048, inner=8192, layers=16, heads=32, kv=8, head=64, kernel=3, vocabulary=65_536, tied=True
    )
    | dict(attention=(2, 5, 8, 10, 12, 14)),
}


def is_attention(shape, layer):
    return layer in shape["attention"] if "attention" in shape else (layer + 1) % shape["interval"] == 0


class Maker:
    def __init__(self, shape, layers, kind, out):
        self.shape, self.layers, self.kind = shape, layers, kind
        self.rng = np.random.default_rng(1)
        self.writer = gguf.GGUFWriter(out, shape["arch"])

    def matrix(self, name, *dims):
        """Random blocks: what a number is does not matter, as long as sums stay in range."""
        rows, columns = int(np.prod(dims[:-1])), dims[-1]
        blocks = rows * columns // 32
        spread, width = (0.2, 16) if self.kind == "q4_0" else (0.012, 32)
        data = np.empty((blocks, 2 + width), dtype=np.uint8)
        data[:, :2] = np.frombuffer(np.float16(spread / columns**0.5).tobytes(), dtype=np.uint8)
        # Around zero: a mean would make all tokens alike, and with them their experts.
        if self.kind == "q4_0":
            low, high = self.rng.integers(1, 16, size=(2, blocks, width), dtype=np.uint8)
            data[:, 2:] = low | high << 4
        else:
            data[:, 2:] = self.rng.integers(-127, 128, size=(blocks, width), dtype=np.int8).view(np.uint8)
        raw = gguf.GGMLQuantizationType.Q4_0 if self.kind == "q4_0" else gguf.GGMLQuantizationType.Q8_0
        data = data.reshape(*dims[:-1], -1)
        self.writer.add_tensor(name, data, raw_dtype=raw)

    def numbers(self, name, *dims, center=1.0):
        value = center + 0.1 * self.rng.standard_normal(dims)
        self.writer.add_tensor(name, value.astype(np.float32))

    def layer(self, i):
        s, at = self.shape, f"blk.{i}."
        hidden, heads, kv, head = s["hidden"], s["heads"], s["kv"], s["head"]
        lfm2, delta = s["arch"] == "lfm2", "key_heads" in s
        self.numbers(at + "attn_norm.weight", hidden)
        self.numbers(at + ("post_attention_norm.weight" if delta else "ffn_norm.weight"), hidden)
        if is_attention(s, i):
            self.matrix(at + "attn_q.weight", heads * head * (2 if delta else 1), hidden)
            self.matrix(at + "attn_k.weight", kv * head, hidden)
            self.matrix(at + "attn_v.weight", kv * head, hidden)
            self.matrix(at + "attn_output.weight", hidden, heads * head)
            self.numbers(at + "attn_q_norm.weight", head)
            self.numbers(at + "attn_k_norm.weight", head)
        elif lfm2:
            self.matrix(at + "shortconv.in_proj.weight", 3 * hidden, hidden)
            self.matrix(at + "shortconv.out_proj.weight", hidden, hidden)
            self.numbers(at + "shortconv.conv.weight", hidden, s["kernel"], center=0.3)
        else:
            keys, values = s["key_heads"] * s["key"], s["value_heads"] * s["value"]
            self.matrix(at + "attn_qkv.weight", 2 * keys + values, hidden)
            self.matrix(at + "attn_gate.weight", values, hidden)
            self.matrix(at + "ssm_beta.weight", s["value_heads"], hidden)
            self.matrix(at + "ssm_alpha.weight", s["value_heads"], hidden)
            self.numbers(at + "ssm_conv1d.weight", 2 * keys + values, s["kernel"], center=0.3)
            self.numbers(at + "ssm_a", s["value_heads"], center=-1.0)
            self.numbers(at + "ssm_dt.bias", s["value_heads"], center=0.0)
            self.numbers(at + "ssm_norm.weight", s["value"])
            self.matrix(at + "ssm_out.weight", hidden, values)
        inner = s["inner"]
        if "experts" in s:
            count = s["experts"]
            self.numbers(at + "ffn_gate_inp.weight", count, hidden, center=0.0)
            if delta:
                self.numbers(at + "ffn_gate_inp_shexp.weight", hidden, center=0.0)
            for part, dims in [
                ("gate", (inner, hidden)), ("up", (inner, hidden)), ("down", (hidden, inner))
            ]:
                self.matrix(at + f"ffn_{part}_exps.weight", count, *dims)
                if delta:
                    self.matrix(at + f"ffn_{part}_shexp.weight", *dims)
        else:
            self.matrix(at + "ffn_gate.weight", inner, hidden)
            self.matrix(at + "ffn_up.weight", inner, hidden)
            self.matrix(at + "ffn_down.weight", hidden, inner)

    def keys(self):
        s, w = self.shape, self.writer
        w.add_block_count(self.layers)
        w.add_context_length(32_768)
        w.add_embedding_length(s["hidden"])
        w.add_feed_forward_length(s["inner"])
        w.add_head_count(s["heads"])
        w.add_layer_norm_rms_eps(1e-6)
        w.add_rope_freq_base(10_000_000.0)
        w.add_vocab_size(s["vocabulary"])
        if s["arch"] == "lfm2":
            w.add_head_count_kv([s["kv"] if is_attention(s, i) else 0 for i in range(self.layers)])
            w.add_shortconv_l_cache(s["kernel"])
        else:
            w.add_head_count_kv(s["kv"])
            w.add_key_length(s["head"])
            w.add_value_length(s["head"])
        if "key_heads" in s:
            w.add_rope_dimension_count(s["turned"])
            w.add_rope_dimension_sections([11, 11, 10, 0])
            w.add_ssm_conv_kernel(s["kernel"])
            w.add_ssm_state_size(s["key"])
            w.add_ssm_group_count(s["key_heads"])
            w.add_ssm_time_step_rank(s["value_heads"])
            w.add_ssm_inner_size(s["value"] * s["value_heads"])
            w.add_full_attention_interval(s["interval"])
        if "experts" in s:
            w.add_expert_count(s["experts"])
            w.add_expert_used_count(s["used"])
            w.add_expert_feed_forward_length(s["inner"])
            if "key_heads" in s:
                w.add_expert_shared_feed_forward_length(s["inner"])

    def vocabulary(self):
        count = self.shape["vocabulary"]
        tokens = [f"<{i}>" for i in range(count)]
        # What prompts are made of.
        for i in range(33, 127):
            tokens[i] = chr(i)
        tokens[32], tokens[10], tokens[200] = "\u0120", "\u010a", "th"
        self.writer.add_tokenizer_model("gpt2")
        self.writer.add_tokenizer_pre("gpt-2")
        self.writer.add_token_list(tokens)
        self.writer.add_token_types([1] * count)
        self.writer.add_token_merges(["t h"])
        self.writer.add_eos_token_id(count - 1)

    def make(self):
        s = self.shape
        self.keys()
        self.vocabulary()
        self.matrix("token_embd.weight", s["vocabulary"], s["hidden"])
        if not s["tied"]:
            self.matrix("output.weight", s["vocabulary"], s["hidden"])
        self.numbers("token_embd_norm.weight" if s["arch"] == "lfm2" else "output_norm.weight", s["hidden"])
        for i in range(self.layers):
            self.layer(i)
            print(f"\rlayer {i + 1} of {self.layers}", end="", file=sys.stderr)
        print(file=sys.stderr, flush=True)
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("out")
    parser.add_argument("--layers", type=int, help="fewer than the published model has")
    parser.add_argument("--type", choices=["q4_0", "q8_0"], default="q4_0")
    args = parser.parse_args()
    shape = SHAPES[args.shape]
    Maker(shape, args.layers or shape["layers"], args.type, args.out).make()


if __name__ == "__main__":
    main()
