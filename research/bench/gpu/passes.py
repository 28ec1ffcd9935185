#!/usr/bin/env python3
"""Costs of forward passes on this GPU, by tokens per pass and batch size, with CUDA graphs;
and what sampling costs in plain PyTorch.

  passes.py [--out FILE] [--minutes 5] [--small]    --small: tiny shapes, on any device

Weights are random (a pass costs the same), in bfloat16; the context is 1,024 tokens; every node
of a random tree sees the context and its ancestors. Attention is timed in three forms, and a
row's `ms` is the least of them:
  gqa       scaled_dot_product_attention with enable_gqa
  folded    the same, a group's query heads as further rows of its KV head: keys are read once
  products  two batched matrix products and a softmax over folded rows
Checked before timing: a captured pass gives what the eager one gave, and the three forms agree.
Times are medians of 20 replays, in milliseconds, by CUDA events.
"""
import argparse
import json
import os
import sys
import time

import torch
from common import clock
from decoder import FORMS, SHAPES, Decoder

TIMED = ("llama-3.1-8b", "qwen3-4b", "qwen3-0.6b")
SMALL = {"small": (64, 2, 4, 2, 16, 128, 512)}
def tree(n, context, seed=3):
    """Ancestor mask and positions of a random tree of n nodes after `context` tokens."""
    r = torch.Generator().manual_seed(seed)
    parent = [-1] + [int(torch.randint(-1, i, (1,), generator=r)) for i in range(1, n)]
    mask = torch.zeros(n, context + n, dtype=torch.bool)
    mask[:, :context] = True
    depth = []
    for i, p in enumerate(parent):
        if p >= 0:
            mask[i, context:] |= mask[p, context:]
        mask[i, context + i] = True
        depth.append(0 if p < 0 else depth[p] + 1)
    return mask, torch.tensor(depth) + context


def difference(a, b):
    return ((a - b).float().norm() / b.float().norm()).item()


def captured(model, form, inputs, first, cuda):
    """A graph of the pass, checked; and the logits of the eager pass."""
    want = model.forward(form, *inputs)
    # Rounding to bfloat16 differs by form, over some thirty layers.
    bound = 1e-1 if cuda else 1e-4
    if first is not None and not difference(want, first) < bound:
        sys.exit(f"attention as {form} differs: {difference(want, first)}")
    if not cuda:
        return (lambda: model.forward(form, *inputs)), want
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            model.forward(form, *inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = model.forward(form, *inputs)
    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    error = difference(out, want)
    if not error < 1e-2:
        sys.exit(f"the captured pass differs from the eager one: {error}")
    return graph.replay, want


def passes(record, shapes, context, device, dtype, end):
    cuda, rows = device == "cuda", record["passes"]
    for label, shape in shapes:
        model = Decoder(shape, context, 64, device, dtype)
        for batch in (1, 8, 32):
            model.batch(batch)
            one = None
            for n in (1, 2, 4, 8, 16, 32, 64):
                if batch * n > 512:
                    continue
                if time.time() > end:
                    record["stopped_by_time"] = True
                    return
                mask, positions = tree(n, context)
                tokens = torch.randint(0, model.vocab, (batch, n), device=device)
                inputs = tokens, positions.to(device), mask.to(device)
                first, times = None, {}
                for form in FORMS:
                    run, logits = captured(model, form, inputs, first, cuda)
                    first = logits if first is None else first
                    times[form] = round(clock(run, cuda, 20, 3), 4)
                    del run, logits
                best = min(times, key=times.get)
                one = one or times[best]
                row = {"shape": label, "batch": batch, "nodes": n, "ms": times[best]}
                row |= {"relative": round(times[best] / one, 3), "attention": best}
                if cuda:
                    bytes_read = model.parameters * 2
                    bytes_read += 4 * batch * model.layers * model.kv * model.width * context
                    floor = bytes_read / record["copy_gb_s"] / 1e6
                    row["of_floor"] = round(floor / times[best], 3)
                rows.append(row | {"by_form": times})
                print(rows[-1], flush=True)
        del model
        if cuda:
            torch.cuda.empty_cache()


def sampling(record, vocabularies, device):
    cuda = device == "cuda"
    for vocab in vocabularies:
        for n in (1, 16, 64):
            logits = torch.randn(n, vocab, device=device).mul_(3)
            host = torch.empty(n, vocab, pin_memory=cuda)
            for what, run in {
                "softmax": lambda: torch.softmax(logits, -1),
                "softmax and one draw": lambda: torch.multinomial(torch.softmax(logits, -1), 1),
                "sort": lambda: torch.sort(logits, -1),
                "top 1024": lambda: torch.topk(logits, min(1024, vocab)),
                "rows to the host": lambda: host.copy_(logits),
            }.items():
                row = {"what": what, "vocabulary": vocab, "rows": n}
                record["sampling"].append(row | {"ms": round(clock(run, cuda, 20, 3), 4)})
                print(record["sampling"][-1], flush=True)


def main():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--out", default=os.path.join(os.environ.get("OUT", "."), "passes.json"))
    p.add_argument("--minutes", type=float, default=5, help="of passes; sampling comes after")
    p.add_argument("--small", action="store_true")
    args = p.parse_args()
    cuda = torch.cuda.is_available()
    device, dtype = ("cuda", torch.bfloat16) if cuda else ("cpu", torch.float32)
    name = torch.cuda.get_device_name() if cuda else "cpu"
    context = 64 if args.small else 1024
    record = {"what": "passes", "gpu": name, "torch": torch.__version__, "context": context}
    record |= {"command": " ".join(sys.argv), "passes": [], "sampling": []}
    if cuda:
        a = torch.empty(2 << 30, dtype=torch.uint8, device=device).random_()
        b = torch.empty_like(a)
        ms = clock(lambda: b.copy_(a), cuda, 20, 3)
        record["copy_gb_s"] = round(2 * a.numel() / ms / 1e6)
        del a, b
        torch.cuda.empty_cache()
        print(name, "copy", record["copy_gb_s"], "GB/s")
    with torch.no_grad():
        end = time.time() + args.minutes * 60
        shapes = SMALL if args.small else {k: SHAPES[k] for k in TIMED}
        passes(record, shapes.items(), context, device, dtype, end)
        sampling(record, (512,) if args.small else (32768, 128256, 151936, 262144), device)
    with open(args.out, "w") as f:
        json.dump(record, f, indent=1)
        f.write("\n")


main()
