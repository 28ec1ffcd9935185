"""Device loop, run on a CPU: outputs and distributions equal those of plain `generate`."""

import copy
import json

import polydraft
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

import polydraft.transformers as inside  # noqa: E402
import tiny  # noqa: E402
from polydraft import gpu  # noqa: E402
from polydraft.train import head as trained  # noqa: E402
from polydraft.transformers.static import decode, loop, model, step, takes_static  # noqa: E402
from polydraft.transformers.static.eagle import EagleHead  # noqa: E402
from polydraft.transformers.static.head_drafter import HeadDrafter  # noqa: E402
from polydraft.transformers.static.model_drafter import ModelDrafter  # noqa: E402
from polydraft.transformers.static.step import Form  # noqa: E402
from static_families import COMMON, FAMILIES, tiny_model  # noqa: E402
from test_transformers import distribution_of  # noqa: E402

pytestmark = pytest.mark.usefixtures("without_kernels")

METHODS = [
    ("nested-priority", 4, 4), ("token", 1, 4), ("block", 1, 5), ("specinfer", 2, 3), ("spectr", 3, 2), ("walk:priority", 3, 3),
    ("nested-priority", 3, 1), ("nested-priority", 1, 4),
]  # fmt: skip


@pytest.fixture(scope="module")
def pair():
    model = tiny.llama(vocabulary=64, layers=3)
    return model, tiny.first_layers(model)


def speculate(target, draft, ids, **options):
    options = {"paths": 2, "depth": 3, **options}
    return target.generate(ids, custom_generate=inside.generate, draft_model=draft, loop="device", **options)


def head_of(target, folder, says=None):
    """Writes a head with random weights for a tiny Llama to a folder."""
    config = target.config
    shape = trained.Shape(
        config.hidden_size, 2 * config.hidden_size, 4, 2, config.hidden_size // 4, 10_000.0, 1e-6, (0, 1, 1), 1
    )  # fmt: skip
    made = trained.Head(shape, torch.float32, None, seed=3)
    tensors = {name: weight.detach() for name, weight in made.named().items()}
    if says is not None:
        tensors["d2t"] = torch.tensor(says) - torch.arange(len(says))
    folder.mkdir()
    safetensors.save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**shape.config(), "vocab_size": config.vocab_size}))
    return made


@pytest.mark.parametrize(("verifier", "paths", "depth"), METHODS)
def test_greedy_output_equals_plain_generate(pair, verifier, paths, depth, monkeypatch):
    """Covers prefill in chunks, growing caches, and drafts that are often rejected."""
    monkeypatch.setattr(loop, "SLOT_INCREMENT", 32)
    monkeypatch.setattr(model, "PREFILL_CHUNK", 8)
    for length in (1, 2, 25):
        ids = torch.randint(64, (1, length), generator=torch.Generator().manual_seed(length))
        plain = pair[0].generate(ids, do_sample=False, max_new_tokens=40)
        statistics = {}
        ours = speculate(
            *pair, ids, do_sample=False, max_new_tokens=40, verifier=verifier, paths=paths, depth=depth, seed=3,
            draft_sampling=polydraft.Sampling(temperature=0.7), statistics=statistics,
        )  # fmt: skip
        assert ours.tolist() == plain.tolist()
        assert statistics["loop"] == "device" and 0 < statistics["accepted"] < statistics["drafted"]


@pytest.mark.parametrize(("verifier", "paths", "depth"), METHODS)
def test_accepts_all_drafts_of_the_target_itself(pair, verifier, paths, depth):
    """Tests the contents of both caches: with one wrong key, some token would be rejected."""
    ids, statistics = torch.tensor([[1, 2, 3], [4, 5, 6]]), {}
    settings = dict(do_sample=True, top_k=0, max_new_tokens=60, verifier=verifier, paths=paths, depth=depth, seed=1)
    speculate(pair[0], pair[0], ids, statistics=statistics, **settings)
    assert statistics["accepted"] >= statistics["target_calls"] * depth - 2


