"""`polydraft.train`: each part against a direct computation, interrupted runs, and drafting with a trained head."""

import json
import pathlib
import subprocess
import sys
from dataclasses import replace

import polydraft
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from polydraft.train import estimate  # noqa: I001
from polydraft.train.attention import Joined, materialized
from polydraft.train.block import BlockHead, BlockShape
from polydraft.train.head import Head, Shape, rotate, rotations
from polydraft.train.learning import Learner, Plan
from polydraft.train.losses import DECAY, Figures, Output, UnrolledLoss, acceptance, divergence, rejection
from polydraft.train.export import export
from polydraft.train.norm import rms_norm
from polydraft.train.run import Refused, begin_with
from polydraft.train.text import Folder
from safetensors.torch import load_file, save_file

ROOT = pathlib.Path(__file__).parents[3]
TARGET = ROOT / "demo/target"
SHAPE = Shape(32, 48, 4, 2, 8, 300.0, 1e-5, (1, 4, 8))
models = pytest.mark.skipif(not hasattr(polydraft, "use_threads"), reason="the wheel was built without models")


def noise(*dims, seed=0):
    return torch.randn(dims, generator=torch.Generator().manual_seed(seed))


def test_attention_equals_materialized_scores():
    for steps in (1, 2, 4):
        made = [[noise(2, 4, 37, 16, seed=10 * i + kind).requires_grad_() for i in range(steps)] for kind in (1, 2)]
        query = noise(2, 4, 37, 16, seed=99).requires_grad_()
        inputs = [query, *made[0], *made[1]]
        expected = materialized(query, made[0], made[1])
        found = Joined.apply(query, *made[0], *made[1])
        assert (found - expected).abs().max() < 1e-5
        weights = noise(2, 4, 37, 16, seed=7)
        wanted = torch.autograd.grad((expected * weights).sum(), inputs)
        for want, got in zip(wanted, torch.autograd.grad((found * weights).sum(), inputs)):
            assert (want - got).abs().max() < 1e-4 * want.abs().max()


def test_norm_and_gradients_equal_torch():
    x, weight, by = noise(3, 5, 32, seed=1).requires_grad_(), noise(32, seed=2).requires_grad_(), noise(3, 5, 32, seed=3)
    expected, found = torch.nn.functional.rms_norm(x, (32,), weight, 1e-2), rms_norm(x, weight, 1e-2)
    assert (expected - found).abs().max() < 1e-6
    wanted = torch.autograd.grad((expected * by).sum(), (x, weight))
    for want, got in zip(wanted, torch.autograd.grad((found * by).sum(), (x, weight))):
        assert (want - got).abs().max() < 1e-5


def step_by_step(head, states, embedded, index, steps):
    """Computes one position of one sample step by step, with lists as caches."""
    shape = head.shape

    def rms(x, name):
        return x / (x.square().mean(-1, keepdim=True) + shape.rms_norm_eps).sqrt() * head[name]

    cos, sin = rotations(shape, 64, torch.device("cpu"))

    def project(joined, name, position):
        x = (head[name] @ joined).view(-1, shape.head_dim)
        return x if "v_proj" in name else rotate(x, cos[position], sin[position])

    def layer(number, token, state, position, cache):
        name = shape.layer(number)
        if number == 0:
            joined = [rms(embedded[token], name + "input_layernorm.weight"), rms(state, name + "hidden_norm.weight")]
        else:
            joined = [rms(state, name + "input_layernorm.weight")]
        joined, attention = torch.cat(joined), name + "self_attn."
        cache.append([project(joined, f"{attention}{x}_proj.weight", position) for x in "kv"])
        query = project(joined, attention + "q_proj.weight", position)
        seen = []
        for i, own in enumerate(query):
            kv = i * shape.num_key_value_heads // shape.num_attention_heads
            scores = torch.stack([own @ key[kv] for key, _ in cache]) / shape.head_dim**0.5
            seen.append(sum(w * value[kv] for w, (_, value) in zip(scores.softmax(0), cache)))
        x = state + head[attention + "o_proj.weight"] @ torch.cat(seen)
        inner = rms(x, name + "post_attention_layernorm.weight")
        gate, up = (head[f"{name}mlp.{part}_proj.weight"] @ inner for part in ("gate", "up"))
        return x + head[name + "mlp.down_proj.weight"] @ (gate * gate.sigmoid() * up)

    caches, found = [[] for _ in range(shape.num_hidden_layers)], []

    def through(token, state, position):
        for number, cache in enumerate(caches):
            state = layer(number, token, state, position, cache)
        return state

    for i in range(index + 1):
        state = through(i + 1, head["fc.weight"] @ states[i], i)
    found.append(state)
    for step in range(1, steps):
        found.append(through(index + 1 + step, found[-1], index + step))
    return [rms(state, "norm.weight") for state in found]


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_unrolled_head_equals_single_steps(layers):
    head = Head(replace(SHAPE, num_hidden_layers=layers), torch.float32, noise(32, seed=5).abs() + 0.5)
    with torch.no_grad():
        for i, weight in enumerate(head.parameters()):
            weight += 0.1 * noise(*weight.shape, seed=i)
        states, embedded = noise(2, 14, 96, seed=3), noise(2, 14, 32, seed=4)
        found = head.unroll(states, embedded, 4)
        for text in range(2):
            for index in (0, 3, 9):
                for got, want in zip(found, step_by_step(head, states[text], embedded[text], index, 4)):
                    assert (got[text, index] - want).abs().max() < 1e-5


