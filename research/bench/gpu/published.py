"""Speculation on one GPU by `polydraft.transformers`: whether it is right, and what it gives.

    PYTHONPATH=bindings/python/python:research/bench/gpu python research/bench/gpu/published.py \
        --record OUT/published.json --model SmolLM2-135M-Instruct.Q4_1.gguf \
        --head demo/smollm2-head --prompts prompts.json [--small]

Prompts are token ids by kind of text: {"chat": [[..], ..], ..}. Parts, each of which can be left
out:
  checks  tiny random models of many families: greedy outputs equal to transformers' own, whether
          steps are captured, and whether sampled tokens come as often as the model says
  model   the published model in bf16: tokens per second of transformers' own loops, of plain
          decoding in a CUDA graph, and with the draft head, by paths, temperature and batch size
  compiled  transformers' loop with a static cache, compiled, which takes a minute
  large   random weights in the shape of an 8B model: milliseconds of a step and of its parts
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from published_tables import table
from small_model import halves

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bindings/python/tests"))
import polydraft.transformers as inside  # noqa: E402
from polydraft import gpu  # noqa: E402
from polydraft.transformers.static import takes_static  # noqa: E402
from polydraft.transformers.static.loop import Loop, Replayed  # noqa: E402
from polydraft.transformers.static.model import StaticModel  # noqa: E402
from polydraft.transformers.static.step import Form  # noqa: E402
from static_families import FAMILIES, tiny_model  # noqa: E402

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")


def waited():
    if CUDA:
        torch.cuda.synchronize()
    return time.perf_counter()


class Plain:
    """Plain decoding over the same cache of slots: one token's pass and a draw in a CUDA graph."""

    def __init__(self, model, batch, size, sampling):
        self.static, self.sampling = StaticModel(model, batch), sampling
        self.static.cache.resize(size, DEVICE)
        self.context = torch.zeros(batch, dtype=torch.long, device=DEVICE)
        self.last = torch.zeros(batch, 1, dtype=torch.long, device=DEVICE)
        self.coins = torch.zeros(batch, 1, 1, dtype=torch.float64, device=DEVICE)
        self.sees = self.static.table(torch.ones(1, 1, dtype=torch.bool))
        self.step = Replayed(self.run, DEVICE)

    def run(self):
        place = self.context[:, None]
        logits = self.static.forward(self.last, place, place, self.sees, self.context, 1)
        self.last.copy_(
            gpu.draw(gpu.distributions(logits.contiguous(), self.sampling), self.coins)[:, :, 0]
        )
        self.context.add_(1)

    @torch.no_grad()
    def decode(self, prompts, count):
        """Seconds of `count` tokens of each prompt, all of one length, and what they are."""
        for _ in self.static.prefill_chunks(prompts[:, :-1]):
            pass
        self.context.fill_(prompts.shape[1] - 1)
        self.last.copy_(prompts[:, -1:])
        found, host = [], torch.zeros(self.last.shape, dtype=torch.long, pin_memory=CUDA)
        start = waited()
        for _ in range(count):
            self.coins.uniform_()
            self.step()
            host.copy_(self.last)
            found.append(host[:, 0].tolist())
        return waited() - start, np.array(found).T


def calibration(model, texts, begin):
    """Distance of the tokens of texts [rows, length] from what the model says of them.

    A sum of squares that is χ² in the limit, and its degrees of freedom, over the ranks of tokens
    by the token before (of 4 kinds).
    """
    with torch.no_grad():
        logits = torch.cat(
            [model(part).logits.float() for part in texts.split(8)]
        )[:, begin - 1 : -1]
    p = logits.double().softmax(-1)
    order = p.argsort(-1, descending=True)
    bins = [0, 1, 2, 4, 8, 32, 128, p.shape[-1]]
    rank = torch.empty_like(order).scatter_(
        -1, order, torch.arange(p.shape[-1], device=p.device).expand_as(order)
    )
    after = texts[:, begin:]
    kind = texts[:, begin - 1 : -1] % 4
    total, freedom = 0.0, 0
    for k in range(4):
        for low, high in zip(bins[:-1], bins[1:]):
            inside_ = (rank >= low) & (rank < high)
            mass = (p * inside_).sum(-1)[kind == k]
            hit = inside_.gather(-1, after[..., None])[..., 0].double()[kind == k]
            spread = (mass * (1 - mass)).sum().item()
            if high > low and low < p.shape[-1] and spread > 10:
                total += (hit - mass).sum().item() ** 2 / spread
                freedom += 1
    return total, freedom


