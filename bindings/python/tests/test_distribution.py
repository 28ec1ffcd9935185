import numpy as np
import polydraft
import pytest
from polydraft import Rng, Distribution, Sampling
from polydraft.errors import Error, InvalidInput


def test_probabilities():
    exact = Distribution(np.array([0.5, 0.0, 0.3, 0.2]))
    assert (exact.vocabulary, exact.support_size, len(exact)) == (4, 3, 4)
    tokens, mass = exact.support()
    assert tokens.tolist() == [0, 2, 3] and mass.tolist() == [0.5, 0.3, 0.2]
    assert np.asarray(exact).tolist() == [0.5, 0.0, 0.3, 0.2]
    assert exact.most_likely(2) == [0, 2] and exact.collision() == pytest.approx(0.38)
    assert exact == Distribution([0.5, 0.0, 0.3, 0.2]) and Distribution.one_hot(4, 2).argmax() == 2
    other = Distribution([0.25] * 4)
    assert exact.total_variation(other) == pytest.approx(1 - exact.overlap(other))


def test_rejects_comparison_across_vocabularies():
    exact, other = Distribution.one_hot(5, 1), Distribution.one_hot(6, 1)
    for compare in (exact.total_variation, exact.overlap):
        with pytest.raises(InvalidInput, match="expected a distribution over 5 tokens, got one over 6"):
            compare(other)


@pytest.mark.parametrize("probabilities", [[-1.0, 2.0], [float("nan"), 1.0], [1.0, 1.0], []])
def test_g_test_rejects_invalid_probabilities(probabilities):
    with pytest.raises(InvalidInput, match="probabilities: expected"):
        polydraft.g_test(probabilities, [1] * len(probabilities))


@pytest.mark.parametrize("probabilities", [[], [0.5, 0.4], [1.5, -0.5], [float("nan"), 1.0]])
def test_rejects_invalid_distributions(probabilities):
    with pytest.raises(InvalidInput, match="distribution") as caught:
        Distribution(probabilities)
    assert isinstance(caught.value, (Error, ValueError))


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.7),
        Sampling(top_k=3),
        Sampling(top_p=0.6),
        Sampling(min_p=0.3),
        Sampling(temperature=1.4, top_k=9, top_p=0.8, min_p=0.02),
    ],
)
def test_filters_equal_numpy(sampling):
    logits = np.random.default_rng(5).normal(size=50).astype(np.float32) * 3
    p = np.exp((logits.astype(np.float64) - logits.max()) / sampling.temperature)
    order = np.argsort(-p, kind="stable")
    if sampling.top_k:
        p[order[sampling.top_k :]] = 0
    p /= p.sum()
    before = np.cumsum(p[order]) - p[order]
    p[order[before >= sampling.top_p]] = 0
    p[p < sampling.min_p * p.max()] = 0
    exact = Distribution.from_logits(logits, sampling)
    assert exact.to_numpy() == pytest.approx(p / p.sum(), abs=1e-6)


def test_temperature_0_takes_the_largest():
    assert Distribution.from_logits([1.0, 3.0, 3.0], Sampling(temperature=0)) == Distribution.one_hot(3, 1)


@pytest.mark.parametrize("settings", [{"temperature": -1}, {"top_k": 0}, {"top_p": 0}, {"min_p": 2}])
def test_rejects_settings_out_of_range(settings):
    with pytest.raises(InvalidInput, match=next(iter(settings))):
        Sampling(**settings)


def test_same_seed_gives_same_samples():
    exact = Distribution([0.2] * 5)
    one, other = Rng(11), Rng(11)
    assert [exact.sample(one) for _ in range(50)] == [exact.sample(other) for _ in range(50)]
    counts = np.bincount([exact.sample(one) for _ in range(5000)], minlength=5)
    assert polydraft.g_test([0.2] * 5, counts.tolist())[2] > 1e-3


def test_rejects_invalid_weights_and_probabilities():
    with pytest.raises(InvalidInput, match="weights"):
        Rng(1).pick([1.0, float("nan")])
    # Zero weights cannot be drawn; an infinite sum would always draw the last.
    for weights in ([], [0.0, 0.0], [1.0, -1.0], [1e308, 1e308]):
        with pytest.raises(InvalidInput, match="weights"):
            Rng(1).pick(weights)
        with pytest.raises(InvalidInput, match="weights"):
            Rng.every().pick(weights)
    assert {Rng(seed).pick([0.0, 1e-320, 0.0]) for seed in range(20)} == {1}
    with pytest.raises(InvalidInput, match="seed"):
        Distribution([1.0]).sample("seed")
    for probability in (-0.1, 2.0, float("nan")):
        for rng in (Rng(1), Rng.every()):
            with pytest.raises(InvalidInput, match="probability: expected one from 0 to 1"):
                rng.coin(probability)
    assert Rng(1).coin(1.0) and not Rng(1).coin(0.0)
    with pytest.raises(polydraft.errors.Unsupported, match="advance"):
        Rng(1).advance()
