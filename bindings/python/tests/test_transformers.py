"""Inside transformers: same distribution as plain `generate`, by enumeration on tiny models, and same output at temperature 0."""

import itertools
import os

import numpy as np
import polydraft
import pytest
from polydraft.errors import Unsupported

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import polydraft.transformers as inside  # noqa: E402
import tiny  # noqa: E402
from polydraft.transformers import scoring  # noqa: E402

EXHAUSTIVE = os.environ.get("POLYDRAFT_EXHAUSTIVE") == "1"
TREES = ["paths:3,3", "3,2,1", "delayed:2,2,2", "2,2/top-k", "2,1,1/without-replacement", "auto"]


@pytest.fixture(scope="module")
def pair():
    model = tiny.llama(vocabulary=64, layers=3)
    return model, tiny.first_layers(model)


def speculate(model, draft, ids, **options):
    """Uses several paths, independent of measured costs."""
    options = {"paths": 2, "depth": 3, **options}
    return model.generate(ids, custom_generate=inside.generate, assistant_model=draft, **options)


def test_llama_supports_tree_masks(pair):
    assert all(inside.takes_trees(model) for model in pair)
    assert inside.takes_trees(tiny.llama(attn_implementation="eager"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_detects_node_with_wrong_mask(dtype, monkeypatch):
    """A fault changes logits more than rounding, also in bf16, for both forms of tree scoring."""
    from polydraft.transformers.static import model as static

    def model():
        return tiny.llama(vocabulary=64, layers=3).to(getattr(torch, dtype))

    assert inside.takes_trees(model()) and static.takes_static(model())
    run, table = scoring.Trees._run, static.StaticModel.table

    def seeing(self, tokens, visible, positions, keep):
        if visible is not None:
            visible[-1, :] = True
        return run(self, tokens, visible, positions, keep)

    monkeypatch.setattr(scoring.Trees, "_run", seeing)
    monkeypatch.setattr(static.StaticModel, "table", lambda self, sees: table(self, sees | (sees.sum(1, keepdim=True) > 1)))
    assert not inside.takes_trees(model()) and not static.takes_static(model())


@pytest.mark.parametrize("tree", TREES)
def test_tree_scores_equal_path_scores(pair, tree):
    """Compares three steps, with the cache cut back in between, with passes over single paths."""
    model, random, rng = pair[0], np.random.default_rng(5), polydraft.Rng(2)
    trees, rows = scoring.Trees(model, range(30)), scoring.Rows(model, range(30))
    with torch.no_grad():
        for _ in range(3):
            draft = polydraft.Draft(tree)
            while nodes := draft.frontier():
                draft.grow(random.normal(size=(len(nodes), 64)).astype(np.float32), rng)
            nodes = range(len(draft))
            levels = [[node for node in nodes if draft.depths[node] == depth] for depth in range(draft.depths.max() + 1)]
            one = torch.cat([trees.logits(draft, level) for level in levels])
            other = rows.logits(draft, [node for level in levels for node in level])
            assert (one - other).abs().max() < 1e-4 * other.abs().max()
            verifier = "walk:naive" if "/" in tree else "nested-priority"
            outcome = polydraft.verify(draft, other[np.argsort(sum(levels, []))].contiguous(), rng, verifier=verifier)
            trees.commit(draft, outcome)
            rows.commit(draft, outcome)
            assert trees.sequence == rows.sequence and trees.cache.get_seq_length() == trees.cached


@pytest.mark.parametrize("mode", ["trees", "rows"])
@pytest.mark.parametrize(("verifier", "tree"), [
    ("nested-priority", "paths:4,4"), ("token", "paths:1,4"), ("block", "paths:1,5"), ("spectr", "paths:3,2"),
    ("greedy-block", "paths:2,3"), ("traversal", "3,2,1/without-replacement"), ("walk:naive", "3,2,2/top-k"),
    ("nested-priority", "auto"),
])  # fmt: skip
def test_greedy_output_equals_plain_generate(pair, verifier, tree, mode, monkeypatch):
    model, draft = pair
    if mode == "rows":
        monkeypatch.setattr(scoring, "takes_trees", lambda model: False)
    sampling = polydraft.Sampling(temperature=0.7)
    for seed in range(2):
        ids = torch.randint(64, (1, 5 + 20 * seed), generator=torch.Generator().manual_seed(seed))
        plain = model.generate(ids, do_sample=False, max_new_tokens=40)
        ours = speculate(
            model,
            draft,
            ids,
            do_sample=False,
            max_new_tokens=40,
            verifier=verifier,
            tree=tree,
            draft_sampling=sampling,
            seed=3,
        )
        assert ours.tolist() == plain.tolist()


@pytest.mark.parametrize("options", [
    {"repetition_penalty": 1.4}, {"no_repeat_ngram_size": 2}, {"min_new_tokens": 10, "eos_token_id": [3, 5, 7, 11]},
    {"eos_token_id": list(range(0, 64, 5)), "pad_token_id": 0}, {"bad_words_ids": [[3], [4, 5]]}, {"use_cache": False},
    {"max_length": 12}, {"forced_eos_token_id": 9, "eos_token_id": 9}, {"cache_implementation": "static"},
    {"suppress_tokens": list(range(30))}, {"return_dict_in_generate": True}, {"prefill_chunk_size": 4},
])  # fmt: skip
def test_logits_processors_and_limits(pair, options):
    """Processors that depend on previous tokens run at every node, and limits end the sequence at the right token."""
    model, draft = pair
    ids = torch.tensor([[1, 2, 3, 4, 5, 6, 7]])
    settings = {"do_sample": False, **({"max_new_tokens": 30} if "max_length" not in options else {}), **options}
    plain = model.generate(ids, **settings)
    ours = speculate(model, draft, ids, paths=3, depth=3, draft_sampling=polydraft.Sampling(), seed=1, **settings)
    if "return_dict_in_generate" in options:
        plain, ours = plain.sequences, ours.sequences
    assert ours.tolist() == plain.tolist()


def test_batches_streamers_and_criteria(pair):
    model, draft = pair
    ids = torch.tensor([[0, 0, 1, 2], [5, 6, 7, 8], [0, 9, 9, 1]])
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1], [0, 1, 1, 1]])
    settings = dict(attention_mask=mask, do_sample=False, max_new_tokens=25, eos_token_id=[3, 17, 40], pad_token_id=0)
    plain = model.generate(ids, **settings)
    assert speculate(model, draft, ids, seed=1, **settings).tolist() == plain.tolist()

    one, other = tiny.Streamer(), tiny.Streamer()
    criteria = transformers.StoppingCriteriaList([tiny.Stop()])
    settings = dict(do_sample=False, max_new_tokens=40, stopping_criteria=criteria)
    plain = model.generate(ids[1:2], streamer=one, **settings)
    ours = speculate(model, draft, ids[1:2], streamer=other, **settings)
    assert ours.tolist() == plain.tolist() and one.put_ == other.put_ == ours[0].tolist() and other.ended == 1


