"""Decode loop: same output as the Rust program for a seed, exact for every verifier, with models and tables."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import polydraft
import pytest
from polydraft import Engine, Sampling, TableModel
from polydraft.errors import InternalError, InvalidInput, ModelError, Unsupported

ROOT = pathlib.Path(__file__).parents[3]
DEMO = ROOT / "demo"
PROGRAM = [os.environ["POLYDRAFT"]] if "POLYDRAFT" in os.environ else [sys.executable, "-m", "polydraft"]
HAS_PROGRAM = "POLYDRAFT" in os.environ or hasattr(polydraft._native, "_run_program")
HAS_MODELS = hasattr(polydraft, "use_threads")

models = pytest.mark.skipif(not HAS_MODELS, reason="the wheel was built without models")


def tables():
    return polydraft.random_tables(3, 3, seed=4)


@pytest.fixture(scope="module")
def demo():
    if not HAS_MODELS:
        pytest.skip("the wheel was built without models")
    return Engine(DEMO / "target", DEMO / "draft")


def test_generates_from_tables():
    engine = Engine(*tables())
    generation = engine.generate([0], tree="paths:3,3", max_tokens=50, seed=3)
    assert len(generation.tokens) == len(generation.origins) == 50 and generation.finish == "max-tokens"
    assert set(generation.origins) <= {"accepted", "correction", "bonus"}
    statistics = generation.statistics
    assert statistics["tokens"] == 50 and statistics["block_efficiency"] == 50 / statistics["target_calls"]
    assert generation.tokens == engine.generate([0], tree="paths:3,3", max_tokens=50, seed=3).tokens
    assert generation.tokens != engine.generate([0], tree="paths:3,3", max_tokens=50, seed=4).tokens
    assert engine.generate([0], max_tokens=0).tokens == []


def test_sessions_by_iteration_and_batched_steps():
    engine = Engine(*tables())
    # An adaptive tree drafts fewer tokens when other sequences share the pass.
    alone = [engine.generate([0], tree="paths:2,3", max_tokens=20, seed=seed).tokens for seed in range(5)]
    sessions = [engine.session([0], tree="paths:2,3", max_tokens=20, seed=seed) for seed in range(5)]
    while not all(session.is_done for session in sessions):
        engine.step([session for session in sessions if not session.is_done])
    assert [session.tokens for session in sessions] == alone
    assert [list(session) for session in sessions] == alone
    assert sessions[0].close().tokens == alone[0] == sessions[0].close().tokens
    with engine.session([0], tree="paths:2,3", max_tokens=None, seed=0) as session:
        firsts = [token for token, _ in zip(session, range(20))]
    assert firsts == alone[0] and session.finish == "stopped" and session.engine is engine
    with pytest.raises(InvalidInput, match="once, got one twice"):
        engine.step([sessions[0], sessions[0]])
    with pytest.raises(InvalidInput, match="another"):
        Engine(*tables()).step([sessions[0]])


def test_sessions_are_readable_during_a_step():
    """Readers of the tokens and other Python threads do not wait for the step."""
    engine = Engine(*polydraft.random_tables(200, 1, seed=1))
    sessions = [engine.session([0], tree="paths:8,8", max_tokens=10_000, seed=seed) for seed in range(40)]
    engine.step(sessions)
    reads, begun, done = [], threading.Event(), threading.Event()

    def steps():
        for _ in range(5):
            begun.set()
            engine.step(sessions)
        done.set()

    worker = threading.Thread(target=steps)
    before = [len(session.tokens) for session in sessions]
    worker.start()
    begun.wait()
    start = time.perf_counter()
    while not done.is_set():
        one = sessions[len(reads) % len(sessions)]
        # A step may end between two reads of a session, so the later read is not shorter.
        reads.append((len(one.tokens) <= len(one.origins), one.text, one.finish, one.is_done))
        time.sleep(0.001)
    took = time.perf_counter() - start
    worker.join()
    assert took > 0.05, "too short for a measurement"
    # A reader that waited for steps would read about five times.
    assert len(reads) > 20, f"{len(reads)} reads in {took:.3f} s"
    assert set(reads) == {(True, "", None, False)}
    assert all(len(session.tokens) >= tokens + 5 for session, tokens in zip(sessions, before))


def test_output_distribution_by_g_test():
    """Tests the first three tokens of many seeds against the table."""
    target, draft = tables()
    engine = Engine(target, draft)
    counts = np.zeros((3, 3, 3), dtype=int)
    for seed in range(3000):
        counts[tuple(engine.generate([], tree="2,1", max_tokens=3, seed=seed).tokens)] += 1
    exact = np.zeros((3, 3, 3))
    for text in np.ndindex(3, 3, 3):
        exact[text] = np.prod([target.distribution(text[:i]).probability(text[i]) for i in range(3)])
    assert polydraft.g_test(exact.ravel().tolist(), counts.ravel().tolist())[2] > 1e-3


def test_certificates_can_fail():
    engine = Engine(*tables())
    assert polydraft.certify(engine, [[0], [1, 2]], tree="paths:2,3").verdict == "pass"
    wrong = polydraft.certify(engine, [[0], [1, 2]], tree="paths:2,3", plant_fault=True)
    assert wrong.verdict == "fail" and wrong.p_value < 1e-6
    assert polydraft.certify(engine, [[0]], runs=3).verdict == "not-enough-data"
    cold = polydraft.certify(engine, [[0]], sampling=Sampling(temperature=0))
    assert (cold.verdict, cold.greedy_equal, cold.freedom) == ("pass", 1, 0)


CERTIFIED = """
import signal
import polydraft

