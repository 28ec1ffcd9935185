"""Inside transformers without a tree or draft argument: one path with a depth by estimated costs, and n-grams."""

import polydraft
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import polydraft.transformers as inside  # noqa: E402
import tiny  # noqa: E402
from polydraft.transformers.costs import estimated  # noqa: E402
from test_transformers import distribution_of  # noqa: E402

pytestmark = pytest.mark.usefixtures("without_kernels")
IDS = torch.tensor([[1, 2, 3]])


@pytest.fixture
def pair():
    model = tiny.llama(vocabulary=64, layers=3)
    return model, tiny.first_layers(model)


def generate(model, ids=IDS, **options):
    report = {}
    text = model.generate(ids, custom_generate=inside.generate, statistics=report, **options)
    return text.tolist(), report


def test_default_tree_follows_estimated_costs(pair):
    model, draft = pair
    options = dict(draft_model=draft, do_sample=True, max_new_tokens=40, seed=5)
    one, report = generate(model, **options)
    costs = estimated(model, draft)
    assert report["tree"] == {"tree": "auto", "costs": costs} and report["draft"] == "model" and report["loop"] == "host"
    seconds = [a["seconds"] for a in costs["target"]]
    assert 0 < seconds[0] and seconds == sorted(seconds) and 0 < costs["rejected"] < 1
    assert report["tokens"] == 40 and report["draft_calls"] <= 16 * report["target_calls"] <= 16 * 40
    # Same output for a seed, and with the reported tree.
    assert generate(model, **options)[0] == generate(model, tree=report["tree"], **options)[0] == one
    assert generate(model, tree="auto:2", **options)[1]["tree"]["depth"] == 2
    # Greedy output is that of plain decoding.
    options = dict(draft_model=draft, do_sample=False, max_new_tokens=40)
    plain = model.generate(IDS, do_sample=False, max_new_tokens=40).tolist()
    assert generate(model, verifier="block", **options)[0] == plain


def test_estimated_costs_follow_the_sizes_of_the_models(pair):
    model, draft = pair
    ngrams, drafted = estimated(model, None), estimated(model, draft)
    cost = [one["draft"][0]["seconds"] for one in (ngrams, drafted)]
    assert cost[0] < 0.01 < cost[1] < 1 and ngrams["target"] == drafted["target"]
    assert estimated(model, model)["draft"][0]["seconds"] > cost[1]


@pytest.mark.parametrize("room", [20, 100])
def test_default_tree_fits_model_positions(room):
    """Learned positions are limited, and a prompt may fill most of them."""
    config = transformers.GPT2Config(
        vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=room, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config).eval()
    for length in (1, room - 6):
        ids = torch.randint(64, (1, length), generator=torch.Generator().manual_seed(length))
        settings = dict(do_sample=False, max_new_tokens=5, attention_mask=torch.ones_like(ids))
        for draft in ({}, {"draft_model": model}):
            assert generate(model, ids, **draft, **settings)[0] == model.generate(ids, **settings).tolist()


@pytest.mark.parametrize(("options", "tree"), [
    ({"paths": 4}, "paths:4,3"), ({"depth": 5}, "paths:2,5"), ({"depth": 5, "verifier": "block"}, "paths:1,5"),
    ({"paths": 3, "depth": 2}, "paths:3,2"), ({"tree": "2,1"}, "2,1"), ({"loop": "device"}, "paths:1,4"),
    ({"loop": "device", "depth": 2}, "paths:2,2"),
])  # fmt: skip
def test_partly_specified_trees(pair, options, tree):
    assert generate(pair[0], draft_model=pair[1], do_sample=False, max_new_tokens=8, **options)[1]["tree"] == tree


def test_tree_uses_scheme_of_verifier(pair):
    """Trees by name use the drafting scheme that the verifier needs."""
    settings = dict(draft_model=pair[1], do_sample=False, max_new_tokens=12)
    plain = pair[0].generate(IDS, do_sample=False, max_new_tokens=12).tolist()
    rates = dict(acceptance=[0.6, 0.2], draft_sampling=polydraft.Sampling())
    for verifier, tree, options in [
        ("walk:hub", "binary", {}), ("walk:hub", "3,2", {}), ("walk:hub", {"tree": "2,2"}, {}),
        ("traversal", "sequoia:4", rates), ("nested-priority", "sequoia:4", rates),
        ("walk:hub", polydraft.Tree("binary", verifier="walk:hub"), {}),
    ]:  # fmt: skip
        text, counts = generate(pair[0], verifier=verifier, tree=tree, **options, **settings)
        assert text == plain and counts["drafted"] > 0 and counts["tree"] == tree
    with pytest.raises(ValueError, match="give Engine, Tree or transformers.generate acceptance="):
        generate(pair[0], tree="sequoia:4", **settings)
    for options in ({}, {"tree": "paths:2,2"}):
        with pytest.raises(ValueError, match="acceptance= is what .* it has no meaning here"):
            generate(pair[0], acceptance=[0.6], **options, **settings)


