"""Verifiers of `polydraft.gpu`: the emitted distribution, by enumeration and exact integration.

POLYDRAFT_EXHAUSTIVE=1 enumerates larger cases, and more of them through the interpreter.
"""

import os

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from gpu_proof import Tables, emitted, load, random_tables, working_with

gpu = load()
EXHAUSTIVE = os.environ.get("POLYDRAFT_EXHAUSTIVE") == "1"
BACKENDS = ["plain", "triton"]
KINDS = ["random", "peaked", "near", "equal", "zeros", "ties", "disjoint", "one-hot"]
SIZES = [(3, 1, 2), (5, 2, 1), (2, 2, 2), (2, 3, 1), (2, 1, 3)]
if EXHAUSTIVE:
    SIZES += [(3, 2, 2), (2, 3, 2), (3, 3, 1), (2, 2, 3), (4, 2, 1), (3, 1, 3)]
SAMPLINGS = [
    dict(sampling=gpu.Sampling(temperature=0.0)),
    dict(sampling=gpu.Sampling(temperature=0.0), draft_sampling=gpu.Sampling()),
    dict(sampling=gpu.Sampling(top_k=2), draft_sampling=gpu.Sampling(temperature=1.5)),
    dict(sampling=gpu.Sampling(temperature=0.7, top_p=0.8)),
    dict(sampling=gpu.Sampling(), draft_sampling=gpu.Sampling(min_p=0.3)),
]
SMALL = dict(knots=16, cells=16)
# Weights are in float32, so distributions differ by at most a few units of 6e-8.
ROUNDING = 1e-6


def several(method):
    return method not in ("token", "block")


def sizes(method, some):
    return [size for size in some if several(method) or size[1] == 1]


@pytest.mark.parametrize("method", gpu.METHODS)
def test_plain_pytorch_output_has_target_distribution(method):
    for vocabulary, paths, length in sizes(method, SIZES):
        for seed, kind in enumerate(KINDS):
            with working_with("plain"):
                tables = random_tables(vocabulary, length, kind, seed)
                found, wanted, _ = emitted(method, tables, paths, **SMALL)
            assert abs(found - wanted).sum() < ROUNDING, (vocabulary, paths, length, kind)


@pytest.mark.parametrize("method", gpu.METHODS)
def test_kernel_output_has_target_distribution(method):
    cases = [(3, 1, 1, "ties"), (2, 2, 2, "near"), (3, 2, 1, "zeros")]
    if not several(method):
        cases += [(2, 1, 2, "random"), (2, 1, 3, "zeros")]
    if EXHAUSTIVE:
        cases += [(2, 2, 2, kind) for kind in KINDS] + [(2, 3, 1, "random"), (3, 2, 2, "random")]
    unordered = "priority" in method
    for vocabulary, paths, length, kind in cases:
        dear = not unordered and (paths, length) == (2, 2)
        if (several(method) or paths == 1) and (EXHAUSTIVE or not dear):
            with working_with("triton"):
                tables = random_tables(vocabulary, length, kind, 7)
                found, wanted, mean = emitted(method, tables, paths, unordered=unordered, **SMALL)
            assert abs(found - wanted).sum() < ROUNDING, (vocabulary, paths, length, kind)
            with working_with("plain"):
                own = emitted(method, tables, paths, **SMALL)[2]
            assert own == pytest.approx(mean, abs=ROUNDING)


@pytest.mark.parametrize("method", gpu.METHODS)
def test_filters_and_temperature_0(method):
    for number, how in enumerate(SAMPLINGS):
        vocabulary, paths, length = sizes(method, [(3, 2, 1), (3, 1, 2)])[0]
        with working_with("plain"):
            tables = random_tables(vocabulary, length, "random", number)
            found, wanted, _ = emitted(method, tables, paths, **how, **SMALL)
        assert abs(found - wanted).sum() < ROUNDING, how


@pytest.mark.parametrize("knots, cells", [(8, 2), (8, 64), (64, 2), (128, 256)])
@pytest.mark.parametrize("method", ["walk:priority", "nested-priority"])
def test_coarse_pools_keep_distribution(method, knots, cells):
    with working_with("plain"):
        for size, paths in (((3, 1), 3), ((2, 2), 2)):
            tables = random_tables(*size, "random", 4)
            found, wanted, _ = emitted(method, tables, paths, knots=knots, cells=cells)
            assert abs(found - wanted).sum() < ROUNDING