def block_at(head, states, embedded, index, steps):
    """Computes the block at one position of one sample, position by position, with materialized scores."""
    shape = head.shape
    heads, shared, width = shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim
    cos, sin = rotations(shape, 64, torch.device("cpu"))

    def rms(x, name):
        return x / (x.square().mean(-1, keepdim=True) + shape.rms_norm_eps).sqrt() * head[name + ".weight"]

    def project(x, name, position):
        own = (head[name + "_proj.weight"] @ x).view(-1, width)
        return own if name.endswith("v") else rotate(rms(own, name + "_norm"), cos[position], sin[position])

    known = [rms(head["fc.weight"] @ states[i], "hidden_norm") for i in range(index + 1)]
    rows = [embedded[index + 1]] + [head.mask] * (shape.block_size - 1)
    for number in range(shape.num_hidden_layers):
        name = f"layers.{number}."
        normed = [rms(x, name + "input_layernorm") for x in rows]
        both = [*enumerate(known), *((index + 1 + b, x) for b, x in enumerate(normed))]
        cache = [[project(x, f"{name}self_attn.{part}", at) for part in "kv"] for at, x in both]
        for b, x in enumerate(normed):
            seen = []
            for i, query in enumerate(project(x, name + "self_attn.q", index + 1 + b)):
                kv = i * shared // heads
                weights = (torch.stack([query @ key[kv] for key, _ in cache]) / width**0.5).softmax(0)
                seen.append(sum(w * value[kv] for w, (_, value) in zip(weights, cache)))
            y = rows[b] + head[name + "self_attn.o_proj.weight"] @ torch.cat(seen)
            inner = rms(y, name + "post_attention_layernorm")
            gate, up = (head[f"{name}mlp.{part}_proj.weight"] @ inner for part in ("gate", "up"))
            rows[b] = y + head[name + "mlp.down_proj.weight"] @ (gate * gate.sigmoid() * up)
    return [rms(x, "norm") for x in rows[1 : 1 + steps]]


@pytest.mark.parametrize("layers", [1, 2])
def test_block_head_equals_single_positions(layers):
    shape = BlockShape(32, 48, 4, 2, 8, 300.0, 1e-5, layers, 5, 3, (0, 3, 7))
    head = BlockHead(shape, torch.float32, noise(32, seed=5).abs() + 0.5, noise(32, seed=6))
    with torch.no_grad():
        for i, weight in enumerate(head.parameters()):
            weight += 0.1 * noise(*weight.shape, seed=i)
        states, embedded = noise(2, 14, 96, seed=3), noise(2, 14, 32, seed=4)
        for steps in (4, 2):
            found = head.unroll(states, embedded, steps)
            assert len(found) == steps
            for text, index in ((0, 0), (1, 3), (0, 9)):
                for got, want in zip(found, block_at(head, states[text], embedded[text], index, steps)):
                    assert (got[text, index] - want).abs().max() < 1e-5
    # All trained parameters have a gradient.
    sum(x.square().sum() for x in head.unroll(states, embedded, 4)).backward()
    assert all(weight.grad is not None and weight.grad.abs().max() > 0 for weight in head.parameters())


