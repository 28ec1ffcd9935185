"""Tokens per second and block efficiency inside transformers, beside its own assisted generation with the same models.

    python bench/generate.py [--tokens 64] [--prompts 8] [--json]

A random Llama and the draft of its first layer, as the tests have them, but wider. Assisted generation drafts `depth` tokens with
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


def ways(draft, depth):
    ours = {"custom_generate": polydraft.transformers.generate, "assistant_model": draft}
    greedy = polydraft.Sampling(temperature=1)
    return {
        "plain": {},
        f"transformers, assisted, {depth}": {"assistant_model": draft},
        f"polydraft token, 1 x {depth}": {**ours, "verifier": "token", "paths": 1, "depth": depth},
        f"polydraft block, 1 x {depth}": {**ours, "verifier": "block", "paths": 1, "depth": depth},
        f"polydraft nested-priority, 4 x {depth}": {**ours, "paths": 4, "depth": depth, "draft_sampling": greedy},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--scale", type=float, default=0.04)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    model = tiny.llama(args.vocabulary, args.layers, args.width, scale=args.scale)
    draft = tiny.first_layers(model)
    draft.generation_config.num_assistant_tokens = args.depth
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0
    counted, rows = Counted(model), []
    prompts = [torch.randint(args.vocabulary, (1, 32), generator=torch.Generator().manual_seed(i)) for i in range(args.prompts)]
    for temperature in (0.0, 1.0):
        sampling = {"do_sample": True, "top_k": 0} if temperature else {"do_sample": False}
        named = ways(draft, args.depth)
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