def planted(monkeypatch, fault):
    """Plants one fault in the plain form."""
    import polydraft_gpu.plain_shares as shares
    import polydraft_gpu.plain_verify as verify

    exchange, residual = shares.exchange, verify.Verification.residual

    def halved(lengths, ratios, ends, mass, demanded):
        held, gained, density = exchange(lengths, ratios, ends, mass)
        # Exchanges only half: a valid sharing with other masses.
        held = 0.5 * held + 0.5 * torch.diag_embed(lengths)
        own = (held * density[..., None, :]).sum(-1) / lengths.clamp_min(1e-300)
        return held, gained if demanded else torch.where(lengths > 0, own, gained), density

    if fault == "demanded":
        monkeypatch.setattr(shares, "exchange", lambda *a: halved(*a, True))
    elif fault == "assigned":
        monkeypatch.setattr(shares, "exchange", lambda *a: halved(*a, False))
    elif fault == "residual":
        monkeypatch.setattr(
            verify.Verification, "residual",
            lambda self, path, level, weight: residual(self, path, level, weight * 0.0 + 1.0))
    elif fault == "leak":
        monkeypatch.setattr(
            verify.Verification, "residual",
            lambda self, path, level, weight: (
                residual(self, path, level, weight) + 1e-5 * (level == 0)[:, None]))
    elif fault == "duplicates":
        # Treats a common prefix of paths as separate nodes.
        monkeypatch.setattr(shares, "highest", lambda ends, count: ends)


@pytest.mark.parametrize("method, fault, found_out", [
    ("nested-priority", "demanded", True), ("walk:priority", "demanded", True),
    ("nested-priority", "assigned", False), ("walk:priority", "assigned", False),
    ("nested-priority", "residual", True), ("block", "residual", True),
    ("nested-priority", "leak", True), ("walk:priority", "leak", True), ("token", "leak", True),
    ("walk:priority", "duplicates", True),
])
def test_detects_planted_faults(monkeypatch, method, fault, found_out):
    paths = 2 if several(method) else 1
    tables = random_tables(3, 2, "random", 11)
    with working_with("plain"):
        planted(monkeypatch, fault)
        found, wanted, _ = emitted(method, tables, paths, **SMALL)
    assert (abs(found - wanted).sum() > ROUNDING) == found_out


def test_detects_planted_kernel_fault(monkeypatch):
    """m = q in the residual: the draft's distribution instead of the selection's."""
    target, draft = np.log([0.45, 0.45, 0.1]), np.log([0.1, 0.2, 0.7])
    logits = target.astype(np.float32), draft.astype(np.float32)
    tables = Tables(3, 1, lambda prefix: logits)
    with working_with("triton"):
        import polydraft_gpu.kernels.launch as launch

        kernel = launch.finish.residual_kernel
        before = emitted("walk:priority", tables, 2, unordered=True, **SMALL)

        class Faulty:
            """Passes gains of 1 to the kernel."""

            def __getitem__(self, grid):
                def run(*args, **kwargs):
                    work = list(args)
                    gains = [i for i, a in enumerate(work)
                             if isinstance(a, torch.Tensor) and a.dim() == 2 and a.shape[1] == 16]
                    assert len(gains) == 1
                    work[gains[0]] = torch.ones_like(work[gains[0]])
                    return kernel[grid](*work, **kwargs)

                return run

        monkeypatch.setattr(launch.finish, "residual_kernel", Faulty())
        after = emitted("walk:priority", tables, 2, unordered=True, **SMALL)
    assert abs(before[0] - before[1]).sum() < ROUNDING < abs(after[0] - after[1]).sum()


def batch(method, size, paths, length, vocabulary, seed, scale=2.0):
    """Makes logits, drawn paths and uniforms."""
    torch.manual_seed(seed)
    paths = paths if several(method) else 1
    target = torch.randn(size, 1 + paths * length, vocabulary) * scale
    draft = torch.empty(size, paths, length, vocabulary)
    tokens = torch.zeros(size, paths, length, dtype=torch.int64)
    noise = torch.randn(size, vocabulary)
    for k in range(paths):
        for i in range(length):
            # Equal logits after equal prefixes.
            for b in range(size):
                like = [j for j in range(k) if torch.equal(tokens[b, j, :i], tokens[b, k, :i])]
                row = 0 if i == 0 else 1 + (like or [k])[0] * length + i - 1
                draft[b, k, i] = draft[b, like[0], i] if like else target[b, row] + 0.7 * noise[b]
        for i in range(length):
            tokens[:, k, i] = torch.multinomial(torch.softmax(draft[:, k, i], -1), 1)[:, 0]
    uniforms = torch.rand(size, gpu.uniforms_needed(method, paths, length), dtype=torch.float64)
    return tokens, draft, target, uniforms