@pytest.mark.parametrize("drafter", ["model", "head"])
def test_step_does_not_synchronize_with_host(pair, drafter, tmp_path, monkeypatch):
    """A step transfers no data from or to the host, so a CUDA graph can capture it."""
    draft = pair[1]
    if drafter == "head":
        head_of(pair[0], tmp_path / "head", list(range(40)))
        draft = tmp_path / "head"

    def refused(*args, **kwargs):
        raise AssertionError("a step synchronizes with the host")

    def guarded(function):
        def run(*args):
            with pytest.MonkeyPatch.context() as patch:
                for name in ("tensor", "as_tensor", "nonzero"):
                    patch.setattr(torch, name, refused)
                for name in ("item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__int__", "__float__"):
                    patch.setattr(torch.Tensor, name, refused)
                return function(*args)

        return run

    for name in ("score", "commit"):
        monkeypatch.setattr(step.Step, name, guarded(getattr(step.Step, name)))
    for kind in (HeadDrafter, ModelDrafter):
        monkeypatch.setattr(kind, "level", guarded(kind.level))
    statistics = {}
    speculate(pair[0], draft, torch.tensor([[1, 2, 3]]), do_sample=True, max_new_tokens=20, statistics=statistics)
    assert statistics["passes"] > 3


def test_batches_end_tokens_criteria_and_streamers(pair):
    ids = torch.tensor([[0, 0, 1, 2], [5, 6, 7, 8], [0, 9, 9, 1]])
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1], [0, 1, 1, 1]])
    settings = dict(attention_mask=mask, do_sample=False, max_new_tokens=25, eos_token_id=[3, 17, 40], pad_token_id=0)
    plain = pair[0].generate(ids, **settings)
    statistics = {}
    assert speculate(*pair, ids, seed=1, statistics=statistics, **settings).tolist() == plain.tolist()
    assert statistics["passes"] < statistics["target_calls"]

    one, other = tiny.Streamer(), tiny.Streamer()
    settings = dict(do_sample=False, max_new_tokens=40, stopping_criteria=transformers.StoppingCriteriaList([tiny.Stop()]))
    plain = pair[0].generate(ids[1:2], streamer=one, **settings)
    ours = speculate(*pair, ids[1:2], streamer=other, **settings)
    assert ours.tolist() == plain.tolist() and one.put_ == other.put_ == ours[0].tolist() and other.ended == 1


def test_same_output_alone_and_in_batch(pair):
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    settings = dict(do_sample=True, max_new_tokens=30, paths=3, depth=3)
    both = speculate(*pair, ids, seed=7, **settings)
    assert both[1:].tolist() == speculate(*pair, ids[1:], seed=8, **settings).tolist()
    assert both.tolist() == speculate(*pair, ids, seed=7, **settings).tolist()
    inside.release(pair[0])
    assert both.tolist() == speculate(*pair, ids, seed=7, **settings).tolist()


def test_cached_loop_is_reused_only_for_same_models_and_settings(pair):
    """The next call of the same form reuses buffers; other weights, settings and copies do not."""
    target = copy.deepcopy(pair[0])
    ids, other = torch.tensor([[1, 2, 3]]), tiny.llama(vocabulary=64, layers=1, seed=9)
    kept = []
    for draft, options in [(pair[1], {}), (pair[1], {"seed": 2}), (other, {}), (other, {"paths": 3}), (other, {"verifier": "specinfer"})]:
        plain = target.generate(ids, do_sample=False, max_new_tokens=20)
        ours = speculate(target, draft, ids, do_sample=False, max_new_tokens=20, **options)
        assert ours.tolist() == plain.tolist()
        kept.append(target._polydraft.loop)
    assert kept[0] is kept[1] and len({id(one) for one in kept}) == 4
    assert copy.deepcopy(target)._polydraft.loop is None
    # Like enabling an adapter.
    target.model.layers[1].is_adapted = True
    speculate(target, other, ids, do_sample=False, max_new_tokens=20, verifier="specinfer")
    assert target._polydraft.loop is not kept[-1]
    target.load_state_dict(tiny.llama(vocabulary=64, layers=3, seed=4).state_dict())
    plain = target.generate(ids, do_sample=False, max_new_tokens=20)
    assert speculate(target, other, ids, do_sample=False, max_new_tokens=20).tolist() == plain.tolist()
    target.model.layers[0].mlp.up_proj.weight = torch.nn.Parameter(torch.zeros_like(target.model.layers[0].mlp.up_proj.weight))
    plain = target.generate(ids, do_sample=False, max_new_tokens=20)
    assert speculate(target, other, ids, do_sample=False, max_new_tokens=20).tolist() == plain.tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_model_families_equal_plain_generate(family):
    """Sequences longer than windows; also experts and latent attention."""
    made = tiny_model(family)
    assert takes_static(made)
    ids = torch.randint(64, (1, 15), generator=torch.Generator().manual_seed(1))
    statistics = {}
    plain = made.generate(ids, do_sample=False, max_new_tokens=30)
    ours = speculate(made, made, ids, do_sample=False, max_new_tokens=30, paths=3, depth=3, statistics=statistics)
    assert ours.tolist() == plain.tolist()
    assert statistics["accepted"] >= (statistics["target_calls"] - 1) * 3


