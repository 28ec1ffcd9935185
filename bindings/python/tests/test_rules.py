import numpy as np
import polydraft
import pytest
from polydraft.errors import InvalidInput, Unsupported

TARGET, DRAFT = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])

INEXACT = {"global-resolution"}


@pytest.mark.parametrize("scheme", polydraft.DRAFTINGS)
@pytest.mark.parametrize("rule", polydraft.RULES)
def test_rules_emit_target_distribution(rule, scheme):
    """Enumerates every scheme that a rule supports, and compares `distribution` with `emitted`."""
    drafts = 1 if rule == "single" else 2
    distributions = [DRAFT, TARGET][:drafts] if scheme == "distinct" else DRAFT
    try:
        coupling = polydraft.couple(rule, TARGET, distributions, drafts, scheme)
    except Unsupported:
        assert (rule, scheme) not in {("priority", "iid"), ("naive", "top-k"), ("recursive", "without-replacement")}
        return
    emitted = coupling.emitted()
    tolerance = 1e-5 if rule in INEXACT else 1e-9
    assert emitted.probabilities == pytest.approx(TARGET, abs=tolerance)
    best = polydraft.optimal_acceptance(TARGET, distributions, drafts, scheme)
    assert emitted.accepted <= best + tolerance
    proposal = polydraft.Proposal(distributions, drafts, scheme)
    mixed = sum(p * coupling.distribution(tuple_).probabilities for p, tuple_ in proposal.tuples())
    assert mixed == pytest.approx(TARGET, abs=tolerance)


def test_optimal_acceptance_computed_in_two_ways():
    for seed in range(5):
        random = np.random.default_rng(seed)
        target, draft = random.dirichlet(np.ones(6)), random.dirichlet(np.ones(6))
        for scheme in ["iid", "without-replacement", "greedy", "hub", "top-k"]:
            best = polydraft.optimal_acceptance(target, draft, 3, scheme)
            assert polydraft.limiting_tokens(target, draft, 3, scheme)[0] == pytest.approx(best, abs=1e-9)
        lower, upper = polydraft.acceptance_bounds(target, draft, 3)
        assert lower <= polydraft.optimal_acceptance(target, draft, 3) + 1e-12 <= upper + 1e-9
        assert polydraft.couple("priority", target, draft, 3).acceptance().probability == pytest.approx(
            polydraft.optimal_acceptance(target, draft, 3), abs=1e-9
        )


def test_proposal_probabilities():
    proposal = polydraft.Proposal(DRAFT, 2, "without-replacement")
    tuples = proposal.tuples()
    assert sum(p for p, _ in tuples) == pytest.approx(1)
    assert all(proposal.probability(drafts) == pytest.approx(p) for p, drafts in tuples)
    assert proposal.probability([1, 1]) == 0 and proposal.probability([1]) == 0
    assert (proposal.count, proposal.scheme, proposal.distribution(0).argmax()) == (2, "without-replacement", 2)
    assert sorted(set(proposal.draw(3))) == sorted(proposal.draw(3))
    with pytest.raises(InvalidInput, match="below 2"):
        proposal.distribution(2)
    with pytest.raises(polydraft.errors.TooLarge, match="tuples"):
        polydraft.Proposal([0.01] * 100, 8).tuples()


def test_rejects_invalid_settings_and_names():
    assert polydraft.couple({"rule": "priority"}, TARGET, DRAFT, 2).acceptance().probability == pytest.approx(0.86)
    with pytest.raises(InvalidInput, match="truncation: expected from 1 to 20"):
        polydraft.couple({"rule": "importance", "truncation": 21}, TARGET, DRAFT, 2)
    with pytest.raises(InvalidInput, match="unknown field `depth`"):
        polydraft.couple({"rule": "priority", "depth": 2}, TARGET, DRAFT, 2)
    with pytest.raises(InvalidInput, match="best"):
        polydraft.couple({"rule": "best"}, TARGET, DRAFT)
    with pytest.raises(InvalidInput, match="priority, k-seq"):
        polydraft.couple("best", TARGET, DRAFT)
    with pytest.raises(Unsupported, match="single"):
        polydraft.couple("single", TARGET, DRAFT, 2)
    with pytest.raises(InvalidInput, match="3 as the target has"):
        polydraft.couple("priority", TARGET, [0.5, 0.5])
    with pytest.raises(InvalidInput, match="expected 2 entries, got 1"):
        polydraft.couple("priority", TARGET, DRAFT, 2).emit([1])
    with pytest.raises(InvalidInput, match="below 3"):
        polydraft.couple("priority", TARGET, DRAFT, 1).emit([3])


def test_emissions_have_target_distribution():
    coupling = polydraft.couple("k-seq", TARGET, DRAFT, 2)
    rng, counts = polydraft.Rng(4), np.zeros(3, dtype=int)
    for _ in range(4000):
        counts[coupling.emit(coupling.draw(rng), rng).token] += 1
    assert polydraft.g_test(TARGET.tolist(), counts.tolist())[2] > 1e-3


def test_optimal_block_efficiency_bounds_verifiers():
    target, draft = polydraft.random_tables(2, 3, seed=3)
    best = polydraft.optimal_block_efficiency(target, draft, paths=2, depth=2)
    for verifier in ["nested-priority", "spectr", "traversal", "greedy-block"]:
        assert polydraft.exact_distribution(verifier, "paths:2,2", target, draft).block_efficiency <= best + 1e-9
