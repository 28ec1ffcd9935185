"""Tokens per second and block efficiency inside transformers, beside its own assisted generation with the same models.

    python bench/generate.py [--tokens 64] [--prompts 8] [--json]

A random Llama and the draft of its first layer, as the tests have them, but wider and with laws more like a language model's. Assisted generation drafts `depth` tokens with
its schedule of lengths switched off, so that both draft the same number; ways take turns, text by text. Block efficiency: tokens
per pass of the target, the prompt's not among them. Answers are checked first: without sampling all texts must be equal.
"""

import argparse
import json
import pathlib
import statistics
import sys
import time

import polydraft
import polydraft.transformers
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests"))
import tiny  # noqa: E402


class Counted:
    """Counts a model's passes over one text."""

    def __init__(self, model):
        self.model, self.passes = model, 0
        model.register_forward_pre_hook(self.one)

    def one(self, *_):
        self.passes += 1


def pair(args):
    """A random Llama whose layers behind the first change less than it, and whose laws are as peaked as a language model's."""
    model, draft = pair(args)
    counted, rows = Counted(model), []
    prompts = [torch.randint(args.vocabulary, (1, 32), generator=torch.Generator().manual_seed(i)) for i in range(args.prompts)]
    for temperature in (0.0, 1.0):
        sampling = {"do_sample": True, "top_k": 0} if temperature else {"do_sample": False}
        named = ways(draft, args.depth, temperature)
        seconds, passes, texts = ({name: [] for name in named} for _ in range(3))
        for number, prompt in enumerate([prompts[0], *prompts]):
            for name, options in named.items():
                torch.manual_seed(number)
                counted.passes = 0
                start = time.perf_counter()
                text = model.generate(prompt, max_new_tokens=args.tokens, min_new_tokens=args.tokens, **sampling, **options)
                if number:
                    seconds[name].append(time.perf_counter() - start)
                    passes[name].append(counted.passes)
                    texts[name].append(text.tolist())
        if not temperature:
            assert all(text == texts["plain"] for text in texts.values()), "texts without sampling differ"
        for name in named:
            # Ours reads the prompt in a pass of its own.
            own = 1 if name.startswith("polydraft") else 0
            efficiency = args.tokens * args.prompts / (sum(passes[name]) - own * args.prompts)
            speed = args.tokens / statistics.median(seconds[name])
            gain = statistics.median(a / b for a, b in zip(seconds["plain"], seconds[name]))
            rows.append({"temperature": temperature, "way": name, "block_efficiency": efficiency, "tokens_per_second": speed, "gain": gain})
            if not args.json:
                print(f"T={temperature:.0f}  {name:<36} {efficiency:5.2f} tokens per pass  {speed:7.1f} tokens/s  {gain:4.2f} of plain", flush=True)
    if args.json:
        print(json.dumps({**vars(args), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