def distribution_of(model, ids, length, process=None):
    """Returns the exact distribution of the next tokens of plain sampling."""
    vocabulary, exact = model.config.vocab_size, {}
    token_lists = list(itertools.product(range(vocabulary), repeat=length))
    rows = torch.cat([ids.expand(len(token_lists), -1), torch.tensor(token_lists)], dim=-1)
    with torch.no_grad():
        logits = model(rows).logits
    for row, text in zip(range(len(token_lists)), token_lists):
        p = 1.0
        for index, token in enumerate(text):
            here = ids.shape[1] + index
            scores = logits[row : row + 1, here - 1]
            scores = process(rows[row : row + 1, :here], scores) if process else scores
            p *= scores.double().softmax(-1)[0, token].item()
        exact[text] = p
    return exact


@pytest.mark.parametrize(("verifier", "tree", "length", "vocabulary", "options"), [
    ("nested-priority", "paths:2,1", 2, 3, {}),
    # A vocabulary of three would take five minutes.
    ("nested-priority", "paths:2,2", 3, 3 if EXHAUSTIVE else 2, {}),
    ("spectr", "paths:2,1", 2, 3, {}),
    ("block", "paths:1,2", 3, 3, {}),
    ("traversal", "2,1/without-replacement", 3, 3, {}),
    ("nested-priority", "paths:2,1", 2, 3, {"temperature": 0.6, "top_k": 2, "repetition_penalty": 1.7}),
])  # fmt: skip
def test_output_distribution_by_enumeration(verifier, tree, length, vocabulary, options):
    """Enumerates every draw and decision of `model.generate`: its distribution equals that of plain sampling."""
    model = tiny.llama(vocabulary=vocabulary, layers=2, width=16, seed=4, scale=0.4)
    draft, ids = tiny.first_layers(model), torch.tensor([[0, 1]])

    def experiment(rng):
        text = speculate(
            model, draft, ids, do_sample=True, max_new_tokens=length, verifier=verifier, tree=tree, seed=rng,
            **{"top_k": 0, **options},
        )  # fmt: skip
        return tuple(text[0, 2:].tolist())

    process = None
    if options:
        process = transformers.LogitsProcessorList([
            transformers.RepetitionPenaltyLogitsProcessor(options["repetition_penalty"]),
            transformers.TemperatureLogitsWarper(options["temperature"]),
            transformers.TopKLogitsWarper(options["top_k"]),
        ])  # fmt: skip
    expected, got = distribution_of(model, ids, length, process), {}
    runs = polydraft.enumerate_decisions(experiment)
    for p, text in runs:
        got[text] = got.get(text, 0.0) + p
    assert sum(got.values()) == pytest.approx(1)
    assert max(abs(expected[text] - got.get(text, 0.0)) for text in expected) < 2e-6, len(runs)