engine = polydraft.Engine(*polydraft.random_tables(3, 3, seed=4))
alone = polydraft.certify(engine, [[0]], runs=2000)
sessions = [engine.session([0], seed=seed) for seed in range(50)]
calls = []

def handler(number, frame):
    # Drops a session and uses the engine during the test.
    if sessions:
        sessions.pop()
    calls.append(engine.generate([0], max_tokens=3, seed=1).tokens)

signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
certificate = polydraft.certify(engine, [[0]], runs=2000)
signal.setitimer(signal.ITIMER_REAL, 0)
assert certificate.statistic == alone.statistic and certificate.verdict == "pass"
assert len(calls) > 3 and len(sessions) < 50, calls

def interrupt(number, frame):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, 0.05)
try:
    polydraft.certify(engine, [[0]], runs=10**9)
except KeyboardInterrupt:
    print("interrupted", engine.generate([0], max_tokens=3, seed=1).tokens == calls[0])
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")
def test_signal_handlers_during_certify():
    """Runs in a subprocess, because a deadlock would last forever."""
    printed = subprocess.run([sys.executable, "-c", CERTIFIED], capture_output=True, text=True, timeout=120)
    assert printed.stdout == "interrupted True\n", printed.stderr


def test_rejects_invalid_arguments():
    target, draft = tables()
    with pytest.raises(InvalidInput, match="share a vocabulary"):
        Engine(target, TableModel({(): [0.5, 0.5]}))
    with pytest.raises(Unsupported, match="tokenizer"):
        Engine(target).generate("text")
    with pytest.raises(InvalidInput, match="below 3"):
        Engine(target).generate([3])
    with pytest.raises(Unsupported, match="verifier block"):
        Engine(target, draft).generate([0], verifier="block", tree="paths:2,2")
    with pytest.raises(InvalidInput, match="verifier: expected one of"):
        Engine(target, draft).generate([0], verifier="nobody")
    with pytest.raises(TypeError, match="depth"):
        Engine(target, draft).generate([0], depth=3)
    with pytest.raises(TypeError, match="device"):
        Engine(target, draft, device="cuda")
    with pytest.raises(ModelError if HAS_MODELS else Unsupported, match="nowhere"):
        Engine("nowhere")


