"""Defaults of `Engine` equal those of the program: drafts, trees, options and their errors."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import polydraft
import pytest
from polydraft import Engine, Sampling, TableModel
from polydraft.errors import InvalidInput, ModelError, Unsupported

ROOT = pathlib.Path(__file__).parents[3]
DEMO = ROOT / "demo"
TARGET, DRAFT = DEMO / "target", DEMO / "draft"
PROMPT, COLD = "impl Iterator for", Sampling(temperature=0)
SEVERAL = ("--verifier", "specinfer")

models = pytest.mark.skipif(not hasattr(polydraft, "use_threads"), reason="the wheel was built without models")
program = pytest.mark.skipif(
    not hasattr(polydraft._native, "_run_program"), reason="the wheel was built without the program"
)  # fmt: skip


def printed(*options, tokens=40, **environment):
    """Runs the program of this wheel and returns its JSON output."""
    line = [sys.executable, "-m", "polydraft", "generate", "--prompt", PROMPT, "--json", "--max-tokens", str(tokens), "--seed", "7"]
    done = subprocess.run([*line, *map(str, options)], capture_output=True, text=True, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def demo():
    return Engine(TARGET, DRAFT, acceptance=DEMO / "acceptance.json")


@models
@program
@pytest.mark.parametrize("options", [{}, {"dtype": "bf16"}, {"dtype": "q8_0"}, {"dtype": "q4_0"}])
def test_default_draft_equals_program_for_long_outputs(options):
    engine = Engine(TARGET, **options)
    line = [part for name, value in options.items() for part in (f"--{name}", value)]
    assert engine.draft == printed("--target", TARGET, "--tree", "paths:1,2", *line, tokens=300)["draft"] is not None
    assert Engine(TARGET, "auto", **options).draft == engine.draft
    plain = engine.generate(PROMPT, verifier=None, sampling=COLD, max_tokens=30)
    fast = engine.generate(PROMPT, sampling=COLD, max_tokens=30)
    assert fast.tokens == plain.tokens


@models
@pytest.mark.parametrize("none", [None, "none"])
def test_no_draft_is_plain_decoding(none):
    engine = Engine(TARGET, none)
    generation = engine.generate(PROMPT, max_tokens=10, seed=1)
    assert engine.draft is None and generation.statistics["target_calls"] == 10
    assert generation.tokens == Engine(TARGET, DRAFT).generate(PROMPT, verifier=None, max_tokens=10, seed=1).tokens


def test_tables_have_no_default_draft():
    table = TableModel({(): [0.5, 0.5]})
    for engine in (Engine(table), Engine(table, None), Engine(table, "none"), Engine(table, "auto")):
        assert engine.draft is None
        assert engine.generate([0], max_tokens=9, seed=1).statistics["target_calls"] == 9


@models
@program
@pytest.mark.parametrize(("verifier", "tree"), [
    ("nested-priority", "binary"), ("nested-priority", "3-ary"), ("nested-priority", "3,2"), ("traversal", "3,2"),
    ("walk:hub", "2,2"), ("walk:naive", "binary"), ("spectr", "delayed:1,2,3"), ("block", "paths:1,4"),
    ("nested-priority", "stop-below:0.2,paths:2,6"), ("nested-priority", "3,2/top-k"),
])  # fmt: skip
def test_trees_equal_program(demo, verifier, tree):
    """Trees by name use the drafting scheme that the verifier needs."""
    if "/" in tree:
        verifier = "walk:naive"
    by_program = printed("--target", TARGET, "--draft", DRAFT, "--verifier", verifier, "--tree", tree)
    here = demo.generate(PROMPT, verifier=verifier, tree=tree, max_tokens=40, seed=7)
    assert here.tokens == by_program["tokens"]
    assert here.statistics["nodes_per_call"] == by_program["stats"]["nodes_per_call"] > 0


@models
@program
def test_sequoia_trees_need_acceptances(demo):
    options = dict(tree="sequoia:4", max_tokens=40, seed=7)
    # The program knows the acceptances of the demo pair.
    by_program = printed("--tree", "sequoia:4", POLYDRAFT_DEMO=str(DEMO))
    here = demo.generate(PROMPT, **options)
    assert here.tokens == by_program["tokens"]
    assert here.statistics["nodes_per_call"] == by_program["stats"]["nodes_per_call"] > 3
    rates = json.loads((DEMO / "acceptance.json").read_text())["acceptance"]
    assert Engine(TARGET, DRAFT, acceptance=rates).generate(PROMPT, **options).tokens == here.tokens
    tree = polydraft.Tree("sequoia:4", verifier="nested-priority", acceptance=rates)
    assert Engine(TARGET, DRAFT).generate(PROMPT, **{**options, "tree": tree}).tokens == here.tokens
    with pytest.raises(InvalidInput, match="give Engine, Tree or transformers.generate acceptance="):
        Engine(TARGET, DRAFT).generate(PROMPT, **options)
    with pytest.raises(ModelError, match="nowhere"):
        Engine(TARGET, DRAFT, acceptance="nowhere.json")


def test_sequoia_trees_work_with_tables():
    target, draft = polydraft.random_tables(3, 3, seed=4)
    generation = Engine(target, draft, acceptance=[0.6, 0.2]).generate([0], tree="sequoia:4", max_tokens=30, seed=1)
    assert generation.statistics["nodes_per_call"] > 2


@pytest.mark.parametrize("none", [None, "none"])
def test_verifier_none_is_plain_decoding(none):
    engine = Engine(*polydraft.random_tables(3, 3, seed=4))
    plain = engine.generate([0], verifier=none, max_tokens=20, seed=1)
    assert plain.statistics["target_calls"] == 20
    assert plain.tokens == engine.generate([0], verifier=None, max_tokens=20, seed=1).tokens
    written = '"none"' if none else "None"
    for option in (dict(tree="binary"), dict(draft_sampling=Sampling(0.5))):
        with pytest.raises(InvalidInput, match=f"^{next(iter(option))}= has no meaning with verifier={written}$"):
            engine.generate([0], verifier=none, **option)


@models
@program
def test_several_samplings_draw_a_path_each(demo):
    by_program = printed("--target", TARGET, "--draft", DRAFT, *SEVERAL, "--tree", "distinct:2,3", "--draft-temperature", "0.6,1.2")
    samplings = [Sampling(0.6), Sampling(1.2)]
    for tree in ("distinct:2,3", None):
        here = demo.generate(PROMPT, verifier="specinfer", tree=tree, draft_sampling=samplings, max_tokens=40, seed=7)
        assert here.tokens == by_program["tokens"]


@models
@program
def test_several_drafts_draw_a_path_each():
    by_program = printed("--target", TARGET, "--draft", DRAFT, "--draft", "ngram", *SEVERAL)
    engine = Engine(TARGET, [DRAFT, "ngram"])
    assert engine.draft is not None
    for tree in ("distinct:2,3", None):
        here = engine.generate(PROMPT, verifier="specinfer", tree=tree, max_tokens=40, seed=7)
        assert here.tokens == by_program["tokens"]
    for tree in ("paths:2,3", "auto", "distinct:3,3"):
        with pytest.raises(InvalidInput, match="tree="):
            engine.generate(PROMPT, verifier="specinfer", tree=tree)
    plain = engine.generate(PROMPT, verifier=None, sampling=COLD, max_tokens=40).tokens
    assert engine.generate(PROMPT, verifier="walk:naive", sampling=COLD, max_tokens=40).tokens == plain
    options = dict(verifier="specinfer", runs=1000, first=2)
    assert polydraft.certify(engine, [PROMPT], **options).verdict == "pass"
    assert polydraft.certify(engine, [PROMPT], plant_fault=True, **options).verdict == "fail"


def two_drafts():
    target, one = polydraft.random_tables(3, 3, seed=4)
    return target, [one, polydraft.random_tables(3, 3, agreement=0.2, seed=9)[1]]


@pytest.mark.parametrize("verifier", ["specinfer", "walk:naive"])
def test_output_distribution_with_several_drafts(verifier):
    """Tests the first three tokens of many seeds against the table, and that a fault is detected."""
    target, drafts = two_drafts()
    engine = Engine(target, drafts)
    counts, drafted = np.zeros((3, 3, 3), dtype=int), 0
    for seed in range(3000):
        generation = engine.generate([], verifier=verifier, max_tokens=3, seed=seed)
        drafted += generation.statistics["nodes_per_call"]
        counts[tuple(generation.tokens)] += 1
    assert drafted > 3000
    exact = np.zeros((3, 3, 3))
    for text in np.ndindex(3, 3, 3):
        exact[text] = np.prod([target.distribution(text[:i]).probability(text[i]) for i in range(3)])
    assert polydraft.g_test(exact.ravel().tolist(), counts.ravel().tolist())[2] > 1e-3
    for tree in (None, "distinct:2,2"):
        options = dict(verifier=verifier, tree=tree)
        assert polydraft.certify(engine, [[0], [1, 2]], **options).verdict == "pass"
        assert polydraft.certify(engine, [[0], [1, 2]], plant_fault=True, **options).verdict == "fail"


def test_several_drafts_draw_from_their_own_distributions():
    """One draft never matches the target, the other is the target, so all of its drafts are accepted."""
    target, wrong = TableModel({(): [0.5, 0.5, 0, 0]}), TableModel({(): [0, 0, 0.5, 0.5]})
    for drafts in ([wrong, target], [target, wrong]):
        both = Engine(target, drafts).generate([0], verifier="specinfer", tree="distinct:2,1", max_tokens=200, seed=1)
        assert both.statistics["block_efficiency"] == 2
    # A list with one draft equals that draft.
    alone = Engine(target, [wrong]).generate([0], tree="paths:1,1", max_tokens=200, seed=1)
    assert alone.statistics["block_efficiency"] == 1


def test_rejects_invalid_draft_combinations():
    target, drafts = two_drafts()
    with pytest.raises(InvalidInput, match="draft=: expected at least one"):
        Engine(target, [])
    for name in ("none", "auto"):
        with pytest.raises(InvalidInput, match=f'draft="{name}" stands alone'):
            Engine(target, [drafts[0], name])
    engine = Engine(target, drafts)
    with pytest.raises(InvalidInput, match='tree="distinct:2,L": leave tree="paths:2,3" out'):
        engine.generate([0], tree="paths:2,3")
    with pytest.raises(Unsupported, match="verifiers for this tree: specinfer, walk:naive"):
        engine.generate([0])
    with pytest.raises(InvalidInput, match="draft_sampling: expected one, or 2"):
        engine.generate([0], draft_sampling=[Sampling()] * 3)
    with pytest.raises(InvalidInput, match='tree="distinct:2,3" draws each of 2 paths'):
        Engine(target, drafts[0]).generate([0], tree="distinct:2,3")


@pytest.mark.parametrize("verifier", ["nested-priority", "token", "block", "spectr", "traversal", "walk:naive"])
def test_a_seed_gives_the_same_output_with_the_default_tree(verifier):
    engine = Engine(*polydraft.random_tables(3, 3, seed=4))
    options = dict(verifier=verifier, max_tokens=50)
    one = engine.generate([0], seed=3, **options)
    assert one.tokens == engine.generate([0], seed=3, **options).tokens != engine.generate([0], seed=4, **options).tokens
    assert one.tokens == engine.generate([0], seed=3, tree="auto", **options).tokens


@models
def test_a_seed_decides_the_output_whatever_was_learned(tmp_path):
    """Outputs without a seed store costs; one with a seed is the same before and after, here and in another process."""
    line = (
        "import sys, polydraft\n"
        "engine = polydraft.Engine(sys.argv[1], sys.argv[2])\n"
        "seeded = lambda: engine.generate('impl Iterator for', seed=7, max_tokens=40).tokens\n"
        "tokens = [seeded()]\n"
        "for _ in range(3):\n"
        "    engine.generate('impl Iterator for', max_tokens=40)\n"
        "    tokens.append(seeded())\n"
        "assert tokens == tokens[:1] * 4, tokens\n"
        "print(tokens[0])\n"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "HOME": str(tmp_path), "LOCALAPPDATA": str(tmp_path)}

    def run():
        done = subprocess.run([sys.executable, "-c", line, TARGET, DRAFT], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    first = run()
    (kept,) = tmp_path.rglob("costs/*.json")
    costs = json.loads(kept.read_text())
    assert costs["costs"]["learned"]["plain_steps"] > 0
    costs["costs"]["draft"] = [{"tokens": 1, "seconds": 1e6}]
    kept.write_text(json.dumps(costs))
    assert run() == first


@models
def test_sessions_with_a_seed_do_not_depend_on_each_other(demo):
    alone = [demo.generate(PROMPT, seed=seed, max_tokens=30).tokens for seed in range(3)]
    sessions = [demo.session(PROMPT, seed=seed, max_tokens=30) for seed in range(3)]
    while unfinished := [session for session in sessions if not session.is_done]:
        demo.step(unfinished)
    assert [session.close().tokens for session in sessions] == alone


@models
@pytest.mark.parametrize(("published", "sampling"), [
    (None, (0.7, None, 0.95)), ({"do_sample": False}, (0.7, None, 0.95)), ({"do_sample": True}, (1.0, None, 1.0)),
    ({"do_sample": True, "top_k": 20}, (1.0, 20, 1.0)),
])  # fmt: skip
def test_sampling_of_conversations(tmp_path, published, sampling):
    target = shutil.copytree(TARGET, tmp_path / "target")
    (target / "generation_config.json").unlink()
    if published is not None:
        (target / "generation_config.json").write_text(json.dumps(published))
    found = Engine(target, None).chat_sampling
    assert (found.temperature, found.top_k, found.top_p) == sampling


@models
def test_errors_name_keywords(tmp_path):
    table = tmp_path / "one.ngrams"
    for options, expected in [
        (dict(draft="self:q4_0", draft_dtype="q8_0"), 'draft="self:q4_0" and draft_dtype="q8_0" contradict'),
        (dict(draft="ngram", draft_dtype="q8_0"), "draft_dtype="),
        (dict(draft="ngram", draft_vocabulary=100), "draft_vocabulary="),
        (dict(draft=DRAFT, draft_layers=[1]), "draft_layers="),
        (dict(draft=DRAFT, corpus=ROOT / "README.md"), "corpus="),
        (dict(draft="ngram", mix_ngrams=True), "mix_ngrams="),
        (dict(draft=["ngram", DRAFT], mix_ngrams=True), "mix_ngrams="),
        (dict(draft=DRAFT, learn=table), "learn="),
        (dict(draft=[DRAFT, "self"]), 'draft="self" must be the first'),
        (dict(draft="self", dtype="q4_0"), 'draft="ngram"'),
        (dict(draft=None, draft_dtype="q8_0"), "draft_dtype=: expected a draft, got draft=None"),
        (dict(draft=None, corpus=ROOT / "README.md"), "corpus=: expected a draft, got draft=None"),
        (dict(draft=None, learn=table), "learn=: expected a draft, got draft=None"),
        (dict(draft="none", learn=table), 'learn=: expected a draft, got draft="none"'),
        (dict(draft="none", draft_dtype="q8_0"), 'draft_dtype=: expected a draft, got draft="none"'),
        (dict(draft=["ngram", "ngram"], draft_dtype="q8_0"), "n-grams have none"),
        (dict(draft=["ngram", "ngram"], draft_layers=[1]), "n-grams have none"),
    ]:
        with pytest.raises(InvalidInput) as refused:
            Engine(TARGET, **options)
        message = str(refused.value)
        assert expected in message and "--" not in message, message
    for options, expected in [
        (dict(cache_type="q1"), "f16"), (dict(dtype="q3"), "q8"), (dict(draft_dtype="q3"), "q8"),
        (dict(draft_vocabulary=0), "vocabulary"),
    ]:  # fmt: skip
        with pytest.raises((InvalidInput, ModelError), match=expected) as refused:
            Engine(TARGET, DRAFT, **options)
        assert "--" not in str(refused.value)
    with pytest.raises(InvalidInput, match="sequoia:16"):
        Engine(TARGET, DRAFT).generate("x", tree="oak")


@pytest.mark.parametrize("option", [
    {"dtype": "bf16"}, {"draft_dtype": "bf16"}, {"corpus": "a"}, {"learn": "a"}, {"mix_ngrams": True}, {"draft_vocabulary": 2},
    {"draft_layers": [1]}, {"cache_type": "f16"},
])  # fmt: skip
def test_rejects_model_options_for_tables(option):
    target, draft = polydraft.random_tables(3, 3, seed=4)
    for drafts in (draft, None, "ngram", [draft, "ngram"]):
        with pytest.raises(InvalidInput, match=f"{next(iter(option))}=: expected a target with weights, got a table"):
            Engine(target, drafts, **option)


@models
def test_checks_tables_mixed_with_models():
    """Also in a list, each draft is checked by its own kind."""
    table = TableModel({(): [0.5, 0.5]})
    for draft in (table, [table, "ngram"], [DRAFT, table]):
        with pytest.raises(InvalidInput, match="share a vocabulary"):
            Engine(TARGET, draft)
    with pytest.raises(InvalidInput, match='draft="self": expected the files of a model'):
        Engine(TARGET, ["self", table])
    with pytest.raises(InvalidInput, match="learn=: expected a draft with weights, got a table"):
        Engine(TARGET, table, learn="a.ngrams")
    target = TableModel({(): [1 / 3] * 3})
    with pytest.raises(InvalidInput, match="share a vocabulary"):
        Engine(target, DRAFT, draft_dtype="bf16")
    with pytest.raises(InvalidInput, match="q8"):
        Engine(target, DRAFT, draft_dtype="q3")
    for draft in ("mtp", "self:q4_0"):
        with pytest.raises(InvalidInput, match=f'draft="{draft}": expected the files of a model'):
            Engine(target, draft)
    # The draft is missing, and the error names no other role.
    for draft in ("nope", pathlib.Path("nope")):
        with pytest.raises(ModelError, match='draft="nope": expected a model directory') as refused:
            Engine(target, draft)
        assert "target" not in str(refused.value)
    with pytest.raises(ModelError, match="loading the draft model"):
        Engine(target, ROOT / "docs")


@models
def test_learned_ngrams_are_stored_and_used(tmp_path):
    table = tmp_path / "use.ngrams"
    options = dict(sampling=COLD, max_tokens=40, tree="paths:1,3")
    plain = Engine(TARGET, None).generate("pub fn ", **options).tokens
    before = Engine(TARGET, "ngram").generate("pub fn ", **options).statistics["target_calls"]
    for draft in ("auto", "ngram"):
        engine = Engine(TARGET, draft, learn=table)
        assert engine.generate("pub fn ", **options).tokens == plain
        engine.store()
        engine.store()
        assert "ngram" in engine.draft
    assert table.stat().st_size > 100
    generation = Engine(TARGET, table).generate("pub fn ", **options)
    assert generation.tokens == plain and generation.statistics["target_calls"] < before


@models
def test_drafts_from_corpus(tmp_path):
    corpus = tmp_path / "corpus.txt"
    options = dict(sampling=COLD, max_tokens=40, tree="paths:1,3")
    own = Engine(TARGET, None).generate("pub fn ", **options)
    corpus.write_text("pub fn " + own.text)
    calls = [
        Engine(TARGET, "ngram", **how).generate("pub fn ", **options).statistics["target_calls"]
        for how in ({}, {"corpus": corpus})
    ]
    assert calls[1] < calls[0] <= 40
    # With a corpus, n-grams are the default draft.
    assert Engine(TARGET, corpus=corpus).draft == Engine(TARGET, "ngram", corpus=corpus).draft


@models
def test_options_of_drafts_take_effect():
    """Options change the drafts but never the output at temperature 0."""
    options = dict(max_tokens=60, tree="paths:2,3", seed=1)

    def accepted(**how):
        engine = Engine(TARGET, DRAFT, **how)
        cold = {**options, "sampling": COLD}
        plain = engine.generate(PROMPT, verifier=None, sampling=COLD, max_tokens=60, seed=1)
        assert engine.generate(PROMPT, **cold).tokens == plain.tokens
        return engine.generate(PROMPT, **options).statistics["accepted_by_position"]

    plain = accepted()
    assert accepted(mix_ngrams=False) == plain != accepted(mix_ngrams=True)
    assert accepted(draft_vocabulary=Engine(TARGET, None).vocabulary) == plain != accepted(draft_vocabulary=80)
    assert accepted(draft_dtype="q4_0") != plain
    # Half as many bytes for each number.
    logits = [Engine(TARGET, None, cache_type=kind).logits(PROMPT) for kind in (None, "f32", "f16")]
    assert (logits[0] == logits[1]).all() and (logits[0] != logits[2]).any()
    assert np.abs(logits[0] - logits[2]).max() < 0.05


@models
def test_offline_never_contacts_hub(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ModelError, match="offline|not downloaded before"):
        Engine("org/never-seen", offline=True)
    assert Engine(TARGET, DRAFT, offline=True).vocabulary > 0


def test_error_names_verifiers_for_tree():
    target, draft = polydraft.random_tables(3, 3, seed=4)
    with pytest.raises(Unsupported, match="verifier block.*verifiers for this tree: .*nested-priority") as refused:
        Engine(target, draft).generate([0], verifier="block", tree="paths:2,2")
    assert 'trees for block, for example: tree="paths:1,3"' in str(refused.value)
