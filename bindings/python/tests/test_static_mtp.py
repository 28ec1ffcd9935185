"""A model's own MTP layer as the drafter of the device loop."""

import json

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
layers = pytest.importorskip("transformers.modeling_layers")
safetensors = pytest.importorskip("safetensors.torch")
if not hasattr(layers, "MtpModel"):
    pytest.skip("this version of transformers has no MtpModel", allow_module_level=True)

import polydraft  # noqa: E402
import polydraft.transformers as inside  # noqa: E402
from polydraft import gpu  # noqa: E402
from polydraft.transformers.static import decode, loop  # noqa: E402
from polydraft.transformers.static.head_drafter import HeadDrafter  # noqa: E402
from polydraft.transformers.static.mtp import MtpHead  # noqa: E402
from polydraft.transformers.static.step import Form  # noqa: E402
from static_families import tiny_model  # noqa: E402


pytestmark = pytest.mark.usefixtures("without_kernels")


def model_and_layer(family):
    model = tiny_model(family, num_nextn_predict_layers=1)
    torch.manual_seed(7)
    layer = layers.MtpModel(model, 1).eval()
    with torch.no_grad():
        # New modules have equal norms and small weights.
        for name, parameter in layer.named_parameters():
            if name.startswith("layers."):
                parameter.normal_(0, 0.3) if parameter.dim() > 1 else parameter.uniform_(0.5, 1.5)
    return model, layer


def direct(model, layer, text, drafted):
    """Computes each level's logits after a sequence in one pass: from the target's states, then from the layer's."""
    with torch.no_grad():
        states = model.get_decoder()(input_ids=torch.tensor([text])).last_hidden_state[:, :-1]
        found = []
        for level in range(len(drafted) + 1):
            tokens = torch.tensor([text[1:] + drafted[:level]])
            count = tokens.shape[1]
            words = layer.embed_tokens(tokens)
            place = torch.arange(1, count + 1)[None]
            mask = torch.full((count, count), torch.finfo(torch.float32).min).triu(1)[None, None]
            out = layer.layers[0](
                words, states, position_embeddings=layer.rotary_emb(words, position_ids=place), attention_mask=mask,
                position_ids=place, past_key_values=None,
            )  # fmt: skip
            if layer.use_shared_post_norm:
                out = layer.shared_post_norm(out)
            found.append(layer._project_to_logits(out[:, -1])[0])
            states = torch.cat([states, out[:, -1:]], 1)
        return found


@pytest.mark.parametrize("family", ["DeepseekV3", "Glm4Moe"])
def test_mtp_distributions_equal_direct_computation(family):
    model, layer = model_and_layer(family)
    seen = []

    class Watched(HeadDrafter):
        def level(self, level, given, context):
            logits = super().level(level, given, context)
            seen.append((level, given.clone(), int(context), logits))
            return logits

    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(loop, "HeadDrafter", Watched)
        form = Form("nested-priority", 2, 3, gpu.Sampling(), gpu.Sampling(), None, None)
        found = decode(model, MtpHead(layer, model), form, [[5, 9, 1, 33]], [1], lambda _, text: len(text) > 30)
    assert found.accepted > 0
    for at in range(0, len(seen), 3):
        context = seen[at][2]
        text = found.sequences[0][: context + 1]
        assert text[-1] == int(seen[at][1][0, 1])
        for path in range(2):
            drafted = [int(seen[at + level][1][0, path]) for level in (1, 2)]
            for level, expected in enumerate(direct(model, layer, text, drafted)):
                row = seen[at + level][3][0, 0 if level == 0 else path]
                assert (row.softmax(-1) - expected.softmax(-1)).abs().max() < 1e-5


def test_mtp_layer_is_read_from_model_files(tmp_path, monkeypatch):
    """Uses the files of a model with four layers, the last of which is declared as the MTP layer."""
    tiny_model("DeepseekV3", num_hidden_layers=4).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3, "num_nextn_predict_layers": 1}))
    tensors = safetensors.load_file(tmp_path / "model.safetensors")
    for name, shape in (("enorm", (32,)), ("hnorm", (32,)), ("shared_head.norm", (32,)), ("eh_proj", (32, 64))):
        tensors[f"model.layers.3.{name}.weight"] = torch.ones(shape) if len(shape) == 1 else 0.3 * torch.randn(shape)
    safetensors.save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    monkeypatch.setattr(transformers.DeepseekV3ForCausalLM, "_keys_to_ignore_on_load_unexpected", [r"model\.layers\.3.*"])
    model = transformers.DeepseekV3ForCausalLM.from_pretrained(tmp_path).eval()
    ids, statistics = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]]), {}
    plain = model.generate(ids, do_sample=False, max_new_tokens=30)
    options = dict(custom_generate=inside.generate, draft_model="mtp", paths=3, depth=3, draft_sampling=polydraft.Sampling())
    ours = model.generate(ids, do_sample=False, max_new_tokens=30, statistics=statistics, **options)
    assert ours.tolist() == plain.tolist() and statistics["loop"] == "device"
    with pytest.raises(ValueError, match="has no MTP layer"):
        tiny_model("Qwen3").generate(ids, max_new_tokens=5, **options)

    def unnamed(of, **options):
        """Returns the default draft; the output equals that of plain decoding."""
        statistics = {}
        settings = dict(do_sample=False, max_new_tokens=20, **options)
        ours = of.generate(ids, custom_generate=inside.generate, statistics=statistics, **settings)
        settings.pop("loop", None)
        assert ours.tolist() == of.generate(ids, **settings).tolist()
        return statistics["draft"], statistics["loop"]

    assert unnamed(model) == ("mtp", "device") and statistics["draft"] == "mtp"
    # If the layer cannot be used, n-grams draft.
    assert unnamed(model, repetition_penalty=1.3) == ("ngram", "host") == unnamed(model, loop="host")
    with pytest.warns(UserWarning, match="cannot read the model's own MTP layer, drafting with n-grams"):
        assert unnamed(model_and_layer("DeepseekV3")[0]) == ("ngram", "host")
