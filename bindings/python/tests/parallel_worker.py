"""One of several processes that share a model's layers; writes its output to a file. Run by test_parallel.py."""

import json
import os
import sys

import polydraft.transformers as inside
import torch
import transformers

torch.set_num_threads(1)
folder, out, shared = sys.argv[1], sys.argv[2], sys.argv[3] == "shared"
options = {}
if shared:
    torch.distributed.init_process_group("gloo")
    try:
        from transformers.distributed import DistributedConfig

        options["distributed_config"] = DistributedConfig(tp_plan="auto", tp_size=2)
    except (ImportError, TypeError):
        options["tp_plan"] = "auto"
model = transformers.AutoModelForCausalLM.from_pretrained(folder, **options)
draft = transformers.AutoModelForCausalLM.from_pretrained(f"{folder}/draft")
widths = []
model.model.layers[0].self_attn.k_proj.register_forward_hook(lambda module, given, found: widths.append(found.shape[-1]))
ids, sequences = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]]), {}
for loop in ("host", "device"):
    for sample in (False, True):
        sequences[f"{loop} {sample}"] = model.generate(
            ids, custom_generate=inside.generate, draft_model=draft, do_sample=sample, max_new_tokens=30, paths=3, depth=3, seed=3,
            loop=loop,
        ).tolist()  # fmt: skip
sequences["plain"] = model.generate(ids, do_sample=False, max_new_tokens=30).tolist()
with open(f"{out}-{os.environ.get('RANK', '0')}.json", "w") as file:
    json.dump({"texts": sequences, "width": widths[0]}, file)