def test_gradients_of_the_loss_are_autograds():
    """Tests the likeness and single-draft losses against their formulas, and several drafts by finite differences."""
    rows, width, vocabulary, steps = 40, 16, 24, 3
    output = Output(torch.arange(vocabulary), noise(vocabulary, width, seed=1), 0.7, 5.0)
    last, normed = noise(rows, width, seed=2), [noise(rows, width, seed=3 + i).requires_grad_() for i in range(steps)]
    logits = torch.tanh(last @ output.matrix.T * 0.7 / 5) * 5
    log_sums = torch.logsumexp(torch.cat([logits, noise(rows, 1, seed=8)], 1), 1)
    p = (logits - log_sums[:, None]).exp()
    assert (p.sum(1) < 1).all()

    def likeness(q):
        share = p / p.sum(1, keepdim=True)
        return (share * (share / q).log()).sum()

    def rejected(q):
        return (1 - torch.minimum(p, q).sum(1)).sum()

    for loss, value in ((divergence, likeness), (rejection(1), rejected)):
        wanted = sum(value((own @ output.matrix.T).softmax(1)) * DECAY**step for step, own in enumerate(normed))
        wanted = torch.autograd.grad(wanted, normed)
        figures = Figures()
        found = torch.autograd.grad(UnrolledLoss.apply(output, last, log_sums, loss, figures, *normed), normed)
        for want, got in zip(wanted, found):
            assert (want - got).abs().max() < 1e-5
        assert figures.rows == rows
        shown = figures.means()["acceptance"]
        for one, own in zip(shown, normed):
            assert abs(one - torch.minimum(p, (own @ output.matrix.T).softmax(1)).sum(1).mean()) < 1e-5

    logits = (normed[0] @ output.matrix.T).detach().double()
    for drafts in (2, 4):
        slope = rejection(drafts)(p.double(), logits.softmax(1))
        off = 0
        for token in range(vocabulary):
            moved = torch.zeros_like(logits)
            moved[:, token] = 1e-4
            high, low = (acceptance(p.double(), (logits + sign * moved).softmax(1), drafts) for sign in (1, -1))
            off += ((low - high) / 2e-4 - slope[:, token]).abs().gt(1e-3).sum().item()
        # The loss is not smooth where the best set changes.
        assert off * 50 < rows * vocabulary, off


def test_acceptance_increases_with_drafts():
    p, q = noise(30, 20, seed=1).softmax(1) * 0.9, noise(30, 20, seed=2).softmax(1)
    one, two, four = (acceptance(p, q, drafts) for drafts in (1, 2, 4))
    assert (one - torch.minimum(p, q).sum(1)).abs().max() < 1e-6
    assert (one < two).all() and (two < four).all() and (four <= p.sum(1) + 1e-6).all()


def small_folder(path, sequences=70, hidden=32):
    """Writes random samples of a target whose last state, and so its distribution, depends on the previous token only."""
    generator = torch.Generator().manual_seed(1)
    model = dict(
        hidden_size=hidden, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=8, rope_theta=300.0,
        rms_norm_eps=1e-5, vocab_size=24, max_position_embeddings=64, logit_scale=1.0, logit_softcap=None, tokens=24, tied=True,
        end_tokens=[3], layers=[1, 4, 8], group=32, kinds=["chat"],
    )  # fmt: skip
    (path / "model.json").write_text(json.dumps(model))
    embedding = torch.randn(24, hidden, generator=generator).bfloat16()
    save_file({"embedding": embedding, "norm": torch.ones(hidden)}, path / "model.safetensors")
    lengths = torch.randint(16, 30, (sequences,), generator=generator)
    count = int(lengths.sum())
    tokens = torch.randint(0, 24, (count,), generator=generator)
    states = torch.randint(-127, 128, (count, 4 * hidden), generator=generator, dtype=torch.int8)
    states[:, -hidden:] = states[:24, -hidden:][tokens]
    scales = torch.full((count, 4), 0.01, dtype=torch.float16)
    last = states[:, -hidden:].float() * scales[0, 0].float()
    sums = torch.logsumexp(last @ embedding.float().T, 1)
    shard = {
        "tokens": tokens.int(), "lengths": lengths.int(), "kinds": torch.zeros(sequences, dtype=torch.uint8),
        "taught": torch.ones(count, dtype=torch.uint8), "log_sums": sums.roll(1), "states": states, "scales": scales,
    }  # fmt: skip
    save_file(shard, path / "shard-0000.safetensors")


def learner(path, tokens=4000):
    plan = Plan(tokens, vocabulary=20, steps=3, batch=4, pass_samples=2)
    return Learner(Folder(path), plan, torch.device("cpu"), torch.float32)


def test_resumed_run_equals_uninterrupted_run(tmp_path):
    small_folder(tmp_path)
    uninterrupted, first = learner(tmp_path), learner(tmp_path)
    for _ in range(6):
        uninterrupted.step()
    for _ in range(3):
        first.step()
    first.save(tmp_path / "checkpoint.pt")
    second = learner(tmp_path)
    second.load(tmp_path / "checkpoint.pt")
    for _ in range(3):
        second.step()
    assert (second.steps, second.tokens, second.visits) == (uninterrupted.steps, uninterrupted.tokens, uninterrupted.visits)
    for name, weight in uninterrupted.head.named().items():
        assert torch.equal(weight, second.head[name]), name
    assert uninterrupted.check() == second.check()


def test_samples_are_used_equally_often_except_held_out(tmp_path):
    small_folder(tmp_path)
    trainer = learner(tmp_path)
    for _ in range(11):
        trainer.step()
    held_out = set(trainer.folder.held_out())
    assert len(held_out) == 48
    assert {trainer.visits[i] for i in held_out} == {0}
    assert {trainer.visits[i] for i in range(70) if i not in held_out} == {2}