@pytest.mark.parametrize(("options", "kind", "expected"), [
    (dict(temperature=1), TypeError, r"Engine\.generate\(\) .*'temperature': give it in sampling=Sampling\(temperature="),
    (dict(max_token=1), TypeError, r"Engine\.generate\(\) .*'max_token': expected one of .*max_tokens"),
    (dict(seed=-1), InvalidInput, "seed: expected an integer from 0 to 2\\^64 - 1, got -1"),
    (dict(seed=2**64), InvalidInput, "seed: expected"),
    (dict(seed=0.5), TypeError, "seed: expected an integer .*, got float"),
    (dict(max_tokens="5"), TypeError, "max_tokens: expected .*, got str"),
    (dict(stop=5), TypeError, "stop: expected text, or a list of texts, got int"),
    (dict(max_new_tokens=5), TypeError, "its name here is max_tokens"),
    (dict(max_tokens=-2), InvalidInput, "max_tokens: expected at least 0, or None or -1"),
    (dict(end_tokens=[-1]), InvalidInput, "end_tokens: expected token ids"),
])  # fmt: skip
def test_errors_name_arguments_of_generate(options, kind, expected):
    engine = Engine(*tables())
    with pytest.raises(kind, match=expected):
        engine.generate([0], **options)
    with pytest.raises(kind, match=expected.replace("generate", "session")):
        engine.session([0], **options)


def test_errors_name_other_arguments():
    for call, expected in [
        (lambda: polydraft.Rng(-1), "seed: expected"),
        (lambda: polydraft.random_tables(2, 2, seed=-1), "seed: expected"),
        (lambda: polydraft.certify(Engine(*tables()), [[0]], seed=-1), "seed: expected"),
        (lambda: Sampling(top_k=-1), "top_k: expected at least 1, or None"),
        (lambda: Engine(*tables()).generate([{"role": "user", "content": "a"}]), "prompt: .* engine.encode_chat"),
        (lambda: Engine(*tables()).generate(3), "prompt: expected text or token ids, got int"),
        (lambda: Engine(""), "target: expected a path or a hub id, got an empty one"),
    ]:
        with pytest.raises(InvalidInput, match=expected):
            call()


def test_representation_names_models():
    assert repr(Engine(*tables())) == "Engine('table', draft='table', vocabulary=3)"
    assert repr(Engine(tables()[0], None)) == "Engine('table', draft=None, vocabulary=3)"


def test_panic_raises_internal_error(capfd):
    with pytest.raises(InternalError, match="on purpose"):
        polydraft._native._panic()
    assert issubclass(InternalError, Exception)


