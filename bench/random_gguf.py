#!/usr/bin/env python3
"""Makes a GGUF file of random weights in the shape of a published model that is not at hand.

  bench/random_gguf.py SHAPE OUT.gguf [--layers N] [--type q4_0|q8_0]

Shapes: qwen3.5-0.8b, qwen3.5-4b (hybrids of the gated delta rule and attention), qwen3.5-35b-a3b
(the same with experts), lfm2-1.2b (short convolutions and attention), qwen3-30b-a3b (experts),
granite-4.0-h-1b and -tiny (Mamba-2 and attention, the latter with experts), nemotron-nano-9b-v2
(the same in layers of one block), gemma4-e2b (windows, shared KV cache, embeddings for each layer).
Matrices are of one type, norms and small tensors in f32. Needs the package gguf. Texts of such a
model mean nothing; its speed is that of the published one.
"""

import sys

import gguf
import harness
import numpy as np

QWEN = dict(
    arch="qwen35", head=256, kernel=4, key=128, value=128, key_heads=16, vocabulary=248_320,
    interval=4, turned=64
)
GRANITE = dict(
    arch="granitehybrid", hidden=1536, layers=40, heads=12, kv=4, head=128, vocabulary=100_352,
    tied=True,
    attention=(5, 15, 25, 35), state=128, state_heads=48, state_head=64, groups=1, kernel=4,
)
SHAPES = {
    "qwen3.5-0.8b": QWEN | dict(
        hidden=1024, inner=3584, layers=24, heads=8, kv=2, value_heads=16, tied=True
    ),
    "qwen3.5-4b": QWEN | dict(
        hidden=2560, inner=9216, layers=32, heads=16, kv=4, value_heads=32, tied=True
    ),
    "qwen3.5-35b-a3b": QWEN
    | dict(
        arch="qwen35moe", hidden=2048, inner=512, layers=40, heads=16, kv=2, value_heads=32,
        tied=False
    )
    | dict(experts=256, used=8),
    "qwen3-30b-a3b": dict(
        arch="qwen3moe", hidden=2048, inner=768, layers=48, heads=32, kv=4, head=128,
        vocabulary=151_936, tied=False
    )
    | dict(experts=128, used=8, interval=1),
    "lfm2-1.2b": dict(
        arch="lfm2", hidden=2048, inner=8192, layers=16, heads=32, kv=8, head=64, kernel=3,
        vocabulary=65_536, tied=True
    )
    | dict(attention=(2, 5, 8, 10, 12, 14)),
    "granite-4.0-h-1b": GRANITE | dict(inner=4096),
    "granite-4.0-h-tiny": GRANITE | dict(inner=512, experts=64, used=6, shared=1024),
    "nemotron-nano-9b-v2": dict(
        arch="nemotron_h", hidden=4480, inner=15_680, layers=56, heads=40, kv=8, head=128,
        vocabulary=131_072, tied=False
    )
    | dict(state=128, state_heads=128, state_head=80, groups=8, kernel=4)
    | dict(blocks="M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-"),
    "gemma4-e2b": dict(
        arch="gemma4", hidden=1536, inner=6144, layers=35, heads=8, kv=1, head=512, near=256,
        window=512, vocabulary=262_144, tied=True
    )
    | dict(interval=5, reusing=20, per_layer=256),
}