def test_training_increases_acceptance(tmp_path):
    small_folder(tmp_path)
    trainer = learner(tmp_path, 12000)
    before = trainer.check().means()["acceptance"]
    while trainer.tokens < 12000:
        trainer.step()
    assert all(new > old + 0.02 for old, new in zip(before, trainer.check().means()["acceptance"]))


def test_estimated_speedup():
    costs = estimate.Costs((1.0, 1.1, 1.3, 1.6), 0.05)
    gain, length = costs.gain([0.5])
    assert (gain, length) == (pytest.approx(max(1.5 / 1.15, 1.75 / 1.4, 1.875 / 1.75)), 1)
    assert costs.gain([0.0]) == (1.0, 0)
    assert costs.gain([0.9, 0.1])[1] == 1
    passes = [{"tokens": 1, "seconds": 1.0}, {"tokens": 4, "seconds": 4.0}]
    assert [estimate.at(passes, n) for n in (1, 2, 4, 9)] == [1, 2, 4, 4]


def command(*options, code=0):
    done = subprocess.run(
        [sys.executable, "-m", "polydraft.train", *map(str, options)], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == code, done.stderr
    return done


@models
@pytest.mark.parametrize("form, tokens", [("eagle3", 1600), ("block", 1500)])
def test_command_trains_usable_head(tmp_path, form, tokens):
    out, work = tmp_path / "head", tmp_path / "work"
    small = ["--longest", 64, "--shard", tokens // 2, "--together", 8, "--precision", "f32", "--threads", 1, "--check", 800]
    small += ["--form", form]
    line = ["--target", TARGET, "--out", out, "--work", work, "--tokens", tokens, "--draft-vocabulary", 512, *small]
    done = command(*line, "--passes", 1, "--json")
    points = [json.loads(line) for line in done.stdout.splitlines()]
    assert points[-1]["tokens"] >= tokens and len(points[-1]["acceptance"]) == 4
    assert "a draft of the head costs" in done.stderr and "accepted at T = 1" in done.stderr
    stored = load_file(out / "model.safetensors")
    assert stored["d2t"].shape == (512,) and stored["fc.weight"].dtype == torch.bfloat16
    assert ("layers.0.self_attn.q_norm.weight" in stored) == (form == "block")
    engine = polydraft.Engine(TARGET, str(out))
    generation = engine.generate(engine.encode("fn main() {"), tree="paths:1,3", max_tokens=60, seed=1)
    plain = polydraft.Engine(TARGET, None).generate(engine.encode("fn main() {"), max_tokens=60, sampling=polydraft.Sampling(0.0))
    greedy = engine.generate(engine.encode("fn main() {"), tree="paths:1,3", max_tokens=60, sampling=polydraft.Sampling(0.0))
    assert "accepted" in generation.origins and plain.tokens == greedy.tokens
    if form == "eagle3":
        # Resumes with more passes over the same samples.
        more = command("--out", out, "--work", work, "--only", "learn", "--passes", 2, "--json", *small)
        assert json.loads(more.stdout.splitlines()[-1])["tokens"] >= 2 * tokens
    # A run with another form cannot resume.
    other = ["--form", "eagle3" if form == "block" else "block"]
    refused = command("--out", out, "--work", work, "--only", "learn", *small, *other, code=1).stderr
    assert "expected a head of the form" in refused


@models
def test_command_rejects_invalid_arguments(tmp_path):
    assert "--target: expected the model" in command("--out", tmp_path, code=1).stderr
    assert "expected samples, found none" in command("--out", tmp_path, "--only", "learn", code=1).stderr
    missing = command("--out", tmp_path, "--target", tmp_path / "nowhere", code=1).stderr
    assert "loading the target" in missing and "Traceback" not in missing
    assert "expected at least 1" in command("--out", tmp_path, "--batch", 0, code=2).stderr


def test_training_starts_from_existing_head(tmp_path):
    small_folder(tmp_path)
    first, second = learner(tmp_path), learner(tmp_path)
    first.step()
    export(first.head, first.output.tokens, first.output.matrix, first.folder.model, tmp_path / "head")
    begin_with(second.head, tmp_path / "head")
    for name, weight in first.head.named().items():
        assert torch.equal(weight.bfloat16().float(), second.head[name]), name
    stored = load_file(tmp_path / "head/model.safetensors")
    assert torch.equal(stored["d2t"] + torch.arange(20), first.output.tokens)
    assert torch.equal(stored["lm_head.weight"].float(), first.output.matrix)
    other = Head(Shape(32, 40, 4, 2, 8, 300.0, 1e-5, (1, 4, 8)), torch.float32, None)
    with pytest.raises(Refused, match=r"gate_proj.weight: expected the shape \[40, 32\], got \[48, 32\]"):
        begin_with(other, tmp_path / "head")
