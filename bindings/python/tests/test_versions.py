"""The installed version of transformers behaves as documented."""

import inspect

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import polydraft.transformers as inside  # noqa: E402
import tiny  # noqa: E402
from polydraft.transformers.caller import caller_argument  # noqa: E402
from polydraft.transformers.generate import MADE_HERE  # noqa: E402


def test_arguments_passed_by_generate():
    """`assistant_model` and `streamer` do not arrive as arguments; if they do in a later version, no frame is searched."""
    model, seen = tiny.llama(), {}

    def probe(model, input_ids, logits_processor=None, stopping_criteria=None, generation_config=None,
              assistant_model=None, streamer=None, mine=None, **rest):  # fmt: skip
        seen.update(mine=mine, assistant_model=assistant_model, streamer=streamer, rest=sorted(rest))
        seen["found"] = caller_argument("assistant_model", probe), caller_argument("streamer", probe)
        seen["nothing"] = caller_argument("assistant_model", inside.generate)
        return input_ids

    class Streamer:
        def put(self, tokens):
            pass

    streamer = Streamer()
    model.generate(
        torch.tensor([[1, 2]]),
        custom_generate=probe,
        assistant_model=model,
        streamer=streamer,
        mine=4,
        max_new_tokens=2,
    )
    assert seen["mine"] == 4 and seen["nothing"] is None
    for name, argument, found in zip(("assistant_model", "streamer"), (model, streamer), seen["found"]):
        assert (seen[name] or found) is argument, name
    # Any other argument would be rejected.
    assert {*seen["rest"]} <= {*MADE_HERE} and "use_cache" in seen["rest"]


def test_argument_names_do_not_clash_with_generate():
    """`generate` or a model's forward would consume arguments with the same names."""
    theirs = set(inspect.signature(transformers.GenerationMixin.generate).parameters)
    theirs |= set(inspect.signature(transformers.GenerationMixin._sample).parameters)
    theirs |= set(vars(transformers.GenerationConfig()))
    ours = set(inspect.signature(inside.generate).parameters) - {
        "model", "input_ids", "logits_processor", "stopping_criteria", "generation_config", "assistant_model", "streamer",
        "synced_gpus", "model_kwargs",
    }  # fmt: skip
    assert not ours & theirs