def checks(args, record):
    torch.backends.cuda.matmul.allow_tf32 = False
    found = record.setdefault("checks", [])
    count, rows = (12, 4) if args.small else (60, 64)
    for family in FAMILIES:
        start = time.perf_counter()
        model = tiny_model(family).to(DEVICE)
        row = {"family": family, "takes": takes_static(model)}
        ids = torch.randint(64, (2, 15), generator=torch.Generator().manual_seed(1)).to(DEVICE)
        plain, told = model.generate(ids, do_sample=False, max_new_tokens=count), {}
        shape = dict(
            custom_generate=inside.generate, draft_model=model, paths=3, depth=3, loop="device",
            statistics=told
        )
        try:
            ours = model.generate(ids, do_sample=False, max_new_tokens=count, **shape)
            row |= {"same": ours.tolist() == plain.tolist(), "captured": told["captured"]}
            row["accepted"] = told["accepted"] / told["drafted"] * 3
        except Exception as error:  # noqa: BLE001
            row["error"] = str(error)[:300]
        row["seconds"] = time.perf_counter() - start
        found.append(row)
        print(row, flush=True)
    for method, paths, depth in (
        ("nested-priority", 4, 3), ("walk:priority", 3, 2), ("specinfer", 3, 2), ("block", 1, 4)
    ):
        model = tiny_model("Qwen3").to(DEVICE)
        draft = tiny_model("Qwen3", num_hidden_layers=1).to(DEVICE)
        draft.load_state_dict(
            {k: v for k, v in model.state_dict().items() if k in draft.state_dict()}
        )
        ids, told = torch.tensor([[1, 2, 3]] * rows, device=DEVICE), {}
        texts = model.generate(
            ids, do_sample=True, top_k=0, max_new_tokens=4 * count, custom_generate=inside.generate,
            draft_model=draft, paths=paths,
            depth=depth, verifier=method, loop="device", statistics=told, seed=5)
        total, freedom = calibration(model, texts, 3)
        z = (total - freedom) / math.sqrt(2 * max(freedom, 1))
        found.append({"method": method, "chi2": total, "freedom": freedom, "z": z,
                      "tokens": told["tokens"],
                      "efficiency": told["block_efficiency"], "captured": told["captured"]})
        print(found[-1], flush=True)


def published(path):
    """A Llama of transformers with the weights of a GGUF file, in bf16."""
    reader = gguf.GGUFReader(path)
    field = {
        name: value.contents() for name, value in reader.fields.items() if name.startswith("llama.")
    }
    tensors = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in reader.tensors}
    heads, shared = field["llama.attention.head_count"], field["llama.attention.head_count_kv"]
    config = transformers.LlamaConfig(
        vocab_size=tensors["token_embd.weight"].shape[0],
        hidden_size=field["llama.embedding_length"],
        intermediate_size=field["llama.feed_forward_length"],
        num_hidden_layers=field["llama.block_count"],
        num_attention_heads=heads, num_key_value_heads=shared,
        rope_theta=field["llama.rope.freq_base"],
        rms_norm_eps=field["llama.attention.layer_norm_rms_epsilon"], max_position_embeddings=8192,
        tie_word_embeddings="output.weight" not in tensors, bos_token_id=None, eos_token_id=None,
        pad_token_id=0)
    names = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
             "attn_v": "self_attn.v_proj",
             "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj",
             "ffn_up": "mlp.up_proj",
             "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm",
             "ffn_norm": "post_attention_layernorm"}
    state = {}
    for name, data in tensors.items():
        part = name.split(".")
        if part[0] == "blk":
            if part[2] in ("attn_q", "attn_k"):
                data = halves(data, heads if part[2] == "attn_q" else shared)
            name = f"model.layers.{part[1]}.{names[part[2]]}.weight"
        else:
            name = {"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight",
                    "output": "lm_head.weight"}[part[0]]
        state[name] = torch.from_numpy(np.array(data, dtype=np.float32)).bfloat16()
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    model = model.to(torch.bfloat16).to_empty(device="cpu")
    model.load_state_dict(state)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    model.tie_weights()
    model.generation_config = transformers.GenerationConfig(pad_token_id=0)
    return model.to(DEVICE, torch.bfloat16 if CUDA else torch.float32).eval()


