#!/usr/bin/env python3
"""Acceptance at which several i.i.d. paths pay on this GPU at T > 0: job 2, `gpu-step`.

  step.py [--out FILE] [--minutes 4.4] [--small]     --small: tiny shapes, on a CPU, interpreted

Measured: milliseconds of whole steps, each one CUDA graph without waiting for the host inside and
one small copy to the host after it (`step_graph.py` says what is in it), of its parts as graphs
of their own, and of plain decoding in the fastest form of attention found here; medians of replays
by CUDA events. Weights are random, in bfloat16, in the shapes of Llama-3.1-8B as the target and,
as the draft, of one layer of it (what EAGLE or an MTP layer costs) or of Qwen3-0.6B. The context
is 1,024 tokens and stays so: every replay does the same work.
Emulated: acceptance. The models' logits are replaced by rows of pairs of distributions with
Σ min(p, q) = 0.5, 0.7, 0.85 (`emulation.py`; the copies are in the step's time, and timed alone).
Tokens a step are then real outputs of the real verification over thousands of sequences. A
temperature would change only which pairs they are: acceptance stands for it. At T = 0 i.i.d. paths
are all the same, and one is enough.
Checked: a tree's passes and gathered caches are those of its paths alone; a replayed graph emits
what the eager step emits with the same uniforms, at every timed row; first tokens have p's
distribution, and so have second ones (drawn from p where none was accepted), by G-tests; accepted
lengths agree with the formula of token verification and with the expectation of block verification
within 3 standard errors, or in a repetition with four times the replays; with several paths, first
tokens are accepted at most as often as any verifier could.
Workers compile the kernels of all shapes first, side by side. The record is written after every
row; what fails is recorded, and the rest runs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
import traceback
import types

import torch
from common import broken, clock
from decoder import SHAPES, Decoder
from kernel_checks import CUDA, DEVICE, Graph, Oracle, Record, launch

from emulation import KINDS, Pool
from step_checks import check_tree
from step_graph import Plain, Step, padded
from step_table import table

SMALL = {"llama-3.1-8b": (64, 2, 4, 2, 16, 128, 64), "one-layer": (64, 1, 4, 2, 16, 128, 64),
         "qwen3-0.6b": (32, 2, 4, 2, 16, 64, 96), "one-layer-32k": (64, 1, 4, 2, 16, 128, 32),
         "qwen3-4b": (64, 2, 4, 2, 16, 128, 96)}
CONFIGS = ((1, 4), (4, 4), (2, 4), (1, 2), (4, 2), (2, 2), (1, 6), (4, 6), (2, 6), (8, 4))
ACCEPTANCES = (0.7, 0.5, 0.85)
TARGET, ROOM, WIDEST = "llama-3.1-8b", 80, 544


def milliseconds(run):
    """Median milliseconds of `run`."""
    return clock(run, CUDA, 12, 2)


def method_for(paths):
    """The verifier of so many paths."""
    return "block" if paths == 1 else "nested-priority"


class Bench:
    """Models, pools, the record, and what is measured with them."""

    def __init__(self, record, small, end) -> None:
        self.record, self.small, self.end = record, small, end
        self.context = 32 if small else 1024
        self.vocabulary, self.pairs = (64, 8) if small else (128256, 32)
        self.models, self.pools, self.forms, self.sized = {}, {}, {}, {}
        for row in record.data.get("plain", []):
            self.keep(row)

    def model(self, name, batch):
        """A model with a cache for `batch` sequences."""
        if name not in self.models:
            shape = (SMALL if self.small else SHAPES)[name]
            dtype = torch.bfloat16 if CUDA else torch.float32
            tokens = max(shape[-1], self.vocabulary)
            self.models[name] = Decoder(shape, self.context, ROOM, DEVICE, dtype, tokens)
        if self.sized.get(name) != batch:
            self.models[name].batch(batch)
            self.sized[name] = batch
        return self.models[name]

    def pool(self, kind, acceptance):
        """A pool of pairs, made once."""
        key = kind, acceptance
        if key not in self.pools:
            pool = Pool(kind, acceptance, self.pairs, self.vocabulary, DEVICE)
            self.pools[key] = pool
            self.record.add("pools", {
                "kind": kind, "asked": acceptance, "acceptance": round(pool.acceptance, 4),
                "mean_largest_p": round(pool.largest, 3), "pairs": pool.count,
                "first_of_2_4_8": [round(pool.first_bound(k), 4) for k in (2, 4, 8)]})
        return self.pools[key]

    def keep(self, row) -> None:
        """The fastest form of a tree's attention."""
        trees = row["nine_nodes_by_form"]
        if trees:
            self.forms[row["target"], row["batch"]] = min(trees, key=trees.get)

    def choose_forms(self, batch, target=TARGET):
        """Times plain decoding in all forms, and tree attention in two; keeps the fastest."""
        pool, model = self.pool("noise", 0.7), self.model(target, batch)
        row, times, first = {"target": target, "batch": batch}, {}, None
        triton = () if self.record.data.get("without_triton") else ("triton",)
        for form in ("gqa", "causal", "folded", *triton):
            try:
                plain = Plain(pool, batch, model, form)
                graph = Graph(plain.whole)

                def run(graph=graph, plain=plain):
                    graph.replay()
                    plain.host.copy_(plain.packed, non_blocking=True)

                times[form] = round(milliseconds(run), 4)
            except Exception as error:  # noqa: BLE001: there are other forms
                self.failed(f"plain {form} {batch}", error)
        best = min(times, key=times.get)
        row |= {"plain_ms": times[best], "attention": best, "by_form": times}
        if CUDA:
            read = model.parameters * 2 + 4 * batch * model.layers * model.kv * model.width * (
                self.context)
            row["of_copy"] = round(read / self.record.data["copy_gb_s"] / 1e6 / times[best], 3)
        step = Step(pool, batch, 2, 4, "nested-priority", (model, model), None)
        trees, nodes = {}, torch.randint(0, self.vocabulary, (batch, 9), device=DEVICE)
        one = self.model("one-layer", batch)
        found = [one.forward(form, nodes, step.places, step.target_mask).float()
                 for form in ("gqa", *triton)]
        gap = ((found[-1] - found[0]).norm() / found[0].norm()).item()
        row["gap_one_layer"] = round(gap, 6)
        if not gap < (0.03 if CUDA else 1e-4):
            self.failed(f"triton attention {batch}", ValueError(f"one layer differs: {gap}"))
        for form in ("gqa" if batch == 1 else "folded", *triton):
            try:
                graph = Graph(lambda f=form: model.forward(f, nodes, step.places,
                                                           step.target_mask))
                trees[form] = round(milliseconds(graph.replay), 4)
                first = graph.out.float() if first is None else first
                gap = ((graph.out.float() - first).norm() / first.norm()).item()
                row["gap"] = round(gap, 6)
                # Rounding to bfloat16 differs by form, over some thirty layers.
                if not gap < (0.2 if CUDA else 1e-4):
                    raise ValueError(f"attention as {form} differs: {gap}")
            except Exception as error:  # noqa: BLE001: there is another form
                trees.pop(form, None)
                self.failed(f"tree {form} {batch}", error)
        row["nine_nodes_by_form"] = trees
        self.keep(row)
        self.record.add("plain", row)

    def check_tree(self, form) -> None:
        """Checks that a tree's passes are its paths' passes."""
        pool = self.pool("noise", 0.7)
        self.record.add("trees", check_tree(pool, form, self.small))

    def failed(self, section, error) -> None:
        """A failure in the record."""
        what = f"{type(error).__name__}: {error}"[:600]
        self.record.add("failed", {"section": section, "error": what})

    def step(self, draft, batch, paths, length, target=TARGET):
        """Times one step and, where nobody did yet, its parts that do not depend on the draft."""
        pool, method = self.pool("noise", 0.7), method_for(paths)
        models = self.model(target, batch), self.model(draft, batch)
        form = self.forms.get((target, batch), "gqa" if batch == 1 else "folded")
        step = Step(pool, batch, paths, length, method, models, (form, form))
        row = {"target": target, "draft": draft, "batch": batch, "paths": paths,
               "length": length, "method": method, "attention": form}
        graph = Graph(step.whole)
        same = True
        for _ in range(2):
            graph.replay()
            emitted = step.packed.clone()
            step.again()
            same = same and torch.equal(step.packed, emitted) and int(step.packed[:, -1].max()) == 0

        def run():
            graph.replay()
            step.host.copy_(step.packed, non_blocking=True)

        row |= {"ms": round(milliseconds(run), 4), "graph_is_eager": same}
        del graph
        shared = {"target": target, "batch": batch, "paths": paths, "length": length}
        parts = [("draft_ms", step.draft)]
        known = [p for p in self.record.data.get("parts", []) if shared.items() <= p.items()]
        if not known:
            parts += [("target_ms", step.target), ("verify_ms", step.verify),
                      ("gather_ms", step.gather), ("copies_ms", step.copies)]
        for name, part in parts:
            row[name] = round(milliseconds(Graph(part).replay), 4)
        if not known:
            own = {name: row.pop(name) for name, _ in parts[1:]}
            # Without models: what drawing costs, and the other verifier.
            other = Step(pool, batch, paths, length, "walk:priority" if paths > 1 else "token")
            own["draws_ms"] = round(milliseconds(Graph(other.draft).replay), 4)
            other.target()
            own["other_verify_ms"] = round(milliseconds(Graph(other.verify).replay), 4)
            self.record.add("parts", shared | own)
        self.record.add("steps", row)

    def tokens(self, kind, acceptance, paths, length, method, batch=32, replays=160):
        """Mean tokens a step at an acceptance, and whether they are what they should be."""
        pool = self.pool(kind, acceptance)
        if self.small:
            # The interpreter would take minutes: here the plain form verifies.
            batch, replays = 96, 5
        step = Step(pool, batch, paths, length, method)
        with Oracle() if self.small else contextlib.nullcontext():
            row = self.counted(pool, step, replays, method)
        self.record.add("tokens", {
            "kind": kind, "acceptance": acceptance, "paths": paths, "length": length,
            "method": method, "mean_tokens": round(row["mean_length"] + 1, 4)} | row)

    def counted(self, pool, step, replays, method):
        """Replays and what they show; once more with four times as many where that is off."""
        graph = Graph(step.counted)
        for round_ in (1, 4):
            for buffer in (step.sums, step.wrong, step.first, step.next):
                buffer.zero_()
            for _ in range(replays * round_):
                graph.replay()
            row = self.judge(pool, step, method) | {"repeated": round_ > 1}
            if row["ok"]:
                break
        return row

    def judge(self, pool, step, method):
        """Statistics of what was counted, against what is known."""
        _, paths, length = step.size
        total, squares, some, many = step.sums.tolist()
        mean = total / many
        error = max(squares / many - mean * mean, 1e-12) ** 0.5 / many**0.5
        row = {"sequences": int(many), "mean_length": round(mean, 4),
               "error": round(error, 5), "refused": int(step.wrong), "ok": int(step.wrong) == 0}
        if method in ("token", "block"):
            wanted = pool.token_length(length), 0.0
            if method == "block":
                wanted = pool.block_length(length)
            z = (mean - wanted[0]) / (error**2 + wanted[1] ** 2) ** 0.5
            row |= {"expected": round(wanted[0], 4), "z": round(z, 2)}
            row["ok"] = row["ok"] and abs(z) < 3
        else:
            bound = pool.first_bound(paths)
            share = some / many
            deviation = max(share * (1 - share) / many, 1e-12) ** 0.5
            row |= {"first": round(share, 4), "first_bound": round(bound, 4)}
            row["ok"] = row["ok"] and share <= bound + 3 * deviation
        for name, counts in (("first_token", step.first), ("second_token", step.next)):
            g, free, value = pool.g_test(counts)
            row[name] = {"g": round(g, 1), "free": free, "p": round(value, 5)}
            row["ok"] = row["ok"] and value > 1e-3
        return row