def test_recurrent_models_use_host_loop():
    torch.manual_seed(1)
    config = transformers.Lfm2Config(**{**COMMON, "layer_types": ["conv", "full_attention", "conv"]})
    made = transformers.Lfm2ForCausalLM(config).eval()
    assert not takes_static(made)
    ids, statistics = torch.tensor([[1, 2, 3]]), {}
    options = dict(custom_generate=inside.generate, draft_model=made, do_sample=False, max_new_tokens=6)
    ours = made.generate(ids, statistics=statistics, **options)
    assert ours.tolist() == made.generate(ids, do_sample=False, max_new_tokens=6).tolist() and statistics["loop"] == "host"
    with pytest.raises(ValueError, match="Lfm2ForCausalLM does not score a tree over a cache of slots"):
        made.generate(ids, loop="device", **options)


@pytest.mark.parametrize(("options", "reason"), [
    ({"repetition_penalty": 1.4}, "RepetitionPenaltyLogitsProcessor depends on previous tokens"),
    ({"tree": "3,2,1"}, "the tree is '3,2,1'"), ({"tree": "paths:0,3"}, "paths: expected from 1"),
    ({"verifier": "traversal"}, "the verifier is none of"), ({"verifier": "block", "paths": 2}, "block verifies one path"),
    ({"seed": polydraft.Rng(1)}, "an Rng works in CPU memory"), ({"loop": "gpu"}, "expected loop to be auto, host or device"),
])  # fmt: skip
def test_rejects_what_the_device_cannot_decode(pair, options, reason):
    with pytest.raises(ValueError, match=reason):
        speculate(*pair, torch.tensor([[1, 2]]), max_new_tokens=5, **options) if "loop" not in options else pair[0].generate(
            torch.tensor([[1, 2]]), custom_generate=inside.generate, draft_model=pair[1], max_new_tokens=5, **options
        )


@pytest.mark.parametrize("says", [None, list(range(0, 64, 3))])
def test_head_drafts_equal_trainer_forward_pass(tmp_path, says):
    """Over several steps, every draft distribution equals that of the trainer's unrolled forward pass."""
    target = tiny.llama(vocabulary=64, layers=3)
    made = head_of(target, tmp_path / "head", says)
    seen = []

    class Watched(HeadDrafter):
        def level(self, level, given, context):
            logits = super().level(level, given, context)
            seen.append((level, given.clone(), logits))
            return logits

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "HeadDrafter", Watched)
        form = Form("nested-priority", 2, 3, gpu.Sampling(), gpu.Sampling(), None, None)
        prompt = [5, 9, 1, 33]
        with torch.no_grad():
            found = decode(target, EagleHead(tmp_path / "head", target), form, [prompt], [1], lambda _, text: len(text) > 24)
    assert found.accepted > 0
    context, at = len(prompt) - 1, 0
    with torch.no_grad():
        text = torch.tensor([found.sequences[0]])
        kept = target(text, output_hidden_states=True).hidden_states
        states = torch.cat([kept[i] for i in (0, 1, 1)], -1)
        while at < len(seen):
            one = 0 if at == 0 else int((text[0] == -1).sum())
            assert seen[at][0] == 0 and one == 0
            root = int(seen[at][1][0, 1])
            while int(text[0, context]) != root:
                context += 1
            for path in range(2):
                drafted = [int(seen[at + level][1][0, path]) for level in (1, 2)]
                words = torch.cat([text[:, : context + 1], torch.tensor([drafted])], 1)
                own = torch.nn.functional.pad(states[:, : context + 1], (0, 0, 0, 2))
                embedded = target.get_input_embeddings()(words)
                for level, normed in enumerate(made.unroll(own, embedded, 3)):
                    expected = target.get_output_embeddings()(normed[0, context - 1])
                    row = seen[at + level][2][0, 0 if level == 0 else path]
                    drafted_tokens = slice(None) if says is None else says
                    assert torch.allclose(row[drafted_tokens], expected[drafted_tokens], atol=1e-4)
                    assert says is None or torch.isinf(row).sum() == 64 - len(says)
            at += 3


