"""Checks of `kernels.py`: every kernel against the plain PyTorch form in float64.

No script of its own: it holds the inputs, the record and the checks.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from common import load_gpu

CUDA = torch.cuda.is_available()
if not CUDA:
    os.environ.setdefault("TRITON_INTERPRET", "1")
DEVICE = "cuda" if CUDA else "cpu"
VOCABULARIES = (32768, 128256, 151936, 262144)
KINDS = ("random", "peaked", "tied", "disjoint")
CACHE = 50 << 20

gpu = load_gpu()
import polydraft_gpu.backend as backend  # noqa: E402
import polydraft_gpu.kernels.launch as launch  # noqa: E402
import polydraft_gpu.plain as plain  # noqa: E402
import polydraft_gpu.plain_shares as plain_shares  # noqa: E402
import polydraft_gpu.plain_verify as plain_verify  # noqa: E402
import polydraft_gpu.verification as verification  # noqa: E402
from polydraft_gpu.methods import Method  # noqa: E402


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
    """Distance in units of what is allowed."""
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
        row["totals"] = far(made.totals, own.totals, 0.0, 1e-5)
        row["masses"] = far(made.masses, own.masses, 1e-6, 1e-4)
        row["cuts"] = int((made.cuts != own.cuts).sum() + (made.lasts != own.lasts).sum())
        got = gpu.draw(made, drawn)
        with Oracle():
            row["draws_differ"] = int((gpu.draw(own, drawn) != got).sum())
        # Rounding may move top-p's cut by a token, and a draw to a neighbour; never more.
        wrong = row["totals"] > 1 or row["masses"] > 1 or row["draws_differ"] > 2
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
    if method == "block":
        row["left"] = far(found.trace.left, own.trace.left, 2e-5, 0)
        row["chances"] = far(found.trace.chances, own.trace.chances, 2e-4, 0)
    # A decision on the edge of a uniform may fall the other way; not twice.
    allowed = 1
    if method == "nested-priority":
        # Where a place is next to tight, rounding decides whether shares are spread across it:
        # other shares, as valid. What is checked is that all else follows from the kernel's own.
        row |= follows(found, tokens, draft, target, u)
        del row["ratios"]
        allowed = batch
    values = [row.get(name, 0.0) for name in ("ratios", "left", "chances", "shares", "decisions")]
    row["ok"] = max(values) < 1 and row["status"] == 0 and row["decided_otherwise"] <= allowed
    record.add("methods", row)


def follows(found, tokens, draft, target, u):
    """Nested priorities: whether selection, residuals, chances and decisions, in float64, follow
    from the shares and gains that the kernels report."""
    trace, (batch, paths, length) = found.trace, tokens.shape
    with Oracle():
        request = verification.check(Method.NESTED_PRIORITY, tokens, draft, target, u, None, None)
        request.knots, request.cells = trace.gains.shape[-1], trace.shares.shape[-1]
        own = plain_verify.Verification(request)
    own.gains, own.tails = trace.gains.double(), trace.tails.double()
    row, at = {}, torch.arange(batch, device=DEVICE)
    # What a path's share is worth is what its tokens' selection ratios multiply to.
    gains = []
    for level in range(length):
        p, q = own.target[own.target_rows[..., level]], own.draft[own.draft_rows[..., level]]
        r = plain_shares.pooled_ratio(p, q, own.tails[..., level])
        r = r.gather(-1, own.safe[..., level][..., None])
        low, part = plain_shares.knot(r, request.knots)
        gains.append(plain_shares.gain_at(own.gains[:, :, level], low, part)[..., 0])
    gains = torch.stack(gains, -1)
    worth = plain_shares.cell_worth(request.cells, paths, own.q)
    row["shares"] = max(far((trace.shares * worth).sum(-1), gains.prod(-1), 1e-9, 2e-4),
                        far(trace.shares.sum(-1), torch.ones_like(gains[..., 0]), 1e-9, 0))
    row["ratios_follow"] = far(trace.ratios.clamp_max(1.0),
                               (own.p / (own.q * gains)).clamp_max(1.0), 2e-5, 2e-4)
    row["shares"] = max(row["shares"], row["ratios_follow"])
    path = found.path.long()
    weight, weights = torch.ones_like(own.q[:, 0, 0]), []
    for level in range(length):
        weights.append(weight)
        left = own.residual(path, torch.full_like(path, level), weight).sum(-1)
        row["left"] = max(row.get("left", 0.0), far(trace.left[:, level].sum(-1), left, 2e-5, 0))
        weight = (weight * trace.ratios[at, path, level]).clamp_max(1.0)
    weights.append(weight)
    decided = torch.zeros_like(path)
    for level in range(1, length + 1):
        w, chance = weights[level], weights[level]
        if level < length:
            left = trace.left[:, level].sum(-1)
            sure = (w <= 0.0) | (w >= 1.0)
            chance = torch.where(sure, w, left / torch.where(sure, w + 1, left + 1 - w))
        row["chances"] = max(row.get("chances", 0.0),
                             far(trace.chances[:, level - 1], chance, 1e-9, 0))
        decided = torch.where(own.coins[:, level - 1] < trace.chances[:, level - 1], level, decided)
    top = trace.priorities.view(batch, paths).argmax(-1)
    cell = plain_verify.pick(trace.shares, u[:, :paths])
    place = (cell + u[:, paths : 2 * paths]) / request.cells
    row["decisions"] = float((decided != found.length).sum() + (top != path).sum())
    row["decisions"] += far(trace.priorities.view(batch, paths), place, 1e-9, 0) > 1
    return row


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


def checks(record, small, vocabularies):
    """All kernels against float64 at these sizes."""
    for v in vocabularies:
        for kind in KINDS:
            yield f"check rows {v} {kind}", lambda v=v, k=kind: check_rows(record, v, k, small)
        for method in gpu.METHODS:
            for kind in KINDS if not small else ("random", "disjoint"):
                yield (f"check {method} {v} {kind}",
                       lambda m=method, v=v, k=kind: check_method(record, m, v, k, small))
