"""Makes model.gguf of heads and of the assistant by llama.cpp's own converter: python to_gguf.py LLAMA_CPP [NAME ..], where
LLAMA_CPP is a checkout of it (October 2026). The formats that it does not convert are speculators' DFlash and EAGLE-3 heads
with several layers, norms of queries, or norms of their output.
"""

import json
import pathlib
import shutil
import sys
import tempfile

import torch
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "fixtures"))
from to_gguf import set_vocab  # noqa: E402

EAGLE3 = ["original", "specforge", "original/stretched"]
# Heads of files with other fields than the folder's.
STRETCHED = {
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    }
}
BLOCKS = ["dflash", "dflash-causal", "dflash-windows", "dspark", "dspark-speculators", "dflash2", "dflash2-capped"]


def main():
    source = pathlib.Path(sys.argv[1])
    sys.path[:0] = [str(source / "gguf-py"), str(source)]
    import gguf
    from conversion.gemma import Gemma4AssistantModel
    from conversion.llama import LlamaModel
    from conversion.qwen import DFlashModel, DSparkModel

    def vocabulary(self):
        original, self.dir_model = self.dir_model, self.target_model_dir
        set_vocab(self)
        self.dir_model = original
        self.gguf_writer.add_mask_token_id(self.hparams["dflash_config"]["mask_token_id"])

    def eagle3_vocabulary(self):
        self.dir_model, own = self.target_model_dir, self.dir_model
        set_vocab(self)
        self.dir_model = own

    LlamaModel.set_vocab = eagle3_vocabulary
    for kind in (DFlashModel, DSparkModel):
        kind.set_vocab = vocabulary
    Gemma4AssistantModel.set_vocab = set_vocab
    for file in sys.argv[2:] or [*EAGLE3, *BLOCKS, "assistant"]:
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary)
            name, _, other = file.partition("/")
            pickle = HERE / name / "pytorch_model.bin"
            if pickle.exists():
                save_file(torch.load(pickle), folder / "model.safetensors")
            else:
                shutil.copy(HERE / name / "model.safetensors", folder)
            config = json.loads((HERE / name / "config.json").read_text())
            if other == "stretched":
                config |= STRETCHED
            if "layer_types" in config:
                # Without it the converter leaves windows out.
                config["use_sliding_window"] = True
            if nested := config.get("eagle_config"):
                # It reads them at the top level only, where layers are named by their inputs.
                layers = nested["eagle_aux_hidden_state_layer_ids"]
                config |= nested | {"eagle_aux_hidden_state_layer_ids": [layer + 1 for layer in layers]}
            if "speculators_model_type" in config:
                config["architectures"] = ["DSparkDraftModel"]
            (folder / "config.json").write_text(json.dumps(config))
            out = HERE / name / f"{other or 'model'}.gguf"
            out.unlink(missing_ok=True)
            if name == "assistant":
                shutil.copy(HERE.parent / "fixtures/gemma4/tokenizer.json", folder)
                model = Gemma4AssistantModel(folder, gguf.LlamaFileType.MOSTLY_BF16, out)
            else:
                kind = DSparkModel if name.startswith("dspark") else LlamaModel if name in EAGLE3 else DFlashModel
                model = kind(folder, gguf.LlamaFileType.MOSTLY_BF16, out, target_model_dir=HERE / "target")
            model.write()
            print(f"{file}: {out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
