import numpy as np
import polydraft
import pytest
from polydraft import Rng, Draft, Sampling, TableModel, Tree, Verifier
from polydraft.errors import InvalidInput, TooLarge, Unsupported

TREES = ["paths:2,2", "delayed:1,2,1", "2,2/without-replacement", "2,1/top-k", "stop-below:0.3,paths:2,2", "auto:2"]


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("verifier", [v for v in polydraft.VERIFIERS if "walk:" not in v] + ["walk:priority", "walk:naive"])
def test_verifiers_emit_target_distribution(verifier, tree):
    """Enumerates the production code; a verifier rejects trees for which it is not exact."""
    target, draft = polydraft.random_tables(2, 3, seed=2)
    if not Verifier(verifier).supports(tree):
        with pytest.raises(Unsupported, match="expected"):
            polydraft.exact_distribution(verifier, tree, target, draft)
        return
    found = polydraft.exact_distribution(verifier, tree, target, draft)
    assert found.deviation < 1e-10 and found.block_efficiency >= 1
    emitted = polydraft.emitted_distribution(verifier, tree, target, draft)
    assert sum(emitted.values()) == pytest.approx(1)
    length = sum(len(text) * p for text, p in emitted.items())
    assert length == pytest.approx(found.block_efficiency)


@pytest.mark.parametrize("size", [(1, 10**5), (10**6, 1), (2, 10**6)])
def test_rejects_too_large_tables(size):
    with pytest.raises(TooLarge, match="numbers"):
        polydraft.random_tables(*size)


def logits(rng, nodes, vocabulary=6):
    return rng.normal(size=(nodes, vocabulary)).astype(np.float32) * 2


def grown(tree, numbers, rng, vocabulary=6, **options):
    """Returns a draft and the logits that it was drawn from, by node."""
    draft, distributions = Draft(tree, **options), {}
    while nodes := draft.frontier():
        rows = logits(numbers, len(nodes), vocabulary)
        distributions.update(zip(nodes, rows))
        draft.grow(rows, rng)
    return draft, distributions


def test_drafts_by_level():
    draft, _ = grown("paths:4,3", np.random.default_rng(1), Rng(1), root=5)
    assert draft.tokens[0] == 5 and draft.parents[0] == -1 and draft.counts[0] == 0
    assert draft.form == "4 i.i.d. paths" and draft.depths.max() == 3
    for level in (1, 2, 3):
        assert draft.counts[draft.depths == level].sum() == 4
    mask = draft.mask()
    for node in range(len(draft)):
        assert np.flatnonzero(mask[node]).tolist() == sorted([0, *draft.path(node)])
    assert all(draft.distribution(node) is None for node in draft.leaves())
    shallow, _ = grown("paths:4,3", np.random.default_rng(1), Rng(1), depth=2)
    assert shallow.depths.max() == 2
    with pytest.raises(InvalidInput, match="below"):
        draft.path(len(draft))
    with pytest.raises(InvalidInput, match="expected 1 rows"):
        Draft("paths:2,2").grow(np.zeros((2, 3)))


@pytest.mark.parametrize("tree", ["paths:4,3", "3,2,1", "delayed:1,3,2", "3,2/without-replacement", "2,2/top-k"])
def test_given_draft_equals_drawn_draft(tree):
    """Arrays given as if drawn by an engine lead to the same decisions."""
    rng = np.random.default_rng(7)
    for seed in range(20):
        draft, rows = grown(tree, rng, Rng(seed))
        distributions = np.zeros((len(draft), 6), dtype=np.float32)
        for node, row in rows.items():
            distributions[node] = row
        paths = tree.startswith("paths")
        scheme = tree.partition("/")[2] or "iid"
        # Draws begin anew except in paths; in `delayed`, the path of the first draw continues.
        begins = None if paths else [(tree != "delayed:1,3,2") or depth != 2 for depth in draft.depths]
        given = Draft.given(draft.tokens, draft.parents, distributions, draft.counts, scheme, begins)
        assert (given.tokens == draft.tokens).all() and (given.counts == draft.counts).all()
        target = logits(rng, len(draft))
        verifier = "nested-priority" if scheme == "iid" else "walk:naive"
        one = polydraft.verify(draft, target, seed, verifier=verifier)
        other = polydraft.verify(given, target, seed, verifier=verifier)
        whole = polydraft.verify_arrays(
            draft.tokens, draft.parents, distributions, target, seed,
            counts=draft.counts, scheme=scheme, begins=begins, verifier=verifier,
        )  # fmt: skip
        assert one.tokens == other.tokens == whole.tokens and one.accepted == other.accepted


