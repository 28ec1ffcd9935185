#!/usr/bin/env python3
"""What `polydraft.gpu`'s kernels give and cost on this GPU: job 1, `gpu-kernels`.

  kernels.py [--out FILE] [--minutes 5] [--small] [--sections check,time,filters,tune,profile]

--small tries it on a CPU, through Triton's interpreter, in small shapes.
Checked before anything is timed: every kernel against the plain PyTorch form in float64, on
random, peaked, tied and disjoint rows, and a captured graph against the eager run. Then
microseconds by replays of CUDA graphs: inputs are copied until they are several times the cache,
one graph each, all replayed between two events; medians. `of_copy` is the time that reading the
logits once would take at the speed of a copy, over the time taken. Without a GPU's error a failure
is recorded and the rest runs; after one the script starts again behind it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import sys
import time
import traceback
from pathlib import Path

import torch

CUDA = torch.cuda.is_available()
if not CUDA:
    os.environ["TRITON_INTERPRET"] = "1"
DEVICE = "cuda" if CUDA else "cpu"
FOLDER = Path(__file__).resolve().parents[2] / "bindings/python/python/polydraft/gpu"
VOCABULARIES = (32768, 128256, 151936, 262144)
KINDS = ("random", "peaked", "tied", "disjoint")
CACHE = 50 << 20


def load_gpu():
    """`polydraft.gpu` without the compiled library that `polydraft` needs."""
    place = FOLDER / "__init__.py"
    spec = importlib.util.spec_from_file_location(
        "polydraft_gpu", place, submodule_search_locations=[str(FOLDER)])
    module = importlib.util.module_from_spec(spec)
    sys.modules["polydraft_gpu"] = module
    spec.loader.exec_module(module)
    return module


gpu = load_gpu()
import polydraft_gpu.backend as backend  # noqa: E402
import polydraft_gpu.kernels.launch as launch  # noqa: E402
import polydraft_gpu.plain as plain  # noqa: E402


class Record:
    """The record, written after each step."""

    def __init__(self, path: str, resume: bool) -> None:
        self.path = path
        self.data = json.loads(Path(path).read_text()) if resume else {}

    def write(self) -> None:
        """To the disk."""
        Path(self.path).write_text(json.dumps(self.data, indent=1) + "\n")

    def add(self, key: str, row: dict) -> None:
        """A row, printed and written."""
        self.data.setdefault(key, []).append(row)
        print(key, json.dumps(row), flush=True)
        self.write()


class Oracle:
    """Takes the plain form while it is entered."""

    def __enter__(self) -> None:
        self.before, backend.of = backend.of, lambda tensor: plain

    def __exit__(self, *_) -> None:
        backend.of = self.before


def inputs(method, batch, paths, length, vocabulary, kind, dtype, seed=1):
    """Logits, tokens drawn from the draft's, uniforms. Draft = target and noise."""
    g = torch.Generator(device=DEVICE).manual_seed(seed)
    paths = 1 if method in ("token", "block") else paths

    def normal(*shape):
        return torch.randn(*shape, generator=g, device=DEVICE, dtype=torch.float32)

    scale = {"random": 2.0, "peaked": 6.0, "tied": 1.5, "disjoint": 2.0}[kind]
    target = normal(batch, 1 + paths * length, vocabulary).mul_(scale)
    draft = torch.empty(batch, paths, length, vocabulary, device=DEVICE)
    for k in range(paths):
        draft[:, k, 0] = target[:, 0]
        draft[:, k, 1:] = target[:, 1 + k * length : (k + 1) * length]
    noise = normal(batch, 1, 1, vocabulary)
    draft += noise * (0.3 * scale)
    if kind == "tied":
        draft, target = draft.round_(), target.round_()
    elif kind == "disjoint":
        # Nearly: a sliver of what both have, so that something can be accepted.
        target[..., : vocabulary // 2 - 50] = -torch.inf
        draft[..., vocabulary // 2 + 50 :] = -torch.inf
    draft, target = draft.to(dtype), target.to(dtype)
    u = torch.rand(batch, gpu.uniforms_needed(method, paths, length), generator=g, device=DEVICE,
                   dtype=torch.float64)
    drawn = torch.rand(batch, paths, length, 1, generator=g, device=DEVICE, dtype=torch.float64)
    with Oracle():
        tokens = gpu.draw(gpu.distributions(draft), drawn)[..., 0]
    return tokens, draft, target, u, drawn


def far(a, b, absolute, relative):
    """How far apart, in units of what is allowed."""
    a, b = a.double(), b.double()
    gap = (a - b).abs() / (absolute + relative * b.abs())
    return gap.nan_to_num(nan=1e9).max().item() if gap.numel() else 0.0


def check_rows(record, vocabulary, kind, small):
    """Distributions, filters and draws against float64."""
    tokens, draft, _, _, drawn = inputs("specinfer", 2, 2, 2, vocabulary, kind, torch.float32)
    settings = [{}, {"temperature": 0.7}, {"temperature": 0.0}, {"top_k": 50},
                {"top_p": 0.9}, {"temperature": 0.8, "top_k": 1000, "top_p": 0.95, "min_p": 0.02}]
    for setting in settings:
        made = gpu.distributions(draft, gpu.Sampling(**setting))
        with Oracle():
            own = gpu.distributions(draft, gpu.Sampling(**setting), block=made.block)
        wanted = own.probabilities()
        greedy = setting.get("temperature") == 0.0
        x = draft.double() / (setting.get("temperature") or 1.0)
        if not any(gpu.Sampling(**setting).filters) and not greedy:
            assert far(wanted, torch.softmax(x, -1), 1e-12, 1e-4) < 1, "the oracle's softmax"
        row = {"vocabulary": vocabulary, "kind": kind, "sampling": setting}
        row["totals"] = far(made.totals, own.totals, 0.0, 3e-6)
        row["masses"] = far(made.masses, own.masses, 1e-6, 1e-4)
        row["cuts"] = int((made.cuts != own.cuts).sum() + (made.lasts != own.lasts).sum())
        got = gpu.draw(made, drawn)
        with Oracle():
            row["draws_differ"] = int((gpu.draw(own, drawn) != got).sum())
        # Rounding may move top-p's cut by a token, and a draw to a neighbour; never more.
        wrong = row["totals"] > 1 or row["masses"] > 1 or row["draws_differ"] > 1
        allowed = 4 if setting.get("top_p") else 0
        row["ok"] = not (wrong or row["cuts"] > allowed)
        record.add("rows", row)
        if small:
            return


def check_method(record, method, vocabulary, kind, small):
    """A verifier against the plain form: trace and decisions."""
    batch, paths, length = (2, 2, 2) if small else (4, 4, 4)
    if vocabulary > 200000:
        batch = 2
    tokens, draft, target, u, _ = inputs(method, batch, paths, length, vocabulary, kind,
                                         torch.float32)

    def run():
        return gpu.verify(method, tokens, draft, target, u, trace=True)

    found = run()
    with Oracle():
        own = run()
    row = {"method": method, "vocabulary": vocabulary, "kind": kind}
    same = (found.path == own.path) & (found.length == own.length) & (found.next == own.next)
    row["decided_otherwise"] = int((~same).sum())
    row["mean_length"] = own.length.double().mean().item()
    row["status"] = int(found.status.abs().sum() + own.status.abs().sum())
    chosen = found.path.long().clamp_min(0)
    pick = torch.arange(batch, device=DEVICE)
    # A selection that hardly ever happens has a ratio of little meaning: compare what coins see.
    row["ratios"] = far(found.trace.ratios[pick, chosen].clamp_max(1.0),
                        own.trace.ratios[pick, chosen].clamp_max(1.0), 2e-5, 2e-4)
    if method in ("block", "nested-priority"):
        row["left"] = far(found.trace.left, own.trace.left, 2e-5, 0)
        row["chances"] = far(found.trace.chances, own.trace.chances, 2e-4, 0)
    if found.trace.shares is not None:
        row["shares"] = far(found.trace.shares, own.trace.shares, 2e-5, 0)
    values = [row.get(name, 0.0) for name in ("ratios", "left", "chances", "shares")]
    # A decision on the edge of a uniform may fall the other way; not twice.
    row["ok"] = max(values) < 1 and row["status"] == 0 and row["decided_otherwise"] <= 1
    record.add("methods", row)


class Graph:
    """A captured run; on a CPU the run itself."""

    def __init__(self, run) -> None:
        self.run, self.out, self.graph = run, None, None
        if not CUDA:
            return
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            run()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = run()

    def replay(self) -> None:
        """Once more."""
        if self.graph is None:
            self.out = self.run()
        else:
            self.graph.replay()


def check_graph(record, method, small):
    """A replayed graph gives what the eager run gives, also after its inputs were overwritten."""
    shape = (2, 2, 2, 64) if small else (2, 4, 4, 151936)
    first, second = (inputs(method, *shape, "random", torch.bfloat16, seed) for seed in (3, 4))
    tokens, draft, target, u, _ = (x.clone() for x in first)
    graph = Graph(lambda: gpu.verify(method, tokens, draft, target, u))
    same = []
    for given in (first, second):
        for into, value in zip((tokens, draft, target, u), given):
            into.copy_(value)
        graph.replay()
        eager = gpu.verify(method, *given[:4])
        same += [torch.equal(graph.out.tokens, eager.tokens)]
    record.add("graphs", {"method": method, "ok": all(same)})


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
        """What there is to time, by name: (runs, bytes that must be read)."""
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
                return gpu.draw(rows, drawn), gpu.verify(method, tokens, rows, target, u, **options)

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
    some += [(1, 4, 4, 151936, "peaked", torch.bfloat16), (1, 4, 4, 151936, "random", torch.float32),
             (64, 4, 4, 151936, "peaked", torch.bfloat16), (64, 4, 4, 151936, "random", torch.float32)]
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
    ("launch", "SPLIT", (4096, 2048, 8192)), ("launch", "CHUNK", (256, 128, 512)),
    ("warps", "pool", (4, 8)), ("warps", "residual", (8, 4)), ("warps", "emit", (8, 16, 4)),
    ("option", "knots", (64, 32, 16)), ("warps", "paths", (8, 4, 16)),
    ("option", "cells", (256, 128, 64)), ("warps", "draw", (8, 4)),
]


def tune(record, shape, end):
    """One setting at a time from the defaults, keeping what is faster, for nested priorities."""
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
                graphs = [Graph(run) for run in timed.parts("nested-priority", **options)["whole"][0]]
                us = clock(graphs)
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
    record.add("best", named(shape) | settings | {"warps": dict(launch.WARPS)} | options | {"us": best})


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
    """(name, work) in the order in which they matter."""
    small = args.small
    vocabularies = (64,) if small else VOCABULARIES
    every = [(m, v, k) for v in vocabularies for m in gpu.METHODS for k in KINDS]
    for vocabulary in vocabularies:
        for kind in KINDS:
            yield f"check rows {vocabulary} {kind}", lambda v=vocabulary, k=kind: check_rows(record, v, k, small)
    for method, vocabulary, kind in every:
        if small and kind not in ("random", "disjoint"):
            continue
        yield (f"check {method} {vocabulary} {kind}",
               lambda m=method, v=vocabulary, k=kind: check_method(record, m, v, k, small))
    for method in gpu.METHODS:
        yield f"check graph {method}", lambda m=method: check_graph(record, m, small)
    for number, shape in enumerate(shapes(small)):
        methods = gpu.METHODS if number < 3 else ("nested-priority",)
        yield f"time {named(shape)}", lambda s=shape, m=methods: time_shape(record, s, m)
    for shape in shapes(small)[: 1 if small else 2]:
        yield f"filters {named(shape)}", lambda s=shape: time_filters(record, s, small)
    if CUDA:
        for shape in (shapes(False)[0], shapes(False)[2]):
            yield f"profile {named(shape)}", lambda s=shape: profile(record, s)
        for number, shape in enumerate((shapes(False)[0], shapes(False)[2])):
            stop = time.time() + (end - time.time()) * (0.6 if number == 0 else 1.0)
            yield f"tune {named(shape)}", lambda s=shape, e=stop: tune(record, s, e)


def table(record):
    """What matters, last."""
    data = record.data
    bad = [r for key in ("rows", "methods", "graphs") for r in data.get(key, []) if not r["ok"]]
    checked = sum(len(data.get(key, [])) for key in ("rows", "methods", "graphs"))
    print(f"\n{checked - len(bad)} of {checked} checks hold; {len(data.get('failed', []))} sections failed")
    for row in bad:
        print("  DIFFERS", row)
    for row in data.get("failed", []):
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
    parser.add_argument("--sections", default="check,time,filters,profile,tune")
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
            record.add("failed", {"section": name, "error": f"{type(error).__name__}: {error}"[:600]})
            if CUDA and broken():
                # Nothing works any more in this process.
                again = [sys.executable, *sys.argv, "--end", str(end)]
                os.execv(sys.executable, again)
        if CUDA:
            torch.cuda.empty_cache()
    record.write()
    table(record)


def broken() -> bool:
    """Whether the device's context is lost."""
    try:
        torch.cuda.synchronize()
        torch.ones(1, device=DEVICE).sum().item()
    except RuntimeError:
        return True
    return False


if __name__ == "__main__":
    with torch.no_grad():
        main()