def sections(bench, small):
    """(name, work) by importance."""
    configs = ((1, 2), (2, 2)) if small else CONFIGS

    def forms(batch, target=TARGET):
        yield f"forms {target} {batch}", lambda: bench.choose_forms(batch, target)

    def steps(draft, batch, some, target=TARGET):
        for k, l in some:
            if batch * (1 + k * l) <= WIDEST:
                yield (f"step {target} {draft} {batch} {k} {l}",
                       lambda k=k, l=l: bench.step(draft, batch, k, l, target))

    def tokens(kind, some, methods):
        for a in ACCEPTANCES[: 1 if small else 3]:
            for k, l in some:
                for m in methods(k, l):
                    yield (f"tokens {kind} {a} {k} {l} {m}",
                           lambda a=a, k=k, l=l, m=m: bench.tokens(kind, a, k, l, m))

    def main(k, l):
        return (method_for(k),)

    def others(k, l):
        return ("token",) if k == 1 else ("walk:priority",)

    first, rest = configs[:3], configs[3:]
    for form in ("gqa", "folded", "triton"):
        yield f"check tree {form}", lambda f=form: bench.check_tree(f)
    yield from forms(1)
    yield from steps("one-layer", 1, first)
    yield from tokens(KINDS[0], first, main)
    yield from steps("qwen3-0.6b", 1, first)
    yield from steps("one-layer", 1, rest)
    yield from tokens(KINDS[0], rest, main)
    yield from tokens(KINDS[0], first[:2], others)
    yield from tokens(KINDS[1], first, main)
    batches = (2,) if small else (8, 32)
    for batch in batches:
        yield from forms(batch)
        yield from steps("one-layer", batch, first if batch == 8 else configs[:6])
    yield from tokens(KINDS[2], first, main)
    yield from steps("one-layer", batches[0], rest)
    yield from tokens(KINDS[1], rest, main)
    yield from steps("qwen3-0.6b", 1, rest)
    yield from steps("one-layer-32k", 1, first)
    yield from steps("qwen3-0.6b", batches[0], first)
    # Its own vocabulary is larger than that of the emulated rows: the models' passes count.
    yield from forms(1, "qwen3-4b")
    yield from steps("qwen3-0.6b", 1, first, "qwen3-4b")