def test_drafts_from_paths():
    rng = np.random.default_rng(3)
    row = {}

    def exact(text):
        return row.setdefault(tuple(text), rng.normal(size=5).astype(np.float32))

    paths = [[1, 2, 0], [1, 2, 3], [4, 0, 0], [1, 3, 3]]
    distributions = np.stack([[exact(path[:depth]) for depth in range(3)] for path in paths])
    draft = Draft.from_paths(np.array(paths), distributions, root=2)
    assert draft.tokens.tolist() == [2, 1, 4, 2, 3, 0, 0, 3, 3, 0]
    assert draft.counts.tolist() == [0, 3, 1, 2, 1, 1, 1, 1, 1, 1]
    assert draft.form == "4 i.i.d. paths"
    for node in range(len(draft)):
        text = draft.tokens[draft.path(node)].tolist()
        if (drawn := draft.distribution(node)) is not None:
            assert drawn == polydraft.Distribution.from_logits(exact(text))
    with pytest.raises(InvalidInput, match="one length"):
        Draft.from_paths([[1, 2], [1]], distributions)
    with pytest.raises(InvalidInput, match=r"shape \[4, 3, vocabulary\]"):
        Draft.from_paths(paths, distributions[:, :2])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0, 1], [-1], None), "one length"),
        (([0, 1, 2], [-1, 2, 0], None), "node 1 should have one before it, got 2"),
        (([0, 1, 9], [-1, 0, 1], None), "below 4"),
        (([0, 1, 1], [-1, 0, 0], None), "each token once"),
        (([0, 1, 2, 3], [-1, 0, 0, 1], [0, 2, 1, 1]), "expected 2 entries"),
        (([0, -1], [-1, 0], None), "token ids from 0"),
        (([], [], None), "one length"),
    ],
)
def test_rejects_impossible_drafts(arguments, message):
    tokens, parents, counts = arguments
    with pytest.raises(InvalidInput, match=message):
        Draft.given(tokens, parents, np.zeros((4, 4), dtype=np.float32), counts)


def test_rejects_too_many_draws_immediately():
    distributions = np.zeros((3, 4), dtype=np.float32)
    for counts in ([0, 1, 4_000_000_000], [0, 2**19, 2**19 + 1]):
        with pytest.raises(TooLarge, match=f"at most 1048576 draws in all, got {sum(counts)}"):
            Draft.given([0, 1, 2], [-1, 0, 0], distributions, counts)
    # The root is not drawn.
    given = Draft.given([0, 1, 2], [-1, 0, 0], distributions, [4_000_000_000, 3, 2])
    assert given.counts.tolist() == [0, 3, 2]


def test_rejects_draft_tokens_of_probability_zero():
    with pytest.raises(Unsupported, match="iid can draw"):
        Draft.given([0, 1], [-1, 0], [[0.0, -np.inf]])
    with pytest.raises(InvalidInput, match="at least 2 rows"):
        Draft.given([0, 1, 1], [-1, 0, 1], [[0.0, 0.0]])


def test_batch_equals_single_calls():
    rng = np.random.default_rng(9)
    drafts = [grown("paths:3,3", rng, Rng(seed), vocabulary=40)[0] for seed in range(16)]
    targets = [logits(rng, len(draft), 40) for draft in drafts]
    sampling = Sampling(temperature=0.8, top_p=0.9)
    alone = [polydraft.verify(d, t, i, sampling=sampling).tokens for i, (d, t) in enumerate(zip(drafts, targets))]
    together = polydraft.verify(drafts, targets, list(range(16)), sampling=sampling)
    assert [outcome.tokens for outcome in together] == alone
    padded = np.zeros((16, max(map(len, drafts)), 40), dtype=np.float32)
    for row, target in zip(padded, targets):
        row[: len(target)] = target
    assert [o.tokens for o in polydraft.verify(drafts, padded, list(range(16)), sampling=sampling)] == alone
    with pytest.raises(TypeError, match="16 rngs"):
        polydraft.verify(drafts, targets, 1)
    with pytest.raises(InvalidInput, match="for each of 16 drafts"):
        polydraft.verify(drafts, targets[1:], list(range(16)))


