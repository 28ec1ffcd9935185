#!/usr/bin/env python3
"""Outcomes and costs of `polydraft.gpu`'s kernels on this GPU: job 1, `gpu-kernels`.

  kernels.py [--out FILE] [--minutes 5] [--small] [--sections check,time,filters,tune,profile,pools]

--small tries it on a CPU, through Triton's interpreter, in small shapes.
Checked before anything is timed: every kernel against the plain PyTorch form in float64, on
random, peaked, tied and disjoint rows, and a captured graph against the eager run. Then
microseconds by replays of CUDA graphs: inputs are copied until they are several times the cache,
one graph each, all replayed between two events; medians. `of_copy` is the time that reading the
logits once would take at the speed of a copy, over the time taken. Without a GPU's error a failure
is recorded and the rest runs; after one the script starts again after it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
import traceback

import torch
from common import broken
from kernel_checks import (
    CACHE,
    CUDA,
    DEVICE,
    VOCABULARIES,
    Graph,
    Record,
    check_graph,
    checks,
    gpu,
    inputs,
    launch,
)


def clock(runs, repeats=15):
    """Median microseconds of one of `runs`, which are replayed one after the other."""
    if not CUDA:
        start = time.perf_counter()
        runs[0].replay()
        return (time.perf_counter() - start) * 1e6
    for run in runs:
        run.replay()
    times = []
    for _ in range(repeats):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        for run in runs:
            run.replay()
        b.record()
        b.synchronize()
        times.append(a.elapsed_time(b) / len(runs) * 1e3)
    return statistics.median(times)


class Timed:
    """Copies of one batch's inputs, and what is timed on them."""

    def __init__(self, batch, paths, length, vocabulary, kind, dtype) -> None:
        tokens, draft, target, _, drawn = inputs("nested-priority", batch, paths, length,
                                                 vocabulary, kind, dtype)
        self.bytes = {"draft": draft.numel() * draft.element_size(),
                      "target": target.numel() * target.element_size()}
        copies = 1 if not CUDA else max(2, min(16, 4 * CACHE // sum(self.bytes.values()) + 1))
        self.sets = [tuple(x.clone() for x in (tokens, draft, target, drawn))
                     for _ in range(copies)]
        self.size = (batch, paths, length)

    def parts(self, method, **options):
        """Things to time, by name: (runs, bytes that must be read)."""
        b, k, l = self.size
        one = method in ("token", "block")
        k = 1 if one else k
        needed = gpu.uniforms_needed(method, k, l)
        made = {name: [] for name in ("draft", "draws", "target", "verify", "whole")}
        for tokens, draft, target, drawn in self.sets:
            if one:
                tokens, draft, drawn = tokens[:, :1], draft[:, :1].contiguous(), drawn[:, :1]
                target = target[:, : 1 + l].contiguous()
            tokens = tokens.contiguous()
            u = torch.rand(b, needed, device=DEVICE, dtype=torch.float64)
            of_draft, of_target = gpu.distributions(draft), gpu.distributions(target)

            def whole(tokens=tokens, draft=draft, target=target, drawn=drawn, u=u):
                rows = gpu.distributions(draft)
                drafted = gpu.draw(rows, drawn)
                return drafted, gpu.verify(method, tokens, rows, target, u, **options)

            made["draft"].append(lambda draft=draft: gpu.distributions(draft))
            made["draws"].append(lambda rows=of_draft, drawn=drawn: gpu.draw(rows, drawn))
            made["target"].append(lambda target=target: gpu.distributions(target))
            made["verify"].append(
                lambda tokens=tokens, d=of_draft, t=of_target, u=u: gpu.verify(
                    method, tokens, d, t, u, **options))
            made["whole"].append(whole)
        share = (1 / self.size[1]) if one else 1.0
        both = sum(self.bytes.values()) * share
        reads = {"draft": self.bytes["draft"] * share, "target": self.bytes["target"] * share,
                 "draws": 0, "verify": both, "whole": both}
        return {name: (runs, reads[name]) for name, runs in made.items()}

    def time(self, record, key, row, runs, read):
        """Captures, replays, records."""
        graphs = [Graph(run) for run in runs]
        us = clock(graphs)
        row = dict(row) | {"us": round(us, 2)}
        if read and "copy_gb_s" in record.data:
            row["of_copy"] = round(read / (record.data["copy_gb_s"] * 1e3) / us, 3)
        record.add(key, row)
        return us


def shapes(small):
    """(batch, paths, length, vocabulary, kind, dtype) of what is timed."""
    if small:
        return [(1, 2, 2, 64, "random", torch.bfloat16)]
    some = [(b, 4, 4, 151936, "random", torch.bfloat16) for b in (1, 8, 64)]
    for batch in (1, 64):
        some += [(batch, 4, 4, 151936, "peaked", torch.bfloat16),
                 (batch, 4, 4, 151936, "random", torch.float32)]
    return some


def named(shape):
    """A shape for the record."""
    keys = ("batch", "paths", "length", "vocabulary", "kind", "dtype")
    return dict(zip(keys, shape)) | {"dtype": str(shape[-1]).removeprefix("torch.")}


def time_shape(record, shape, methods):
    """Each part once, each method's verification and whole; PyTorch's softmax and draw beside."""
    timed = Timed(*shape)
    row = named(shape)
    for method in methods:
        for what, (runs, read) in timed.parts(method).items():
            if what in ("draft", "draws", "target") and method != "nested-priority":
                continue
            timed.time(record, "timed", row | {"method": method, "what": what}, runs, read)
    plain_runs = [lambda x=x: torch.multinomial(torch.softmax(x.flatten(0, -2).float(), -1), 1)
                  for _, x, _, _ in timed.sets]
    timed.time(record, "timed", row | {"method": "torch", "what": "softmax and draw of the draft"},
               plain_runs, timed.bytes["draft"])
    plain_runs = [lambda x=x: torch.softmax(x.flatten(0, -2).float(), -1)
                  for _, _, x, _ in timed.sets]
    timed.time(record, "timed", row | {"method": "torch", "what": "softmax of the target"},
               plain_runs, timed.bytes["target"])


def time_filters(record, shape, small):
    """Distributions of the target's rows with top-k and top-p; a sort beside."""
    timed = Timed(*shape)
    for setting in ({}, {"top_k": 50}, {"top_p": 0.9}):
        runs = [lambda x=x, s=setting: gpu.distributions(x, gpu.Sampling(**s))
                for _, _, x, _ in timed.sets]
        timed.time(record, "filters", named(shape) | {"sampling": setting}, runs,
                   timed.bytes["target"])
    if not small:
        runs = [lambda x=x: torch.sort(x.flatten(0, -2).float(), -1) for _, _, x, _ in timed.sets]
        timed.time(record, "filters", named(shape) | {"sampling": "torch.sort"}, runs,
                   timed.bytes["target"])


CHOICES = [  # where, name, values
    ("launch", "BLOCK", (4096, 2048, 8192)), ("warps", "partials", (8, 4)),
    ("launch", "SPLIT", (None, 4096, 2048, 8192)),
    ("launch", "CHUNK", (None, 128, 256, 64)),
    ("warps", "pool", (None, 4, 8, 2)), ("warps", "paths", (8, 4)), ("warps", "residual", (8, 4)),
    ("warps", "emit", (8, 16, 4)), ("option", "knots", (32, 16, 64)),
    ("option", "cells", (128, 64, 256)), ("warps", "draw", (8, 4)),
]


def tune(record, shape, end):
    """Tries one setting at a time, keeping what is faster, for nested priorities."""
    timed, options, best = Timed(*shape), {}, None
    for where, name, values in CHOICES:
        place = launch.WARPS if where == "warps" else vars(launch) if where == "launch" else options
        before = values[0]
        for value in values if best is None else values[1:]:
            if time.time() > end:
                place[name] = before
                record.add("tuned", {"stopped_by_time": True, "at": name})
                return
            place[name] = value
            try:
                runs = timed.parts("nested-priority", **options)["whole"][0]
                us = clock([Graph(run) for run in runs])
            except Exception as error:  # noqa: BLE001: too much shared memory is an answer
                record.add("tuned", {name: value, "failed": str(error)[:200]})
                torch.cuda.synchronize()
                us = float("inf")
            else:
                record.add("tuned", named(shape) | {name: value, "us": round(us, 2)})
            if best is None or us < best * 0.99:
                best, before = us, value
        place[name] = before
    settings = {k: getattr(launch, k) for k in ("BLOCK", "SPLIT", "CHUNK")}
    settings |= {"warps": dict(launch.WARPS), "us": best} | options
    record.add("best", named(shape) | settings)


POOLS = [  # tokens of a program, of a turn of its loop, warps
    (8192, 64, 4), (8192, 64, 2), (8192, 128, 4), (8192, 128, 2), (4096, 64, 2), (8192, 256, 4),
    (8192, 64, 1), (8192, 32, 1),
]  # fmt: skip


def pools(record, shape):
    """The pool kernel's three sizes together, for nested priorities."""
    timed, before = Timed(*shape), launch.pool_sizes
    for sizes in POOLS:
        launch.pool_sizes = lambda nodes, s=sizes: s
        runs = timed.parts("nested-priority")["verify"][0]
        record.add(
            "pools",
            named(shape) | {"sizes": sizes, "us": round(clock([Graph(run) for run in runs]), 2)}
        )
    launch.pool_sizes = before


def profile(record, shape):
    """Microseconds by kernel, of a whole step with nested priorities, outside a graph."""
    from torch.profiler import ProfilerActivity, profile as profiler

    timed = Timed(*shape)
    for method in ("nested-priority", "walk:priority", "specinfer", "spectr"):
        runs = timed.parts(method)["whole"][0]
        for run in runs[:2]:
            run()
        torch.cuda.synchronize()
        with profiler(activities=[ProfilerActivity.CUDA]) as found:
            for run in runs:
                run()
            torch.cuda.synchronize()
        rows = {e.key[:60]: round(e.device_time_total / len(runs), 2) for e in found.key_averages()
                if e.device_time_total > 0}
        top = dict(sorted(rows.items(), key=lambda item: -item[1])[:14])
        record.add("profile", named(shape) | {"method": method, "us_by_kernel": top})


def sections(args, record, end):
    """(name, work) in the order in which they matter: what is timed is checked first."""
    small = args.small
    yield from checks(record, small, (64,) if small else VOCABULARIES[2:3])
    for method in gpu.METHODS:
        yield f"check graph {method}", lambda m=method: check_graph(record, m, small)
    for number, shape in enumerate(shapes(small)):
        methods = gpu.METHODS if number < 3 else ("nested-priority",)
        yield f"time {named(shape)}", lambda s=shape, m=methods: time_shape(record, s, m)
    if CUDA:
        for shape in (shapes(False)[0], shapes(False)[2]):
            yield f"profile {named(shape)}", lambda s=shape: profile(record, s)
            yield f"pools {named(shape)}", lambda s=shape: pools(record, s)
    if not small:
        yield from checks(record, small, VOCABULARIES[:2] + VOCABULARIES[3:])
    for shape in shapes(small)[: 1 if small else 2]:
        yield f"filters {named(shape)}", lambda s=shape: time_filters(record, s, small)
    if CUDA:
        for part, shape in ((0.5, shapes(False)[0]), (1.0, shapes(False)[2])):
            yield (f"tune {named(shape)}",
                   lambda s=shape, f=part: tune(record, s, time.time() + (end - time.time()) * f))


def table(record):
    """Prints what matters, last."""
    data = record.data
    bad = [r for key in ("rows", "methods", "graphs") for r in data.get(key, []) if not r["ok"]]
    checked = sum(len(data.get(key, [])) for key in ("rows", "methods", "graphs"))
    failed = data.get("failed", [])
    print(f"\n{checked - len(bad)} of {checked} checks hold; {len(failed)} sections failed")
    for row in bad:
        print("  DIFFERS", row)
    for row in failed:
        print("  FAILED", row["section"], row["error"])
    print(f"{'batch':>5} {'kind':8} {'dtype':9} {'method':16} {'what':32} {'us':>9} of copy")
    for r in data.get("timed", []):
        print(f"{r['batch']:5} {r['kind']:8} {r['dtype']:9} {r['method']:16} {r['what']:32} "
              f"{r['us']:9.1f} {r.get('of_copy', '')}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=os.path.join(os.environ.get("OUT", "."), "kernels.json"))
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--sections", default="check,time,filters,profile,pools,tune")
    parser.add_argument("--end", type=float, default=0.0, help="used when it starts again")
    args = parser.parse_args()
    if not CUDA and not args.small:
        sys.exit("kernels.py: no GPU here; --small tries it on the CPU")
    record = Record(args.out, args.end > 0)
    end = args.end or time.time() + args.minutes * 60
    data = record.data
    if not data:
        data |= {"what": "kernels", "gpu": torch.cuda.get_device_name() if CUDA else "cpu"}
        data |= {"torch": torch.__version__, "command": " ".join(sys.argv), "done": []}
        if CUDA:
            a = torch.empty(2 << 30, dtype=torch.uint8, device=DEVICE).random_()
            b = torch.empty_like(a)
            graph = Graph(lambda: b.copy_(a))
            data["copy_gb_s"] = round(2 * a.numel() / clock([graph]) / 1e3)
            del a, b, graph
            torch.cuda.empty_cache()
            print(data["gpu"], "copy", data["copy_gb_s"], "GB/s")
    wanted = tuple(args.sections.split(","))
    for name, work in sections(args, record, end):
        if name in data["done"] or not name.startswith(wanted):
            continue
        if time.time() > end:
            data.setdefault("left_out", []).append(name)
            continue
        data["done"].append(name)
        record.write()
        try:
            start = time.time()
            work()
            data.setdefault("seconds", {})[name] = round(time.time() - start, 2)
        except Exception as error:  # noqa: BLE001: what failed is recorded, the rest still runs
            traceback.print_exc()
            what = f"{type(error).__name__}: {error}"[:600]
            record.add("failed", {"section": name, "error": what})
            if CUDA and broken(DEVICE):
                # Nothing works any more in this process.
                again = [sys.executable, *sys.argv, "--end", str(end)]
                os.execv(sys.executable, again)
        if CUDA:
            torch.cuda.empty_cache()
    record.write()
    table(record)


if __name__ == "__main__":
    with torch.no_grad():
        main()