@pytest.mark.parametrize("method", gpu.METHODS)
def test_kernels_equal_plain_pytorch(method):
    """Uses the same uniforms, and blocks of 8 of a vocabulary of 21."""
    tokens, draft, target, uniforms = batch(method, 4, 3, 2, 21, 1)
    found = []
    for backend in BACKENDS:
        with working_with(backend):
            rows = gpu.distributions(draft, block=8), gpu.distributions(target, block=8)
            found.append(gpu.verify(method, tokens, *rows, uniforms, knots=16, cells=32))
    for name in ("path", "length", "next", "tokens", "status"):
        assert torch.equal(*(getattr(one, name) for one in found)), name
    for b in range(4):
        length, path = found[0].length[b], found[0].path[b]
        assert torch.equal(found[0].tokens[b, :length], tokens[b, path, :length])
        assert found[0].tokens[b, length] == found[0].next[b]
        assert (found[0].tokens[b, length + 1:] == -1).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("method", gpu.METHODS)
def test_rejects_invalid_rows(method, backend):
    tokens, draft, target, uniforms = batch(method, 5, 2, 2, 6, 2)
    draft[0, 0, 0, 3], target[1, 0], tokens[2, 0, 1] = torch.nan, -torch.inf, 6
    draft[3, 0, 0] = draft[3, 0, 0].index_fill(0, tokens[3, 0, 0], -torch.inf)
    with working_with(backend):
        found = gpu.verify(method, tokens, draft, target, uniforms, **SMALL)
    assert found.status.tolist() == [1, 1, 2, 2, 0]
    assert (found.next[:4] == -1).all() and (found.path[:4] == -1).all()
    assert (found.length[:4] == 0).all() and found.next[4] >= 0


def test_decisions_follow_from_the_trace():
    """Derives path, length and token from the trace that the proof integrates."""
    tokens, draft, target, uniforms = batch("nested-priority", 4000, 2, 2, 5, 3)
    with working_with("plain"):
        rows = gpu.distributions(draft, block=1), gpu.distributions(target, block=1)
        found = gpu.verify("nested-priority", tokens, *rows, uniforms, trace=True, **SMALL)
    trace = found.trace
    upto = trace.shares.cumsum(-1)
    cells = (upto <= uniforms[:, :2, None]).sum(-1)
    path = ((cells + uniforms[:, 2:4]) / 16).argmax(-1)
    assert torch.equal(path.int(), found.path)
    coins = uniforms[:, 4:6] < trace.chances
    length = torch.where(coins[:, 1], 2, torch.where(coins[:, 0], 1, 0))
    assert torch.equal(length.int(), found.length)
    inner = length < 2
    left = trace.left[torch.arange(4000), length.clamp_max(1)]
    upto = left.cumsum(-1) / left.sum(-1, keepdim=True)
    token = (upto <= uniforms[:, 6:]).sum(-1)
    assert torch.equal(token[inner], found.next[inner])


@pytest.mark.parametrize("vocabulary", [151936, 262144])
def test_backends_agree_on_large_vocabularies(monkeypatch, vocabulary):
    """Compares kernels with the plain form on one sequence of two paths."""
    tokens, draft, target, uniforms = batch("nested-priority", 1, 2, 1, vocabulary, 4)
    found = []
    for backend in BACKENDS:
        with working_with(backend):
            if backend == "triton":
                # Larger parts are faster in the interpreter.
                import polydraft_gpu.kernels.launch as launch

                monkeypatch.setattr(launch, "SPLIT", 65536)
                monkeypatch.setattr(launch, "CHUNK", 8192)
            rows = gpu.distributions(draft, block=32768), gpu.distributions(target, block=32768)
            found.append(gpu.verify("nested-priority", tokens, *rows, uniforms, trace=True,
                                    knots=16, cells=64))
    a, b = found
    torch.testing.assert_close(a.trace.shares, b.trace.shares, rtol=0, atol=1e-5)
    torch.testing.assert_close(a.trace.ratios, b.trace.ratios, rtol=1e-4, atol=0)
    torch.testing.assert_close(a.trace.left, b.trace.left, rtol=0, atol=1e-5)
    assert torch.equal(a.path, b.path) and torch.equal(a.length, b.length)


def test_rejects_invalid_input():
    tokens, draft, target, uniforms = batch("walk:priority", 2, 2, 2, 4, 5)
    with working_with("plain"):
        for method, args, what in (
            ("wlak", (tokens, draft, target, uniforms), "unknown method"),
            ("block", (tokens, draft, target, uniforms), "one path"),
            ("walk:priority", (tokens.float(), draft, target, uniforms), "integers"),
            ("walk:priority", (tokens, draft[:, :1], target, uniforms), "draft must be"),
            ("walk:priority", (tokens, draft, target[:, 1:], uniforms), "target must be"),
            ("walk:priority", (tokens, draft, target, uniforms[:, 1:]), "uniforms must be"),
        ):
            with pytest.raises(ValueError, match=what):
                gpu.verify(method, *args)
        with pytest.raises(ValueError, match="knots"):
            gpu.verify("walk:priority", tokens, draft, target, uniforms, knots=12)
