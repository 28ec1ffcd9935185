"""`polydraft.verify` of paths in torch tensors: by the Rust core on a CPU, by `polydraft.gpu` elsewhere."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import polydraft
from polydraft import Draft, Rng, Sampling, Verifier, enumerate_decisions, gpu, paths
from polydraft.errors import InvalidInput, Unsupported


def tables(vocabulary, length, seed):
    """Makes logits of draft and target after every prefix."""
    generator = torch.Generator().manual_seed(seed)
    prefixes = [p for depth in range(length + 1) for p in itertools.product(range(vocabulary), repeat=depth)]
    return [{p: torch.randn(vocabulary, generator=generator) for p in prefixes} for _ in range(2)]


def step(tokens, draft, target):
    """Makes an engine's tensors for paths `[K, L]`."""
    drawn = [[draft[path[:at]] for at in range(len(path))] for path in tokens]
    rows = [target[()], *(target[path[: at + 1]] for path in tokens for at in range(len(path)))]
    pair = torch.tensor([tokens]), torch.stack([torch.stack(path) for path in drawn])[None]
    return pair, torch.stack(rows)[None]


@pytest.mark.parametrize("verifier", ["nested-priority", "specinfer", "walk:priority", "traversal"])
@pytest.mark.parametrize("shape", [(3, 2, 1), (2, 2, 2)])
def test_cpu_output_has_target_distribution(verifier, shape):
    vocabulary, count, length = shape
    draft, target = tables(vocabulary, length, 4)
    sampling = Sampling(temperature=0.8)
    emitted = dict.fromkeys(itertools.product(range(vocabulary), repeat=length + 1), 0.0)
    single = list(itertools.product(range(vocabulary), repeat=length))

    def exact(table, prefix, token):
        return torch.softmax(table[prefix].double() / 0.8, 0)[token].item()

    def likelihood(table, path):
        return np.prod([exact(table, path[:at], token) for at, token in enumerate(path)])

    for tokens in itertools.product(single, repeat=count):
        weight = np.prod([likelihood(draft, path) for path in tokens])
        pair, rows = step(tokens, draft, target)
        for chance, found in enumerate_decisions(
            lambda rng, pair=pair, rows=rows: polydraft.verify(pair, rows, [rng], verifier=verifier, sampling=sampling)
        ):
            text = tuple(found.tokens[0][: found.length[0] + 1].tolist())
            assert found.tokens[0, found.length[0]] == found.next[0]
            assert tuple(tokens[found.path[0]][: found.length[0]]) == text[:-1]
            # The target extends the output to the full length.
            for rest in itertools.product(range(vocabulary), repeat=length + 1 - len(text)):
                more = [exact(target, text + rest[:at], token) for at, token in enumerate(rest) if len(text) + at <= length]
                emitted[text + rest] += weight * chance * np.prod(more)
    for text, probability in emitted.items():
        assert probability == pytest.approx(likelihood(target, text), abs=1e-6)


def batch(size, count=3, length=2, vocabulary=5):
    generator = torch.Generator().manual_seed(9)
    draft = torch.randn((size, count, length, vocabulary), generator=generator)
    # At the root, all paths of a sequence have the same distribution.
    draft[:, :, 0] = draft[:, :1, 0]
    tokens = torch.zeros((size, count, length), dtype=torch.int64)
    for at in range(length):
        weights = torch.softmax(draft[:, :, at], -1).reshape(-1, vocabulary)
        tokens[:, :, at] = torch.multinomial(weights, 1, generator=generator).reshape(size, count)
        for later, first in itertools.product(range(count), repeat=2):
            if first < later and at + 1 < length:
                same = (tokens[:, first, : at + 1] == tokens[:, later, : at + 1]).all(-1)
                draft[same, later, at + 1] = draft[same, first, at + 1]
    target = torch.randn((size, 1 + count * length, vocabulary), generator=generator)
    return (tokens, draft), target


@pytest.fixture
def on_device(monkeypatch):
    """Treats tensors on a CPU as if on a device, with the plain PyTorch backend."""
    from polydraft.gpu import plain

    monkeypatch.setattr(paths, "_by_rust", paths._on_device)
    monkeypatch.setattr(gpu.backend, "of", lambda tensor: plain)


def test_device_tensors_use_gpu_verify(on_device):
    pair, target = batch(40)
    uniforms = torch.rand((40, gpu.uniforms_needed("nested-priority", 3, 2)), dtype=torch.float64)
    for sampling in (None, Sampling(temperature=0.5, top_k=3, top_p=0.9, min_p=0.01), Sampling(temperature=0.0)):
        settings = sampling and gpu.Sampling(sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)
        found = polydraft.verify(pair, target, uniforms, sampling=sampling, draft_sampling=Sampling())
        expected = gpu.verify("nested-priority", *pair, target, uniforms, sampling=settings, draft_sampling=gpu.Sampling())
        assert torch.equal(found.tokens, expected.tokens) and torch.equal(found.path, expected.path)
    by_seed = [polydraft.verify(pair, target, seed).tokens for seed in (3, 3, 4)]
    assert torch.equal(by_seed[0], by_seed[1]) and not torch.equal(by_seed[0], by_seed[2])
    generator = torch.Generator().manual_seed(3)
    assert torch.equal(polydraft.verify(pair, target, generator).tokens, by_seed[0])
    assert polydraft.verify(pair, target, verifier=Verifier("specinfer")).status.tolist() == [0] * 40