def test_rejects_invalid_arguments():
    draft, _ = grown("paths:2,2", np.random.default_rng(1), Rng(1))
    with pytest.raises(Unsupported, match="verifier token: expected a single path, got 2 i.i.d. paths"):
        polydraft.verify(draft, logits(np.random.default_rng(1), len(draft)), verifier="token")
    with pytest.raises(InvalidInput, match=f"expected {len(draft)} rows"):
        polydraft.verify(draft, logits(np.random.default_rng(1), 1))
    with pytest.raises(InvalidInput, match="expected 6 tokens, as the draft has, got 5"):
        polydraft.verify(draft, logits(np.random.default_rng(1), len(draft), 5))
    broken = Draft("paths:2,2")
    broken.grow(np.zeros((1, 4)), rng=1)
    nodes, rows = broken.frontier(), np.zeros((len(broken.frontier()), 4))
    rows[-1, 2] = np.nan
    with pytest.raises(InvalidInput, match="entry 2"):
        broken.grow(rows)
    assert broken.frontier() == nodes and len(broken) == len(nodes) + 1
    with pytest.raises(InvalidInput, match="nested-priority"):
        Verifier("nested")
    with pytest.raises(InvalidInput, match="paths:2,3"):
        Tree("path:2")
    with pytest.raises(InvalidInput, match="from 1 to 4096"):
        Tree("paths:0,3")
    with pytest.raises(InvalidInput, match="sampling"):
        polydraft.verify(draft, [polydraft.Distribution([1.0])] * len(draft), sampling=Sampling())


def test_enumerates_custom_decode_loop():
    """Enumerates the distribution of a decode loop in Python: drafts and decisions of several steps."""
    target, draft = polydraft.random_tables(2, 3, seed=8)
    length = 3

    def experiment(rng):
        text = ()
        while len(text) < length:
            drawn = Draft("paths:2,1", depth=length - len(text) - 1)
            while nodes := drawn.frontier():
                drawn.grow([draft.distribution(text + tuple(drawn.tokens[drawn.path(n)])) for n in nodes], rng)
            distributions = [target.distribution(text + tuple(drawn.tokens[drawn.path(n)])) for n in range(len(drawn))]
            text += tuple(polydraft.verify(drawn, distributions, rng).tokens)
        return text

    runs = polydraft.enumerate_decisions(experiment)
    assert sum(p for p, _ in runs) == pytest.approx(1)
    for text in np.ndindex(2, 2, 2):
        got = sum(p for p, emitted in runs if emitted == text)
        expected = np.prod([target.distribution(text[:i]).probability(text[i]) for i in range(length)])
        assert got == pytest.approx(expected, abs=1e-12)


def test_auto_tree_adapts_to_acceptance():
    """`auto` adapts to outcomes: it drafts more with a draft that is always accepted than with one that never is."""
    drafted = {}
    for right in (True, False):
        tree, rng, nodes = Tree("auto"), Rng(1), []
        for _ in range(60):
            draft = Draft(tree)
            exact = np.array([0.0, 9.0, 0.0, 0.0], dtype=np.float32)
            while frontier := draft.frontier():
                draft.grow(np.repeat(exact[None], len(frontier), 0), rng)
            target = np.repeat(exact[None] if right else -exact[None], len(draft), 0)
            tree.observe(draft, polydraft.verify(draft, target, rng))
            nodes.append(len(draft) - 1)
        drafted[right] = sum(nodes[30:])
    assert drafted[True] > 3 * drafted[False]


def test_settings_as_dictionaries():
    """Dictionaries are parsed as the library's settings."""
    tree = Tree({"tree": "paths", "paths": 4, "depth": 8})
    assert repr(tree) == "Tree('paths:4,8')" and Verifier({"verifier": "walk", "rule": "k-seq"}).name == "spectr"
    costs = {"target": [[1, 1.0], [8, 1.2]], "draft": [[1, 0.1]]}
    assert Tree({"tree": "auto", "costs": costs}).depth == 64
    for wrong in ({"tree": "paths", "width": 3}, {"tree": "binary", "depth": 3}, {}):
        with pytest.raises(InvalidInput, match="settings"):
            Tree(wrong)