@pytest.mark.parametrize("none", [None, "none"])
def test_verifier_none_is_plain_decoding(pair, none):
    model, draft = pair
    plain = model.generate(IDS, do_sample=False, max_new_tokens=12).tolist()
    for given in ({}, {"draft_model": draft}, {"draft_model": "ngram"}):
        text, counts = generate(model, verifier=none, do_sample=False, max_new_tokens=12, **given)
        assert text == plain and counts["target_calls"] == 12 and counts["draft_calls"] == counts["drafted"] == 0
        assert counts["draft"] == "none" and counts["tree"] is None
    written = '"none"' if none else "None"
    for option in (
        {"tree": "auto"}, {"paths": 2}, {"depth": 2}, {"acceptance": [0.5]}, {"draft_sampling": polydraft.Sampling()},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"{next(iter(option))}= has no meaning with verifier={written}"):
            generate(model, verifier=none, max_new_tokens=5, **option)
    with pytest.raises(ValueError, match="plain decoding runs on the host"):
        generate(model, verifier=none, loop="device", max_new_tokens=5)


def test_plain_decoding_distribution_by_enumeration():
    model = tiny.llama(vocabulary=3, layers=2, width=16, seed=4, scale=0.4)
    ids, got = torch.tensor([[0, 1]]), {}

    def experiment(rng):
        return tuple(generate(model, ids, do_sample=True, top_k=0, max_new_tokens=2, verifier="none", seed=rng)[0][0][2:])

    for p, text in polydraft.enumerate_decisions(experiment):
        got[text] = got.get(text, 0.0) + p
    distribution = distribution_of(model, ids, 2)
    assert max(abs(distribution[text] - got.get(text, 0.0)) for text in distribution) < 2e-6


@pytest.mark.parametrize(("draft", "got"), [
    (["ngram"], "got list"), (3, "got int"), ("self", "got 'self'"), ("nope", "got 'nope'"),
    ("none", "got 'none' \\(give verifier=\"none\""), ("auto", "got 'auto' \\(leave it out"),
])  # fmt: skip
def test_rejects_invalid_drafts(pair, draft, got):
    expected = 'polydraft: expected draft_model to be a causal model, .*"mtp" or "ngram", ' + got
    with pytest.raises(ValueError, match=expected):
        generate(pair[0], draft_model=draft, max_new_tokens=5)


def test_default_draft_is_ngrams(pair):
    model, ids = pair[0], torch.tensor([[5, 6, 7, 8] * 6])
    settings = dict(do_sample=False, max_new_tokens=60)
    plain = model.generate(ids, **settings).tolist()
    for options in ({}, {"draft_model": "ngram"}, {"paths": 2, "depth": 3}, {"tree": "paths:1,4", "repetition_penalty": 1.01}):
        with_penalty = model.generate(ids, **settings, repetition_penalty=1.01).tolist()
        text, report = generate(model, ids, **settings, **options)
        assert text == (with_penalty if "repetition_penalty" in options else plain)
        assert report["draft"] == "ngram" and report["loop"] == "host"
    assert report["accepted"] > 0
    with pytest.raises(ValueError, match="n-gram drafts run on the host"):
        generate(model, loop="device", **settings)


def test_ngram_output_distribution_by_enumeration():
    model = tiny.llama(vocabulary=3, layers=2, width=16, seed=4, scale=0.4)
    ids, got = torch.tensor([[0, 1, 0, 1, 2]]), {}

    def experiment(rng):
        text, report = generate(model, ids, do_sample=True, top_k=0, max_new_tokens=3, tree="paths:2,2", seed=rng)
        return tuple(text[0][5:]), report["accepted"]

    for p, (text, accepted) in polydraft.enumerate_decisions(experiment):
        got[text] = got.get(text, 0.0) + p
        got[None] = got.get(None, 0) + accepted
    assert got.pop(None) > 0
    distribution = distribution_of(model, ids, 3)
    assert max(abs(distribution[text] - got.get(text, 0.0)) for text in distribution) < 2e-6