def test_cpu_and_device_accept_equally_many_tokens(monkeypatch):
    pair, target = batch(3000)
    by_rust = polydraft.verify(pair, target, 5)
    from polydraft.gpu import plain

    monkeypatch.setattr(gpu.backend, "of", lambda tensor: plain)
    on_device = paths._on_device(*pair, target, 5, "nested-priority", None, None)
    lengths = [found.length.double() for found in (by_rust, on_device)]
    # Three standard errors of the difference of two independent means.
    error = (sum(x.var() for x in lengths) / 3000) ** 0.5
    assert abs(lengths[0].mean() - lengths[1].mean()) < 3 * error
    assert lengths[0].mean() > 0.3 and (by_rust.tokens >= -1).all()


def test_cpu_seeds_and_generators_are_reproducible():
    pair, target = batch(30)
    first, again, other = (polydraft.verify(pair, target, seed).tokens for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    generators = [torch.Generator().manual_seed(8) for _ in range(2)]
    assert torch.equal(*(polydraft.verify(pair, target, generator).tokens for generator in generators))
    assert polydraft.verify(pair, target).tokens.shape == (30, 3)
    halves = (pair[0], pair[1].bfloat16()), target.bfloat16()
    assert polydraft.verify(*halves, rng=[Rng(i) for i in range(30)]).status.tolist() == [0] * 30


def test_device_rejects_invalid_arguments(on_device):
    pair, target = batch(2)
    with pytest.raises(ValueError, match=r"one of the verifiers token, .* got 'traversal'"):
        polydraft.verify(pair, target, 1, verifier="traversal")
    with pytest.raises(TypeError, match="a seed, a torch.Generator or uniforms, got Rng"):
        polydraft.verify(pair, target, Rng(1))
    with pytest.raises(ValueError, match=r"target must be \[2, 7, V\], got \[2, 6, V\]"):
        polydraft.verify(pair, target[:, :6], 1)


def test_cpu_rejects_invalid_arguments():
    pair, target = batch(2)
    with pytest.raises(ValueError, match=r"target must be \[2, 7, V\], got \[2, 6, 5\]"):
        polydraft.verify(pair, target[:, :6], 1)
    with pytest.raises(ValueError, match=r"integers \[B, K, L\] .* got torch.int64 \[3, 2\]; .*tokens\[None\]"):
        polydraft.verify((pair[0][0], pair[1]), target, 1)
    with pytest.raises(TypeError, match="a list of 2 rngs"):
        polydraft.verify(pair, target, [1])
    with pytest.raises(Unsupported):
        polydraft.verify(pair, target, 1, verifier="block")
    with pytest.raises(InvalidInput):
        polydraft.verify(pair, target * float("nan"), 1)
    draft = Draft.from_paths(pair[0][0].numpy(), pair[1][0].numpy())
    elsewhere = SimpleNamespace(device=SimpleNamespace(type="cuda"))
    with pytest.raises(TypeError, match="give a pair in place of the Draft"):
        polydraft.verify(draft, elsewhere, 1)
    with pytest.raises(TypeError, match="draft_sampling is for a pair"):
        polydraft.verify(draft, target[0].numpy(), 1, draft_sampling=Sampling())
    with pytest.raises(TypeError, match="on one device"):
        polydraft.verify((pair[0], pair[1].to("meta")), target, 1)
    with pytest.raises(TypeError, match="all as numpy arrays or all as tensors, got torch tensor, numpy array, torch tensor"):
        polydraft.verify((pair[0], pair[1].numpy()), target, 1)
    with pytest.raises(ValueError, match="one vocabulary for draft and target, got 5 and 4 logits"):
        polydraft.verify(pair, target[..., :4], 1)


def test_numpy_pair_equals_torch_pair():
    """Also tensors with gradients, and numbers in float16."""
    pair, target = batch(30)
    expected = polydraft.verify(pair, target, 1)
    arrays = tuple(part.numpy() for part in pair)
    found = polydraft.verify(arrays, target.numpy(), 1)
    assert isinstance(found, polydraft.VerifiedArrays)
    for name in ("path", "length", "next", "tokens"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name).numpy())
        assert getattr(found, name).dtype == getattr(expected, name).numpy().dtype
    with_gradient = polydraft.verify((pair[0], pair[1].clone().requires_grad_()), target.clone().requires_grad_(), 1)
    assert torch.equal(with_gradient.tokens, expected.tokens)
    halves = pair[1].half(), target.half()
    of_torch = polydraft.verify((pair[0], halves[0]), halves[1], 1)
    of_numpy = polydraft.verify((arrays[0], halves[0].numpy()), halves[1].numpy(), 1)
    np.testing.assert_array_equal(of_numpy.tokens, of_torch.tokens.numpy())
    with pytest.raises(ValueError, match=r"got int64 \[3, 2\]; for one sequence, add a dimension"):
        polydraft.verify((arrays[0][0], arrays[1][0]), target[0].numpy(), 1)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_rows_of_tensors_in_half_precision(kind):
    logits = torch.tensor([1.0, 0.5, -2.0], dtype=kind, requires_grad=True)
    found = polydraft.Distribution.from_logits(logits).to_numpy()
    np.testing.assert_allclose(found, torch.softmax(logits.detach().float(), 0).numpy(), atol=1e-6)