def g_test_of(model, draft, ids, runs, length, **options):
    exact = distribution_of(model, ids, length)
    counts = dict.fromkeys(exact, 0)
    torch.manual_seed(1)
    for _ in range(runs):
        text = speculate(model, draft, ids, do_sample=True, top_k=0, max_new_tokens=length + 3, **options)
        counts[tuple(text[0, ids.shape[1] :][:length].tolist())] += 1
    return polydraft.g_test(list(exact.values()), list(counts.values()))


def test_output_distribution_by_g_test(monkeypatch):
    model = tiny.llama(vocabulary=8, layers=2, seed=1)
    draft, ids = tiny.first_layers(model), torch.tensor([[1, 2, 3]])
    statistic, freedom, p = g_test_of(model, draft, ids, 500, 2, paths=4, depth=3)
    assert p > 1e-3 and freedom > 12, (statistic, freedom, p)
    # The same test detects a mask that lets nodes attend to siblings and descendants.
    assert inside.takes_trees(model) and inside.takes_trees(draft)
    right = scoring.Trees._run

    def wrong(self, tokens, visible, positions, keep):
        return right(self, tokens, None if visible is None else np.ones_like(visible), positions, keep)

    monkeypatch.setattr(scoring.Trees, "_run", wrong)
    assert g_test_of(model, draft, ids, 500, 2, paths=4, depth=3)[2] < 1e-6


def test_seeds_and_statistics(pair):
    model, draft = pair
    ids, counts = torch.tensor([[1, 2, 3]]), {}
    options = dict(do_sample=True, max_new_tokens=30, paths=4, depth=3)
    one = speculate(model, draft, ids, seed=5, statistics=counts, **options)
    assert one.tolist() == speculate(model, draft, ids, seed=5, **options).tolist()
    torch.manual_seed(3)
    other = speculate(model, draft, ids, **options)
    torch.manual_seed(3)
    assert other.tolist() == speculate(model, draft, ids, **options).tolist() != one.tolist()
    assert counts["tokens"] == 30 and counts["block_efficiency"] == 30 / counts["target_calls"] > 1
    both = speculate(model, draft, ids.expand(2, -1), seed=5, **options)
    assert both[0].tolist() == one[0].tolist() != both[1].tolist()
    assert model.generate(ids, custom_generate=inside.generate, draft_model=draft, seed=5, **options).tolist() == one.tolist()


def test_draft_with_other_vocabulary_size(pair):
    """Models with the same tokenizer and differently padded vocabularies."""
    model = pair[0]
    ids = torch.tensor([[1, 2, 3]])
    plain = model.generate(ids, do_sample=False, max_new_tokens=15)
    for vocabulary in (60, 70):
        draft = tiny.llama(vocabulary=vocabulary, layers=1, seed=8)
        assert speculate(model, draft, ids, do_sample=False, max_new_tokens=15).tolist() == plain.tolist()


def test_models_without_tree_masks_use_rows():
    """Sliding windows and ALiBi use a row for each path, with the same output."""
    models = [
        transformers.MistralForCausalLM(transformers.MistralConfig(
            vocab_size=32, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, sliding_window=6, bos_token_id=None, eos_token_id=None, initializer_range=0.3,
        )),
        transformers.BloomForCausalLM(transformers.BloomConfig(
            vocab_size=32, hidden_size=32, n_layer=2, n_head=4, bos_token_id=None, eos_token_id=None, initializer_range=0.3,
        )),
    ]  # fmt: skip
    ids = torch.tensor([[1, 2, 3, 4]])
    for model in models:
        model.eval()
        assert not inside.takes_trees(model)
        plain = model.generate(ids, do_sample=False, max_new_tokens=20)
        draft = tiny.llama(vocabulary=32, layers=1, seed=9)
        assert speculate(model, draft, ids, do_sample=False, max_new_tokens=20).tolist() == plain.tolist()


def test_rejects_unsupported_arguments(pair):
    model, draft = pair
    ids = torch.tensor([[1, 2, 3]])
    with pytest.raises(Unsupported, match="a single path"):
        speculate(model, draft, ids, verifier="block", max_new_tokens=5)
    with pytest.raises(ValueError, match="output_scores"):
        speculate(model, draft, ids, max_new_tokens=5, return_dict_in_generate=True, output_scores=True)
    with pytest.raises(ValueError, match="got inputs_embeds"):
        embeddings = model.get_input_embeddings()(ids)
        model.generate(inputs_embeds=embeddings, custom_generate=inside.generate, draft_model=draft, max_new_tokens=5)
    with pytest.raises(ValueError, match="one beam"):
        speculate(model, draft, ids, max_new_tokens=5, num_beams=2)
