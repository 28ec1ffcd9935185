#!/usr/bin/env python3
"""Trains a tiny hybrid in Qwen3.5's form together with a layer that predicts further tokens (MTP).

  research/bench/train_mtp.py OUT [--minutes 25]

On the sources of the crates that are on this machine, so that chains and several paths of such a
layer can be compared where both mean something. A quarter of a million parameters a layer; the demo
pair's tokenizer. The layer learns beside the model, unrolled twice, as its states are used when it
drafts. OUT can be given to --target, with --draft mtp. Needs torch and transformers.
"""

import json
import pathlib
import random
import shutil
import time

import _path  # noqa: F401
import harness
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer, Qwen3_5RMSNorm

DEMO = harness.ROOT / "demo/target"
LENGTH, BATCH, WIDTH = 64, 16, 128
LINEAR, FULL = "linear_attention", "full_attention"

CONFIG = Qwen3_5TextConfig(
    vocab_size=4096,
    hidden_size=WIDTH,
    intermediate_size=384,
    num_hidden_layers=2,
    layer_types=[LINEAR, FULL],
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=64,
    linear_num_key_heads=1,
    linear_num_value_heads=2,
    linear_key_head_dim=64,
    linear_value_head_dim=64,
    max_position_embeddings=1024,
    tie_word_embeddings=True,
    bos_token_id=0,
    eos_token_id=0,
    rope_parameters=dict(rope_theta=10000.0, rope_type="default", partial_rotary_factor=0.5),
)


class Further(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.layers = torch.nn.ModuleList([Qwen3_5DecoderLayer(CONFIG, 1)])
        self.norm = Qwen3_5RMSNorm(WIDTH)
        self.pre_fc_norm_embedding = Qwen3_5RMSNorm(WIDTH)
        self.pre_fc_norm_hidden = Qwen3_5RMSNorm(WIDTH)

    def forward(self, states, embedded, angles, mask):
        both = [self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(states)]
        x = self.fc(torch.cat(both, dim=-1))
        x = self.layers[0](x, position_embeddings=angles, attention_mask=mask)
        return self.norm(x)


def texts():
    """Tokens of the sources, file by file, in an order of chance."""
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    files = sorted(pathlib.Path.home().glob(".cargo/registry/src/*/*/src/**/*.rs"))
    random.Random(1).shuffle(files)
    for file in files:
        try:
            text = file.read_text()
        except UnicodeDecodeError:
            continue
        if len(text) < 100_000:
            yield tokenizer.encode(text).ids + [0]


def batches():
    left = []
    for ids in texts():
        left += ids
        while len(left) > BATCH * (LENGTH + 3):
            rows, left = left[: BATCH * (LENGTH + 3)], left[BATCH * (LENGTH + 3) :]
            yield torch.tensor(rows).view(BATCH, LENGTH + 3)


def loss_of(logits, targets):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main():
    parser = harness.options(__doc__)
    parser.add_argument("out", type=pathlib.Path, help="the model's folder")
    parser.add_argument("--minutes", type=float, default=25, help="of training")
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    CONFIG._attn_implementation = "eager"
    model, further = AutoModelForCausalLM.from_config(CONFIG).float(), Further()
    for name, parameter in further.named_parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.02)
        elif "norm" in name:
            torch.nn.init.zeros_(parameter)
    parameters = [*model.parameters(), *further.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=2e-3, betas=(0.9, 0.95), weight_decay=0.01)
    mask = torch.full((LENGTH, LENGTH), float("-inf")).triu(1)[None, None]
    begin, seen = time.time(), 0
    for step, rows in enumerate(batches()):
        part = (time.time() - begin) / 60 / args.minutes
        if part > 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1, (step + 1) / 50) * (1 - part)
        shifted = [rows[:, i : i + LENGTH] for i in range(4)]
        states = model.model(shifted[0], use_cache=False).last_hidden_state
        head, embed = model.lm_head, model.model.embed_tokens
        angles = model.model.rotary_emb(states, torch.arange(LENGTH)[None])
        losses = [loss_of(head(states), shifted[1])]
        for ahead in (1, 2):
            states = further(states, embed(shifted[ahead]), angles, mask)
            losses.append(loss_of(head(states), shifted[ahead + 1]))
        (losses[0] + 0.5 * losses[1] + 0.3 * losses[2]).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seen += BATCH * LENGTH
        if step % 50 == 0:
            print(
                f"{100 * part:.0f} %, {seen} tokens:",
                *(f"{loss.item():.3f}" for loss in losses),
                flush=True,
            )
    args.out.mkdir(parents=True, exist_ok=True)
    without = ("dtype", "transformers_version")
    fields = {k: v for k, v in CONFIG.to_dict().items() if k not in without}
    fields |= dict(architectures=["Qwen3_5ForCausalLM"], mtp_num_hidden_layers=1)
    (args.out / "config.json").write_text(json.dumps(fields, indent=1) + "\n")
    for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(DEMO / file, args.out / file)
    state = {k: v for k, v in model.state_dict().items() if k != "lm_head.weight"}
    state |= {f"mtp.{k}": v for k, v in further.state_dict().items()}
    save_file(
        {k: v.to(torch.bfloat16).contiguous() for k, v in state.items()},
        args.out / "model.safetensors",
    )


if __name__ == "__main__":
    main()