def is_attention(shape, layer):
    if "blocks" in shape:
        return shape["blocks"][layer] == "*"
    if "attention" in shape:
        return layer in shape["attention"]
    return (layer + 1) % shape["interval"] == 0


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
            data[:, 2:] = self.rng.integers(
                -127, 128, size=(blocks, width), dtype=np.int8
            ).view(np.uint8)
        raw = gguf.GGMLQuantizationType[self.kind.upper()]
        data = data.reshape(*dims[:-1], -1)
        self.writer.add_tensor(name, data, raw_dtype=raw)

    def numbers(self, name, *dims, center=1.0):
        value = center + 0.1 * self.rng.standard_normal(dims)
        self.writer.add_tensor(name, value.astype(np.float32))

    def state_space(self, at):
        """A block of Mamba-2."""
        s = self.shape
        values, groups = s["state_heads"] * s["state_head"], s["groups"]
        convolved = values + 2 * groups * s["state"]
        self.matrix(at + "ssm_in.weight", values + convolved + s["state_heads"], s["hidden"])
        self.matrix(at + "ssm_out.weight", s["hidden"], values)
        self.numbers(at + "ssm_conv1d.weight", convolved, s["kernel"], center=0.3)
        self.numbers(at + "ssm_conv1d.bias", convolved, center=0.0)
        self.numbers(at + "ssm_a", s["state_heads"], 1, center=-1.0)
        self.numbers(at + "ssm_d", s["state_heads"], 1)
        self.numbers(at + "ssm_dt.bias", s["state_heads"], center=0.0)
        self.numbers(at + "ssm_norm.weight", groups, values // groups)

    def plain_attention(self, at, head):
        """Attention without norms of heads."""
        s = self.shape
        self.matrix(at + "attn_q.weight", s["heads"] * head, s["hidden"])
        self.matrix(at + "attn_k.weight", s["kv"] * head, s["hidden"])
        self.matrix(at + "attn_v.weight", s["kv"] * head, s["hidden"])
        self.matrix(at + "attn_output.weight", s["hidden"], s["heads"] * head)

    def one_block(self, i):
        """Layers of Nemotron-H have one block."""
        s, at = self.shape, f"blk.{i}."
        self.numbers(at + "attn_norm.weight", s["hidden"])
        if s["blocks"][i] == "M":
            self.state_space(at)
        elif s["blocks"][i] == "*":
            self.plain_attention(at, s["head"])
        else:
            self.matrix(at + "ffn_up.weight", s["inner"], s["hidden"])
            self.matrix(at + "ffn_down.weight", s["hidden"], s["inner"])

    def gemma_layer(self, i):
        s, at = self.shape, f"blk.{i}."
        hidden, reuses = s["hidden"], i >= self.layers - self.reusing()
        head = s["head"] if is_attention(s, i) else s["near"]
        inner = s["inner"] * (2 if reuses else 1)
        for norm in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "post_norm"):
            self.numbers(f"{at}{norm}.weight", hidden)
        self.numbers(at + "layer_output_scale.weight", 1)
        self.matrix(at + "attn_q.weight", s["heads"] * head, hidden)
        self.numbers(at + "attn_q_norm.weight", head)
        self.matrix(at + "attn_output.weight", hidden, s["heads"] * head)
        if not reuses:
            self.matrix(at + "attn_k.weight", s["kv"] * head, hidden)
            self.matrix(at + "attn_v.weight", s["kv"] * head, hidden)
            self.numbers(at + "attn_k_norm.weight", head)
        self.matrix(at + "ffn_gate.weight", inner, hidden)
        self.matrix(at + "ffn_up.weight", inner, hidden)
        self.matrix(at + "ffn_down.weight", hidden, inner)
        self.matrix(at + "inp_gate.weight", s["per_layer"], hidden)
        self.matrix(at + "proj.weight", hidden, s["per_layer"])

    def reusing(self):
        """Layers at the end that read lower ones' KV cache."""
        return self.shape["reusing"] * self.layers // self.shape["layers"]

    def layer(self, i):
        if "blocks" in self.shape:
            return self.one_block(i)
        if "per_layer" in self.shape:
            return self.gemma_layer(i)
        s, at = self.shape, f"blk.{i}."
        hidden, heads, kv, head = s["hidden"], s["heads"], s["kv"], s["head"]
        lfm2, delta = s["arch"] == "lfm2", "key_heads" in s
        self.numbers(at + "attn_norm.weight", hidden)
        self.numbers(at + ("post_attention_norm.weight" if delta else "ffn_norm.weight"), hidden)
        if "state" in s:
            self.plain_attention(at, s["head"]) if is_attention(s, i) else self.state_space(at)
        elif is_attention(s, i):
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
                if delta or "shared" in s:
                    shared = [s.get("shared", inner) if n == inner else n for n in dims]
                    self.matrix(at + f"ffn_{part}_shexp.weight", *shared)
        else:
            self.matrix(at + "ffn_gate.weight", inner, hidden)
            self.matrix(at + "ffn_up.weight", inner, hidden)
            self.matrix(at + "ffn_down.weight", hidden, inner)

    def keys(self):
        s, w = self.shape, self.writer
        w.add_block_count(self.layers)
        w.add_context_length(32_768)
        w.add_embedding_length(s["hidden"])
        if "blocks" not in s and "per_layer" not in s:
            w.add_feed_forward_length(s["inner"])
        w.add_head_count(s["heads"])
        w.add_layer_norm_rms_eps(1e-6)
        w.add_rope_freq_base(10_000_000.0)
        w.add_vocab_size(s["vocabulary"])
        if "state" in s:
            self.keys_of_states()
        elif "per_layer" in s:
            self.keys_of_gemma()
        elif s["arch"] == "lfm2":
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

    def keys_of_states(self):
        s, w = self.shape, self.writer
        w.add_head_count_kv([s["kv"] if is_attention(s, i) else 0 for i in range(self.layers)])
        w.add_ssm_conv_kernel(s["kernel"])
        w.add_ssm_state_size(s["state"])
        w.add_ssm_group_count(s["groups"])
        w.add_ssm_time_step_rank(s["state_heads"])
        w.add_ssm_inner_size(s["state_heads"] * s["state_head"])
        if "blocks" in s:
            w.add_feed_forward_length(
                [s["inner"] if s["blocks"][i] == "-" else 0 for i in range(self.layers)]
            )
            w.add_key_length(s["head"])
            w.add_value_length(s["head"])
            w.add_rope_dimension_count(s["head"])
            w.add_layer_norm_eps(1e-5)
            return
        w.add_rope_dimension_count(s["head"])
        w.add_rope_scaling_finetuned(False)
        w.add_attention_scale(s["head"] ** -0.5)
        w.add_embedding_scale(12.0)
        w.add_residual_scale(0.22)
        w.add_logit_scale(8.0)
        w.add_expert_shared_feed_forward_length(s.get("shared", s["inner"]))

    def keys_of_gemma(self):
        s, w = self.shape, self.writer
        full = [is_attention(s, i) for i in range(self.layers)]
        reusing = self.reusing()
        w.add_feed_forward_length(
            [s["inner"] * (2 if i >= self.layers - reusing else 1) for i in range(self.layers)]
        )
        w.add_head_count_kv([s["kv"]] * self.layers)
        w.add_rope_freq_base_swa(10_000.0)
        w.add_final_logit_softcapping(30.0)
        w.add_sliding_window(s["window"])
        w.add_sliding_window_pattern([not one for one in full])
        w.add_shared_kv_layers(reusing)
        w.add_embedding_length_per_layer_input(s["per_layer"])
        for add, head in [
            (w.add_key_length, s["head"]), (w.add_value_length, s["head"]),
            (w.add_key_length_swa, s["near"]),
            (w.add_value_length_swa, s["near"]), (w.add_rope_dimension_count, s["head"]),
            (w.add_rope_dimension_count_swa, s["near"]),
        ]:
            add(head)

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
        self.numbers(
            "token_embd_norm.weight" if s["arch"] == "lfm2" else "output_norm.weight", s["hidden"]
        )
        if "per_layer" in s:
            self.matrix(
                "per_layer_token_embd.weight", s["vocabulary"], self.layers * s["per_layer"]
            )
            self.matrix("per_layer_model_proj.weight", self.layers * s["per_layer"], s["hidden"])
            self.numbers("per_layer_proj_norm.weight", s["per_layer"])
            # Frequencies of the wide heads: a quarter turns.
            turned = np.where(np.arange(s["head"] // 2) < s["head"] // 8, 1.0, 1e30)
            self.writer.add_tensor("rope_freqs.weight", turned.astype(np.float32))
        for i in range(self.layers):
            self.layer(i)
            print(f"\rlayer {i + 1} of {self.layers}", end="", file=sys.stderr)
        print(file=sys.stderr, flush=True)
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def main():
    parser = harness.options(__doc__)
    parser.add_argument("shape", choices=SHAPES, help="the published model")
    parser.add_argument("out", help="the file to write")
    parser.add_argument("--layers", type=int, help="fewer than the published model has")
    parser.add_argument("--type", choices=["q4_0", "q8_0"], default="q4_0", help="of matrices")
    args = parser.parse_args()
    shape = SHAPES[args.shape]
    Maker(shape, args.layers or shape["layers"], args.type, args.out).make()


if __name__ == "__main__":
    main()