@models
@pytest.mark.skipif(not HAS_PROGRAM, reason="the wheel was built without the program")
@pytest.mark.parametrize("verifier", ["nested-priority", "spectr", "traversal"])
def test_same_output_as_program_for_a_seed(demo, verifier):
    prompt, settings = "impl Iterator for", ["--paths", "3", "--depth", "4", "--seed", "7", "--max-tokens", "60"]
    printed = subprocess.run(
        [*PROGRAM, "generate", "--prompt", prompt, "--json", "--verifier", verifier, "--temperature", "0.9", *settings],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    printed = json.loads(printed)
    here = demo.generate(prompt, verifier=verifier, tree="paths:3,4", seed=7, max_tokens=60, sampling=Sampling(temperature=0.9))
    assert here.tokens == printed["tokens"] and here.text == printed["text"]
    assert here.statistics["block_efficiency"] == printed["stats"]["block_efficiency"]


@models
def test_model_engine(demo):
    tokens = demo.encode("fn main() {")
    assert demo.decode(tokens) == "fn main() {" and demo.logits("fn main() {").shape == (demo.vocabulary,)
    cold = Sampling(temperature=0)
    plain = demo.generate(tokens, verifier=None, sampling=cold, max_tokens=40)
    fast = demo.generate("fn main() {", tree="paths:2,3", sampling=cold, max_tokens=40)
    assert fast.tokens == plain.tokens and fast.text == plain.text
    assert fast.statistics["target_calls"] < plain.statistics["target_calls"] == 40
    texts = set()
    for stop, limit in [(["\n"], None), ("\n", -1)]:
        with demo.session("let", stop=stop, seed=1, max_tokens=limit) as session:
            list(session)
        assert session.finish in ("stop-string", "end-token", "context") and "\n" not in session.text
        texts.add(session.text)
    assert len(texts) == 1
    tree = {"tree": "auto", "costs": demo.costs("fn main() {", sampling=cold)}
    assert 0 < tree["costs"]["rejected"] < 1
    assert tree["costs"]["target"][0]["seconds"] > 0
    assert demo.generate(tokens, tree=tree, sampling=cold, max_tokens=40).tokens == plain.tokens


@models
@pytest.mark.parametrize("draft", ["self", "self:q4_0", "ngram"])
def test_drafts_without_a_second_model(draft):
    engine = Engine(DEMO / "target", draft)
    plain = engine.generate("fn", verifier=None, sampling=Sampling(temperature=0), max_tokens=30).tokens
    assert engine.generate("fn", sampling=Sampling(temperature=0), max_tokens=30).tokens == plain


@models
def test_quantized_copies_are_cached_in_folder(tmp_path):
    folder, cold = tmp_path / "copies", Sampling(temperature=0)

    def written(copies):
        return Engine(DEMO / "target", "self:q4_0", copies=copies).generate("fn", sampling=cold, max_tokens=20).tokens

    sequences = [written(folder)]
    (cached,) = folder.iterdir()
    assert cached.suffix == ".polydraft"
    cached_bytes = cached.read_bytes()
    sequences += [written(str(folder)), written(False)]
    assert [file.read_bytes() for file in folder.iterdir()] == [cached_bytes] and sequences == [sequences[0]] * 3
    with pytest.raises(InvalidInput, match="copies: cannot write"):
        written(cached)
    with pytest.raises(TypeError, match="copies"):
        written(3.5)


@models
def test_certify_passes_for_models(demo):
    assert polydraft.certify(demo, ["fn main() {"], runs=1000, first=2).verdict == "pass"
    assert polydraft.certify(demo, ["fn main() {"], runs=1000, first=2, plant_fault=True).verdict == "fail"


@models
def test_text_and_messages(demo):
    assert repr(demo).startswith("Engine('target', draft='") and repr(demo).endswith("vocabulary=4096, context=512)")
    pairs = [("user", "fn")]
    assert demo.encode_chat(pairs) == demo.encode_chat([{"role": "user", "content": "fn"}])
    for messages, expected in [
        ({"role": "user", "content": "fn"}, "messages: expected a list of messages, each .*, got dict"),
        ("fn", "messages: expected a list of messages, each .*, got str"),
        (["fn"], "messages: expected a list of messages, each .*, got str"),
        ([{"role": "user"}], "messages: .* got one without content"),
        ([{"role": "user", "content": "", "name": "x"}], "messages: expected the keys role and content, got 'name'"),
        ([("user", 3)], "messages: content: expected text, got int"),
        ([("nobody", "x")], "role"),
    ]:
        with pytest.raises(InvalidInput, match=expected):
            demo.encode_chat(messages)
    for call in (demo.generate, demo.encode, demo.logits, demo.session):
        with pytest.raises(InvalidInput, match="(prompt|text): expected text that UTF-8 can encode, got a lone surrogate"):
            call("fn \ud800")


@models
@pytest.mark.parametrize("threads", [0, -1, 1025])
def test_rejects_numbers_of_threads(threads):
    with pytest.raises(InvalidInput, match=f"threads: expected from 1 to 1024, got {threads}"):
        polydraft.use_threads(threads)


@models
def test_loading_errors(tmp_path):
    (tmp_path / "empty.gguf").write_bytes(b"")
    with pytest.raises(ModelError, match="target model.*empty.gguf: an empty file"):
        Engine(tmp_path / "empty.gguf")
    with pytest.raises(InvalidInput, match="q8"):
        Engine(DEMO / "target", dtype="q3")
    with pytest.raises(ModelError, match="config.json|directory"):
        Engine(ROOT / "docs")
    with pytest.raises(InvalidInput, match="fewer bits"):
        Engine(DEMO / "target", "self:file")