def compile_only(what) -> None:
    """Runs every kernel of a shape once, in a worker, which leaves it in Triton's cache."""
    if what == "decoder":
        for name, many in (("llama-3.1-8b", (1, 5, 9, 17, 25)), ("qwen3-0.6b", (1, 2, 4))):
            shape = list(SHAPES[name])
            shape[1], shape[5], shape[6] = 1, 2048, 64
            model = Decoder(tuple(shape), 1024, ROOM, DEVICE, torch.bfloat16)
            for batch in (1, 8, 32):
                model.batch(batch)
                for n in many if batch == 1 else (1, 9):
                    tokens = torch.zeros(batch, n, device=DEVICE, dtype=torch.int64)
                    mask = torch.ones(n, padded(1025 + n), device=DEVICE, dtype=torch.bool)
                    model.forward("triton", tokens, torch.arange(n, device=DEVICE), mask)
    else:
        k, l = map(int, what.split(","))
        rows = torch.zeros(32, 128256, device=DEVICE, dtype=torch.bfloat16)
        pool = types.SimpleNamespace(p=rows, q=rows, bins=rows.long(), count=32)
        # The pool's kernel is another one for many nodes.
        for batch in (1, 1 + launch.FEW_NODES // (k * l)):
            for method in (method_for(k), "walk:priority" if k > 1 else "token"):
                Step(pool, batch, k, l, method).counted()
    if CUDA:
        torch.cuda.synchronize()


def compile_all(record, seconds=75) -> None:
    """Workers, one a shape; what they do not finish is compiled when it is needed."""
    start = time.time()
    shapes = ["decoder"] + [f"{k},{l}" for k, l in CONFIGS]
    workers = {s: subprocess.Popen([sys.executable, __file__, "--compile", s],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
               for s in shapes}
    for shape, worker in workers.items():
        try:
            _, error = worker.communicate(timeout=max(1.0, seconds - (time.time() - start)))
        except subprocess.TimeoutExpired:
            worker.kill()
            error = "took too long"
            worker.wait()
        if worker.returncode:
            record.add("failed", {"section": f"compile {shape}", "error": error[-600:]})
    record.data["compile_seconds"] = round(time.time() - start, 1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=os.path.join(os.environ.get("OUT", "."), "step.json"))
    parser.add_argument("--minutes", type=float, default=4.4)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only", default="", help="sections that begin so, by commas")
    parser.add_argument("--compile", default="", help="used for its workers")
    parser.add_argument("--end", type=float, default=0.0, help="used when it starts again")
    args = parser.parse_args()
    if not CUDA and not args.small:
        sys.exit("step.py: no GPU here; --small tries it on the CPU")
    if args.compile:
        compile_only(args.compile)
        return
    begin = time.time()
    record, end = Record(args.out, args.end > 0), args.end or begin + args.minutes * 60
    data = record.data
    if not data:
        data |= {"what": "step", "gpu": torch.cuda.get_device_name() if CUDA else "cpu",
                 "torch": torch.__version__, "command": " ".join(sys.argv),
                 "context": 32 if args.small else 1024, "emulated": "acceptance", "done": []}
        data["kernels"] = {"block": launch.BLOCK, "warps": launch.WARPS,
                           "few_nodes": launch.FEW_NODES, "pool_few": launch.pool_sizes(1),
                           "pool_many": launch.pool_sizes(1 + launch.FEW_NODES)}
        if CUDA:
            compile_all(record)
            a = torch.empty(2 << 30, dtype=torch.uint8, device=DEVICE).random_()
            b = torch.empty_like(a)
            data["copy_gb_s"] = round(2 * a.numel() / milliseconds(lambda: b.copy_(a)) / 1e6)
            del a, b
            torch.cuda.empty_cache()
            print(data["gpu"], "copy", data["copy_gb_s"], "GB/s,", data["compile_seconds"], "s")
    bench = Bench(record, args.small, end)
    for name, work in sections(bench, args.small):
        if not name.startswith(tuple(args.only.split(","))):
            continue
        if name in data["done"]:
            continue
        if time.time() > end:
            data.setdefault("left_out", []).append(name)
            continue
        data["done"].append(name)
        try:
            start = time.time()
            work()
            data.setdefault("seconds", {})[name] = round(time.time() - start, 2)
        except Exception as error:  # noqa: BLE001: what failed is recorded, the rest still runs
            traceback.print_exc()
            bench.failed(name, error)
            if CUDA and broken(DEVICE):
                # Without a baseline there is no answer: once more without our own attention.
                if name.startswith("forms") and not data.get("without_triton"):
                    data["without_triton"] = True
                    data["done"].remove(name)
                    record.write()
                os.execv(sys.executable, [sys.executable, *sys.argv, "--end", str(end)])
        if CUDA:
            torch.cuda.empty_cache()
    data["total_seconds"] = round(time.time() - begin, 1)
    record.write()
    table(data)


if __name__ == "__main__":
    with torch.no_grad():
        main()