def test_head_on_batch_and_invalid_heads(tmp_path):
    target = tiny.llama(vocabulary=64, layers=3)
    head_of(target, tmp_path / "head", list(range(40)))
    ids = torch.tensor([[0, 0, 1, 2], [5, 6, 7, 8], [0, 0, 0, 9]])
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1], [0, 0, 0, 1]])
    settings = dict(attention_mask=mask, do_sample=False, max_new_tokens=25, pad_token_id=0)
    plain = target.generate(ids, **settings)
    ours = speculate(target, tmp_path / "head", ids, draft_sampling=polydraft.Sampling(), seed=1, **settings)
    assert ours.tolist() == plain.tolist()
    with pytest.raises(ValueError, match="folder of a draft head \\(config.json and model.safetensors\\)"):
        speculate(target, str(tmp_path / "none"), ids, **settings)
    config, file = tmp_path / "head" / "config.json", tmp_path / "head" / "model.safetensors"
    stored = json.loads(config.read_text())
    for change, message in [
        ({"eagle_config": {"norm_before_residual": True}}, "norm_before_residual is not supported inside transformers"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "expected rotary positions without scaling"),
        ({"eagle_aux_hidden_state_layer_ids": [0, 1]}, "expected states as wide as the target's"),
        ({"eagle_aux_hidden_state_layer_ids": [0, 1, 9]}, "but the target has 3"),
        ({"eagle_aux_hidden_state_layer_ids": None, "architectures": ["DFlash"]}, "expected EAGLE-3's form"),
    ]:
        config.write_text(json.dumps({**stored, **change}))
        inside.release(target)
        with pytest.raises(ValueError, match=message):
            speculate(target, tmp_path / "head", ids, **settings)
    config.write_text(json.dumps(stored))
    tensors = safetensors.load_file(file)
    safetensors.save_file({name: x for name, x in tensors.items() if "up_proj" not in name}, file)
    with pytest.raises(ValueError, match="expected midlayer.mlp.up_proj.weight in"):
        speculate(target, tmp_path / "head", ids, **settings)


CASES = [
    ({}, None), ({"verifier": "specinfer", "paths": 2}, None), ({"temperature": 1.7}, (1.7, None, None)),
    ({"temperature": 1.5, "top_k": 6, "top_p": 0.95}, (1.5, 6, 0.95)),
]  # fmt: skip


@pytest.mark.parametrize(("options", "filters"), CASES)
@pytest.mark.parametrize("drafter", ["model", "head"])
def test_output_distribution_by_g_test(options, filters, drafter, tmp_path):
    """Tests three tokens of each row of a batch, many times."""
    target = tiny.llama(vocabulary=8, layers=2, seed=1)
    draft = tiny.first_layers(target)
    if drafter == "head":
        head_of(target, tmp_path / "head", [0, 1, 2, 5, 6])
        draft = tmp_path / "head"
    process = None
    if filters:
        made = [transformers.TemperatureLogitsWarper(filters[0])]
        if filters[1]:
            made += [transformers.TopKLogitsWarper(filters[1]), transformers.TopPLogitsWarper(filters[2])]
        process = transformers.LogitsProcessorList(made)
    ids, length = torch.tensor([[1, 2, 3]]), 3
    exact = distribution_of(target, ids, length, process)
    counts = dict.fromkeys(exact, 0)
    torch.manual_seed(5)
    rows = 64
    for _ in range(24):
        sequences = speculate(
            target, draft, ids.expand(rows, -1), do_sample=True, max_new_tokens=length,
            **{"top_k": 0, "paths": 3, "depth": 2, **options},
        )  # fmt: skip
        for text in sequences[:, 3:].tolist():
            counts[tuple(text)] += 1
    assert not any(count for text, count in counts.items() if exact[text] == 0)
    kept = [text for text in exact if exact[text] > 0]
    statistic, freedom, p = polydraft.g_test([exact[text] for text in kept], [counts[text] for text in kept])
    assert p > 1e-3 and freedom > 12, (statistic, freedom, p)