def test_dictionary_with_only_a_name_equals_the_name():
    for name in ("binary", "3,2/top-k", "paths:4,8", "auto"):
        assert repr(Tree({"tree": name})) == repr(Tree(name))
    assert Verifier({"verifier": "walk:hub"}).name == "walk:hub"
    with pytest.raises(InvalidInput, match='tree: expected one of paths:2,3; .*sequoia:16, got "path"'):
        Tree({"tree": "path"})
    with pytest.raises(InvalidInput, match='a tree of paths, distinct, .*, got "binary", which has none beside its name'):
        Tree({"tree": "binary", "depth": 3})


def test_tree_name_is_resolved_for_verifier():
    hub = Verifier("walk:hub")
    for name in ("binary", "3,2", {"tree": "2,2"}, "stop-below:0.2,2,2"):
        assert hub.supports(name) and not hub.supports(Tree(name))
        hub.require(name)
        tree = Tree(name, verifier="walk:hub")
        assert hub.supports(tree) and "/greedy" in repr(tree)
        # A copy equals its original.
        assert repr(Tree(tree)) == repr(tree)
    assert repr(Tree("binary")) == "Tree('levels:2,2,2')" == repr(Tree("binary", verifier=Verifier()))
    target, draft = polydraft.random_tables(2, 3, seed=2)
    assert polydraft.exact_distribution("walk:hub", "2,2", target, draft).deviation < 1e-10
    with pytest.raises(Unsupported):
        polydraft.exact_distribution("walk:hub", Tree("2,2"), target, draft)


def test_sequoia_trees_need_acceptances(tmp_path):
    rates, file = [0.6, 0.2, 0.1], tmp_path / "rates.json"
    file.write_text('{"acceptance": [0.6, 0.2, 0.1]}')
    tree = Tree("sequoia:5", acceptance=rates)
    assert tree.nodes == 5 and repr(tree) == "Tree('fixed:0,1,2,0,3')" and Verifier("traversal").supports(tree)
    assert repr(Tree("stop-below:0.1,sequoia:5", acceptance=rates)).startswith("Tree('stop-below:0.1,fixed:")
    assert Verifier().supports(Tree("sequoia:5", acceptance=tuple(rates), verifier="nested-priority"))
    if hasattr(polydraft, "use_threads"):
        assert repr(Tree("sequoia:5", acceptance=file)) == repr(Tree("sequoia:5", acceptance=str(file))) == repr(tree)
    with pytest.raises(InvalidInput, match="made from measured acceptances: give Engine, Tree or") as refused:
        Tree("sequoia:5")
    assert "polydraft-lab" not in str(refused.value)
    for name in ("paths:2,3", {"tree": "paths", "paths": 2}, tree):
        with pytest.raises(InvalidInput, match="acceptance= is what .* it has no meaning here"):
            Tree(name, acceptance=rates)
    with pytest.raises(InvalidInput, match="acceptance: expected a list of numbers, or a file of them, got int"):
        Tree("sequoia:5", acceptance=3)
    with pytest.raises(InvalidInput, match="at most 1 together"):
        Tree("sequoia:5", acceptance=[0.9, 0.9])


def test_table_models():
    model = TableModel({(): [0.5, 0.5], (1,): [0.25, 0.75]})
    assert model.vocabulary == 2 and model.distribution([0, 1]).probability(1) == 0.75
    assert TableModel.from_json('{"vocabulary": 2, "next": {"": [1, 0]}}').distribution([]).argmax() == 0
    with pytest.raises(InvalidInput, match="fallback"):
        TableModel({(1,): [0.5, 0.5]})
    with pytest.raises(InvalidInput, match="expected 2 probabilities, got 1"):
        TableModel({(): [0.5, 0.5], (1,): [1.0]})
    with pytest.raises(polydraft.errors.TooLarge, match="drafts"):
        polydraft.exact_distribution("nested-priority", "paths:9,9", model, model)


def test_rejects_drafts_of_another_type():
    assert polydraft.verify([], []) == []
    for draft in (([], []), [[0, 1]], "draft", None):
        with pytest.raises(TypeError, match="verify: draft: expected a Draft, a list of them, or a pair of arrays"):
            polydraft.verify(draft, [])
    with pytest.raises(InvalidInput, match="rng: expected an Rng or a seed from 0 to 2.64 - 1, got -1"):
        polydraft.verify(Draft("paths:1,1"), [[0.0, 0.0]], -1)
