"""Tokens per second and block efficiency inside transformers, compared with its assisted generation on the same models.

    python bench/generate.py [--tokens 64] [--count 8] [--record FILE]

A random Llama and a draft made of its first layer, as in the tests, but wider and with more realistic distributions. Assisted
generation drafts `depth` tokens with its length schedule and confidence threshold disabled, so that both draft the same
number; methods alternate from prompt to prompt. Block efficiency: tokens per target pass; for polydraft without the pass over the
prompt, with which the others decode a token. Outputs are checked first: without sampling all must be equal.
"""

import pathlib
import statistics
import sys
import time

import _path
import harness
import polydraft
import polydraft.transformers
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests"))
import tiny  # noqa: E402


class Counted:
    """Counts a model's passes."""

    def __init__(self, model):
        self.passes = 0
        model.register_forward_pre_hook(self.count)

    def count(self, *_):
        self.passes += 1


def pair(args):
    """Makes a random Llama whose later layers contribute less than the first, with peaked distributions."""
    model = tiny.llama(args.vocabulary, args.layers, args.width, scale=args.scale)
    with torch.no_grad():
        for layer in model.model.layers[1:]:
            layer.self_attn.o_proj.weight *= args.damp
            layer.mlp.down_proj.weight *= args.damp
        model.lm_head.weight *= args.peak
    draft = tiny.first_layers(model)
    draft.generation_config.num_assistant_tokens = args.depth
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0
    return model, draft


def ways(draft, depth, temperature):
    ours = {"custom_generate": polydraft.transformers.generate, "assistant_model": draft}
    # Without sampling, drawn paths would all be equal: uses the four most likely first tokens, each
    # followed by the most likely tokens.
    likeliest = {"tree": "4" + ",1" * (depth - 1) + "/top-k", "verifier": "walk:naive", "draft_sampling": polydraft.Sampling()}
    name = "nested-priority" if temperature else "walk:naive, top-k"
    return {
        "plain": {},
        f"transformers, assisted, {depth}": {"assistant_model": draft},
        f"polydraft token, 1 x {depth}": {**ours, "verifier": "token", "paths": 1, "depth": depth},
        f"polydraft block, 1 x {depth}": {**ours, "verifier": "block", "paths": 1, "depth": depth},
        f"polydraft {name}, 4 x {depth}": {**ours, **({"paths": 4, "depth": depth} if temperature else likeliest)},
    }


def measure(model, counted, named, prompts, tokens, sampling):
    """Returns seconds, passes and outputs of every method by prompt, after a warm-up run."""
    seconds, passes, sequences = ({name: [] for name in named} for _ in range(3))
    for number, prompt in enumerate([prompts[0], *prompts]):
        for name, options in named.items():
            torch.manual_seed(number)
            counted.passes = 0
            start = time.perf_counter()
            output = model.generate(prompt, max_new_tokens=tokens, **sampling, **options)
            if number:
                seconds[name].append(time.perf_counter() - start)
                passes[name].append(counted.passes)
                sequences[name].append(output.tolist())
    return seconds, passes, sequences


def main():
    parser = harness.options(__doc__, "tokens", "count", "record", tokens=64, count=8)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--scale", type=float, default=0.04)
    parser.add_argument("--damp", type=float, default=0.05, help="factor of later layers, relative to the first")
    parser.add_argument("--peak", type=float, default=3.0, help="factor of the output matrix")
    args = parser.parse_args()
    model, draft = pair(args)
    counted, rows = Counted(model), []
    seeded = torch.Generator().manual_seed(0)
    prompts = [torch.randint(args.vocabulary, (1, 32), generator=seeded) for _ in range(args.count)]
    for temperature in (0, 1):
        sampling = {"do_sample": True, "top_k": 0} if temperature else {"do_sample": False}
        named = ways(draft, args.depth, temperature)
        seconds, passes, sequences = measure(model, counted, named, prompts, args.tokens, sampling)
        if not temperature:
            assert all(found == sequences["plain"] for found in sequences.values()), "outputs without sampling differ"
        for name in named:
            prompt_passes = args.count if name.startswith("polydraft") else 0
            row = {
                "temperature": temperature,
                "way": name,
                "block_efficiency": args.tokens * args.count / (sum(passes[name]) - prompt_passes),
                "tokens_per_second": args.tokens / statistics.median(seconds[name]),
                "gain": statistics.median(a / b for a, b in zip(seconds["plain"], seconds[name])),
            }
            rows.append(row)
            print(
                f"T={temperature}  {name:<34} {row['block_efficiency']:5.2f} tokens per pass  "
                f"{row['tokens_per_second']:7.1f} tokens/s  {row['gain']:4.2f} of plain",
                flush=True,
            )
    if args.record:
        file = vars(args).pop("record")
        harness.write(file, {"provenance": harness.provenance(packages=_path.PACKAGES), **vars(args), "rows": rows})


if __name__ == "__main__":
    main()
