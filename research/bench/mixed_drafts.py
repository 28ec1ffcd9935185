#!/usr/bin/env python3
"""A head, n-grams, both in one tree, and both in one distribution: tokens per target pass.

  research/bench/mixed_drafts.py target/release/polydraft FILE.gguf --head demo/smollm2-head \\
      --costs COSTS.json -o RECORD

On code, chat and repetitive text, and what that is worth by costs and by the clock. Chains of
--depth tokens of each draft alone and of their mixture (block verification, which is the best for
one path), and a tree of one such path of each (specinfer, which takes distinct drafts). Each prompt
is decoded in all ways in turn; what follows `--` goes to all runs. COSTS.json is what 'polydraft
generate --costs' left for the target and the head. A step costs its target pass and as many passes
of the head as the path is long; n-grams cost nothing.
"""

from pathlib import Path

import _path  # noqa: F401
import harness
from outputs import Outputs


def seconds(passes, tokens):
    """Seconds of a pass over so many tokens, between those that were measured."""
    for low, high in zip(passes, passes[1:]):
        if tokens <= high["tokens"]:
            share = (tokens - low["tokens"]) / (high["tokens"] - low["tokens"])
            return low["seconds"] + max(share, 0) * (high["seconds"] - low["seconds"])
    return passes[-1]["seconds"]


def main():
    shared = ("program", "target", "dtype", "count", "tokens", "record!")
    parser = harness.options(__doc__, *shared, count=4, tokens=96)
    add = parser.add_argument
    add("--head", required=True, help="a draft head")
    add("--costs", type=Path, required=True, help="what passes cost")
    add("--depth", type=int, default=3, help="tokens of a chain")
    args = harness.parsed(parser)
    head, depth, chain = ["--draft", args.head], args.depth, f"paths:1,{args.depth}"
    ways = {
        "plain": ([], "none", None, 0),
        "head": ([*head, "--mix-ngrams", "off"], "block", chain, depth),
        "n-grams": (["--draft", "ngram"], "block", chain, 0),
        "both": ([*head, "--draft", "ngram"], "specinfer", f"distinct:2,{depth}", depth),
        "mixed": ([*head, "--mix-ngrams", "on"], "block", chain, depth),
    }
    costs = harness.read(args.costs)["costs"]
    plain = seconds(costs["target"], 1)
    rows = []
    for text, file in harness.TEXTS.items():
        prompts = harness.prompts(file, args.count)
        for temperature in (0, 1):
            found = {way: Outputs() for way in ways}
            for seed, prompt in enumerate(prompts):
                common = ["--dtype", args.dtype, "-n", args.tokens, "-t", temperature]
                common += ["--seed", seed, *args.options]
                for way, (drafts, verifier, tree, _) in ways.items():
                    options = [*drafts, "--verifier", verifier, *(["--tree", tree] if tree else [])]
                    found[way].generate(args.program, args.target, prompt, common + options)
            for way, (_, _, _, steps) in ways.items():
                own = found[way]
                per_pass, drafted = own.tokens_per_pass(), own.nodes_per_pass()
                spent = seconds(costs["target"], 1 + drafted) + steps * costs["draft"][0]["seconds"]
                by_costs = per_pass * plain / spent
                by_clock = found["plain"].ms_per_token() / own.ms_per_token()
                row = {"text": text, "temperature": temperature, "draft": way}
                row |= {"tokens_per_pass": per_pass, "nodes": drafted}
                rows.append(row | {"by_costs": by_costs, "by_clock": by_clock})
                said = f"{per_pass:.2f} tokens per pass, {drafted:.1f} nodes"
                said += f", {by_costs:.2f} by costs, {by_clock:.2f} by the clock"
                print(f"{text:7} T = {temperature} {way:8} {said}", flush=True)
    made = harness.provenance(args.program, args.options)
    harness.write(args.record, {**made, "costs": costs, "rows": rows})


if __name__ == "__main__":
    main()
