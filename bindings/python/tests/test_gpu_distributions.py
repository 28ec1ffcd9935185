"""Distributions and draws of `polydraft.gpu`, with interpreted kernels and in plain PyTorch."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from gpu_proof import load, working_with

gpu = load()
BACKENDS = ["plain", "triton"]
SETTINGS = [
    {}, {"temperature": 0.3}, {"temperature": 0.0}, {"top_k": 1}, {"top_k": 5}, {"top_k": 50},
    {"top_p": 0.4}, {"top_p": 0.97}, {"min_p": 0.1}, {"min_p": 1.0},
    {"temperature": 1.7, "top_k": 12, "top_p": 0.8, "min_p": 0.03},
    {"temperature": 0.0, "top_k": 3, "top_p": 0.5, "min_p": 0.5},
]


def rows(vocabulary=37, seed=0):
    """Makes rows: random, tied, peaked, with -inf, all equal, one finite, and zeros of both signs."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(7, vocabulary)) * 2
    x[1] = np.round(x[1])
    x[2] *= 20
    x[3, ::2] = -np.inf
    x[4] = 1.5
    x[5], x[5, vocabulary // 2] = -np.inf, -3.0
    x[6, :9] = [0.0, -0.0] * 4 + [0.0]
    return x.astype(np.float32)


def reference(row, temperature=1.0, top_k=None, top_p=1.0, min_p=0.0):
    """Reference of the Rust `Sampling` in numpy."""
    if temperature == 0.0:
        return np.eye(len(row))[np.flatnonzero(row == row.max())[0]]
    weights = np.exp((row.astype(np.float64) - row.max()) / temperature)
    order = np.lexsort((np.arange(len(row)), -row.astype(np.float64)))
    order = order[row[order] > -np.inf]
    order = order[:top_k]
    if top_p < 1.0:
        upto = np.cumsum(weights[order])
        order = order[: np.searchsorted(upto, top_p * upto[-1], side="left") + 1]
    order = order[weights[order] >= min_p]
    kept = np.zeros(len(row))
    kept[order] = weights[order]
    return kept / kept.sum()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_filters_equal_numpy_reference(settings, backend):
    x = rows()
    with working_with(backend):
        made = gpu.distributions(torch.tensor(x), gpu.Sampling(**settings), block=16)
    wanted = np.array([reference(row, **settings) for row in x])
    found = made.probabilities().numpy()
    assert (found[wanted > 1e-35] > 0).all() and (found[wanted == 0] == 0).all()
    np.testing.assert_allclose(found, wanted, rtol=3e-6, atol=1e-9)
    masses = made.masses.double() / made.totals[:, None]
    blocks = np.pad(wanted, ((0, 0), (0, 11))).reshape(7, 3, 16).sum(-1)
    np.testing.assert_allclose(masses.numpy(), blocks, atol=1e-6)


def test_filters_equal_compiled_library():
    polydraft = pytest.importorskip("polydraft")
    x = rows()
    for settings in SETTINGS:
        with working_with("plain"):
            made = gpu.distributions(torch.tensor(x), gpu.Sampling(**settings))
        for row, found in zip(x, made.probabilities().numpy()):
            own = polydraft.Distribution.from_logits(row, polydraft.Sampling(**settings))
            np.testing.assert_allclose(found, np.asarray(own), atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_settings_by_row(backend):
    x = rows(12)[:6]
    rng = np.random.default_rng(3)
    settings = [SETTINGS[i] for i in rng.permutation(len(SETTINGS))[:6]]
    given = gpu.Sampling(
        temperature=torch.tensor([s.get("temperature", 1.0) for s in settings]),
        top_k=torch.tensor([s.get("top_k", 0) for s in settings]),
        top_p=torch.tensor([s.get("top_p", 1.0) for s in settings]),
        min_p=torch.tensor([s.get("min_p", 0.0) for s in settings]))
    with working_with(backend):
        found = gpu.distributions(torch.tensor(x), given, block=4).probabilities().numpy()
    for row, own, setting in zip(x, found, settings):
        np.testing.assert_allclose(own, reference(row, **setting), rtol=3e-6, atol=1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_accepts_strided_and_short_rows(dtype, backend):
    padded = torch.tensor(rows(40)).nan_to_num(neginf=-1e4).to(dtype).view(7, 1, 40)
    padded[..., 37:] = torch.nan
    with working_with(backend):
        made = gpu.distributions(padded[..., :37], block=8)
    assert made.probabilities().shape == (7, 1, 37) and not made.status.any()
    wanted = torch.softmax(padded[:, 0, :37].double(), -1)
    np.testing.assert_allclose(made.probabilities()[:, 0].numpy(), wanted.numpy(), atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_invalid_rows_have_nonzero_status(backend):
    x = torch.zeros(5, 9)
    x[1, 8], x[2], x[3, 0] = torch.nan, -torch.inf, torch.inf
    x[4, 0] = -torch.inf
    with working_with(backend):
        made = gpu.distributions(x, block=4)
        tokens = gpu.draw(made, torch.full((5, 2), 0.5, dtype=torch.float64))
    assert made.status.tolist() == [0, 1, 1, 1, 0]
    assert (tokens[1:4] == -1).all() and (tokens[[0, 4]] >= 0).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_draws_invert_the_cumulative_distribution(backend):
    x = torch.tensor(rows(11)[[0, 1, 3, 5]])
    u = torch.linspace(0, 1, 129, dtype=torch.float64)[:-1].expand(4, -1)
    with working_with(backend):
        made = gpu.distributions(x, block=4)
        tokens = gpu.draw(made, u)
    upto = made.probabilities().cumsum(-1)
    for row in range(4):
        wanted = torch.searchsorted(upto[row], u[row].contiguous(), right=True)
        off = (tokens[row] != wanted).nonzero()
        # Rounding may move a uniform at a boundary to the other side.
        for i in off.flatten():
            assert (upto[row] - u[row, i]).abs().min() < 1e-6
        assert (made.probabilities()[row][tokens[row]] > 0).all()


@pytest.mark.parametrize("vocabulary", [151936, 262144])
def test_backends_agree_on_large_rows(vocabulary):
    """Tests two rows: nearly flat, and peaked with a long tail."""
    torch.manual_seed(5)
    x = torch.randn(2, vocabulary) * torch.tensor([[0.3], [4.0]])
    u = torch.rand(2, 3, dtype=torch.float64)
    settings = gpu.Sampling(temperature=0.8)
    drawn = {}
    for backend in BACKENDS:
        with working_with(backend):
            made = gpu.distributions(x, settings)
            drawn[backend] = made, gpu.draw(made, u)
    (a, at), (b, bt) = drawn.values()
    torch.testing.assert_close(a.totals, b.totals, rtol=1e-6, atol=0)
    torch.testing.assert_close(a.masses, b.masses, rtol=2e-6, atol=0)
    assert (at - bt).abs().max() <= 1
    wanted = torch.softmax(x.double() / 0.8, -1)
    torch.testing.assert_close(a.probabilities(), wanted, rtol=1e-5, atol=1e-12)


def test_backends_filter_large_rows_equally():
    torch.manual_seed(6)
    x = torch.randn(1, 20000) * 3
    for settings in ({"top_k": 1000}, {"top_p": 0.9}):
        kept = {}
        for backend in BACKENDS:
            with working_with(backend):
                made = gpu.distributions(x, gpu.Sampling(**settings), block=16384)
                kept[backend] = (made.cuts.item(), made.lasts.item())
        assert kept["plain"] == kept["triton"]


def test_rejects_invalid_input():
    for bad, what in ((torch.zeros(2, 3, dtype=torch.float64), "float32"),
                      (torch.zeros(4, 3).T, "contiguous"), (torch.zeros(0, 3), "empty")):
        with pytest.raises(ValueError, match=what):
            gpu.distributions(bad)
    for bad in ({"temperature": -1.0}, {"top_k": 0}, {"top_p": 0.0}, {"min_p": 1.5}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            gpu.Sampling(**bad)
    with pytest.raises(ValueError, match="leading"):
        gpu.distributions(torch.zeros(2, 3), gpu.Sampling(temperature=torch.ones(3)))
    with pytest.raises(ValueError, match="uniforms"):
        gpu.draw(gpu.distributions(torch.zeros(2, 3)), torch.zeros(3, 1))