def small_published(args, record):
    """Times of the published model.

    In each cell all prompts one after the other (batch size 1) or at once.
    """
    model = published(args.model)
    kinds = json.loads(args.prompts.read_text())
    if args.small:
        kinds = {kind: prompts[:1] for kind, prompts in kinds.items()}
    count, repeats = (8, 0) if args.small else (128, 2)
    found = record.setdefault("model", [])
    record["takes"] = takes_static(model)

    def note(**row):
        found.append(row)
        print(row, flush=True)

    def speed(run, prompts):
        """Median tokens per second and statistics, the first run not counted."""
        rates, told = [], {}
        for number in range(repeats + 1):
            seconds = tokens = calls = 0
            for part in prompts:
                told = {}
                start = waited()
                wrote = run(part, told, number)
                seconds += waited() - start
                tokens += wrote
                calls += told.get("target_calls", 0)
            rates.append(tokens / seconds)
        told["block_efficiency"] = tokens / calls if calls else None
        return statistics.median(rates[1:] or rates), told

    def ours(shape, temperature):
        method, paths, depth = shape

        def run(part, told, number):
            options = dict(
                do_sample=True, temperature=temperature, top_k=0
            ) if temperature else dict(do_sample=False)
            out = model.generate(
                part, max_new_tokens=count, custom_generate=inside.generate, draft_model=args.head,
                verifier=method, paths=paths,
                depth=depth, loop="device", statistics=told, seed=number, **options)
            return out.numel() - part.numel()

        return run

    def theirs(temperature, **more):
        def run(part, told, number):
            options = dict(
                do_sample=True, temperature=temperature, top_k=0
            ) if temperature else dict(do_sample=False)
            out = model.generate(
                part, max_new_tokens=count, min_new_tokens=count, **options, **more
            )
            return out.numel() - part.numel()

        return run

    shapes = [
        ("block", 1, 3), ("block", 1, 5), ("nested-priority", 2, 4), ("nested-priority", 4, 4),
        ("nested-priority", 8, 5)
    ]
    for kind, prompts in kinds.items():
        alone = [torch.tensor([prompt], device=DEVICE) for prompt in prompts]
        short = min(map(len, prompts))
        batch = [
            torch.tensor(
                [prompt[-short:] for prompt in prompts] * (8 // len(prompts) + 1), device=DEVICE
            )[:8]
        ]
        for size, parts in ((1, alone), (8, batch)):
            for temperature in (0.0, 1.0):
                cell = dict(kind=kind, batch=size, temperature=temperature)
                plain = Plain(model, size, 1024, gpu.Sampling(temperature=temperature))
                rates = []
                for _ in range(repeats + 1):
                    taken = [plain.decode(part, count)[0] for part in parts]
                    rates.append(size * count * len(parts) / sum(taken))
                note(**cell, how="plain, CUDA graph", rate=statistics.median(rates[1:] or rates))
                for shape in shapes:
                    rate, told = speed(ours(shape, temperature), parts)
                    note(**cell, how=f"{shape[0]} {shape[1]}x{shape[2]}", rate=rate,
                         efficiency=told["block_efficiency"], captured=told["captured"])
                if kind == "chat":
                    note(
                        **cell, how="transformers, as it is",
                        rate=speed(theirs(temperature), parts[:2])[0]
                    )
    # Are sampled tokens as likely as the model says?
    parts = torch.tensor(
        [prompt[-8:] for prompts in kinds.values() for prompt in prompts], device=DEVICE
    ).repeat(4, 1)
    torch.manual_seed(3)
    texts = model.generate(parts, do_sample=True, top_k=0, max_new_tokens=4 * count,
                           custom_generate=inside.generate, draft_model=args.head,
                           paths=4, depth=4, loop="device")
    total, freedom = calibration(model, texts, parts.shape[1])
    note(
        how="calibration", chi2=total, freedom=freedom,
        z=(total - freedom) / math.sqrt(2 * freedom), tokens=texts.numel() - parts.numel()
    )


def compiled(args, record):
    """transformers' own fastest loop: a static cache and its compiler."""
    model, rates = published(args.model), []
    part = torch.tensor([json.loads(args.prompts.read_text())["chat"][0]], device=DEVICE)
    begin, count = time.perf_counter(), 8 if args.small else 128
    for _ in range(3):
        start = waited()
        model.generate(
            part, do_sample=False, max_new_tokens=count, min_new_tokens=count,
            cache_implementation="static"
        )
        rates.append(count / (waited() - start))
    record.setdefault("model", []).append({
        "kind": "chat", "batch": 1, "temperature": 0.0,
        "how": "transformers, static cache, compiled", "rate": rates[-1],
        "seconds": time.perf_counter() - begin})
    print(record["model"][-1], flush=True)


def random_model(layers, small):
    h, heads, kv, ff, v = (64, 4, 2, 128, 512) if small else (4096, 32, 8, 14336, 128256)
    config = transformers.LlamaConfig(
        vocab_size=v, hidden_size=h, intermediate_size=ff, num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv, max_position_embeddings=4096, bos_token_id=None, eos_token_id=None,
        pad_token_id=None)
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model = model.to_empty(device=DEVICE)
    for parameter in model.parameters():
        parameter.data.normal_(
            0, parameter.shape[-1] ** -0.5
        ) if parameter.dim() > 1 else parameter.data.fill_(1)
    model.model.rotary_emb = type(model.model.rotary_emb)(config).to(DEVICE)
    return model.eval()


@torch.no_grad()
def large(args, record):
    """Milliseconds of a step, of its passes, and of plain decoding, a context of 900 tokens."""
    target, draft = random_model(2 if args.small else 32, args.small), random_model(1, args.small)
    found, context = record.setdefault("large", []), 40 if args.small else 900
    record["weights_gib"] = sum(p.numel() * p.element_size() for p in target.parameters()) / 2**30

    def clocked(run, restart, count=8 if args.small else 60):
        replayed, times = Replayed(run, DEVICE), []
        for number in range(count + 4):
            restart()
            start = waited()
            replayed()
            if number >= 4:
                times.append(waited() - start)
        return 1e3 * statistics.median(times), replayed.graph is not None

    for batch in (1, 8):
        for how in ("plain", "plain, transformers' sdpa"):
            plain = Plain(target, batch, 1024, gpu.Sampling())
            if how != "plain":
                plain.static.folding.configs = []
            milliseconds, captured = clocked(
                plain.run, lambda plain=plain: plain.context.fill_(context)
            )
            found.append({"batch": batch, "how": how, "whole": milliseconds, "captured": captured})
            print(found[-1], flush=True)
            del plain
        for paths, depth in ((1, 4), (2, 4), (4, 4), (8, 4)):
            form = Form(
                "block" if paths == 1 else "nested-priority", paths, depth, gpu.Sampling(),
                gpu.Sampling(), None, None
            )
            loop = Loop(target, draft, form, batch)
            step = loop.step
            step.target.cache.resize(1024, DEVICE)
            step.drafter.resize(1024)

            def restart(step=step):
                step.context.fill_(context)
                step.uniforms.uniform_()

            nodes = torch.zeros(batch, 1 + paths * depth, dtype=torch.long, device=DEVICE)
            start_ = torch.full((batch, 1), context, device=DEVICE)

            def passes(step=step, nodes=nodes, start_=start_):
                step.target.forward(
                    nodes, start_ + step.nodes, start_ + step.depths, step.sees, step.context,
                    nodes.shape[1]
                )

            def drafting(step=step, paths=paths, depth=depth):
                for level in range(depth):
                    step.drafter.level(
                        level, nodes[:, 1 : 1 + paths] if level else step.last, step.context
                    )

            row = {"batch": batch, "how": f"{form.method} {paths}x{depth}"}
            row["whole"], row["captured"] = clocked(step.run, restart)
            row["target"], row["draft"] = clocked(passes, restart)[0], clocked(drafting, restart)[0]
            found.append(row)
            print(row, flush=True)


def main():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--record", type=Path, required=True)
    p.add_argument("--model", type=Path)
    p.add_argument("--head", type=Path)
    p.add_argument("--prompts", type=Path)
    p.add_argument("--parts", nargs="+", default=["checks", "model", "large"])
    p.add_argument("--small", action="store_true", help="a trial on a CPU")
    args = p.parse_args()
    record = {"what": "published", "torch": torch.__version__,
              "transformers": transformers.__version__,
              "gpu": torch.cuda.get_device_name() if CUDA else "none"}
    start = time.perf_counter()
    for part in args.parts:
        try:
            {
                "checks": checks, "model": small_published, "compiled": compiled, "large": large
            }[part](args, record)
        except Exception as error:  # noqa: BLE001
            import traceback

            traceback.print_exc()
            record.setdefault("errors", []).append(f"{part}: {error}"[:500])
        record["seconds"] = time.perf_counter() - start
        args.record.write_text(json.dumps(record, indent=1) + "\n")
    print(table(record))


if __name__ == "__main__":
    main()
