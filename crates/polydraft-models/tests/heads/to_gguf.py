"""Makes model.gguf of the assistant, and of heads that predict blocks, by llama.cpp's own converter: python to_gguf.py LLAMA_CPP [NAME ..],
where LLAMA_CPP is a checkout of it (October 2026). The one format that it does not convert is speculators' DFlash.
"""

import json
import pathlib
import shutil
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "fixtures"))
from to_gguf import set_vocab  # noqa: E402

HEADS = ["dflash", "dflash-causal", "dflash-windows", "dspark", "dspark-speculators", "dflash2", "dflash2-capped"]


def main():
    source = pathlib.Path(sys.argv[1])
    sys.path[:0] = [str(source / "gguf-py"), str(source)]
    import gguf
    from conversion.gemma import Gemma4AssistantModel
    from conversion.qwen import DFlashModel, DSparkModel

    def vocabulary(self):
        original, self.dir_model = self.dir_model, self.target_model_dir
        set_vocab(self)
        self.dir_model = original
        self.gguf_writer.add_mask_token_id(self.hparams["dflash_config"]["mask_token_id"])

    for kind in (DFlashModel, DSparkModel):
        kind.set_vocab = vocabulary
    Gemma4AssistantModel.set_vocab = set_vocab
    for name in sys.argv[2:] or [*HEADS, "assistant"]:
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary)
            shutil.copy(HERE / name / "model.safetensors", folder)
            config = json.loads((HERE / name / "config.json").read_text())
            if "layer_types" in config:
                # Without it the converter leaves windows out.
                config["use_sliding_window"] = True
            if "speculators_model_type" in config:
                config["architectures"] = ["DSparkDraftModel"]
            (folder / "config.json").write_text(json.dumps(config))
            out = HERE / name / "model.gguf"
            out.unlink(missing_ok=True)
            if name == "assistant":
                shutil.copy(HERE.parent / "fixtures/gemma4/tokenizer.json", folder)
                model = Gemma4AssistantModel(folder, gguf.LlamaFileType.MOSTLY_BF16, out)
            else:
                kind = DSparkModel if name.startswith("dspark") else DFlashModel
                model = kind(folder, gguf.LlamaFileType.MOSTLY_BF16, out, target_model_dir=HERE / "target")
            model.write()
            print(f"{name}: {out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
