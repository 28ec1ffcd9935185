#!/usr/bin/env python3
"""A head, n-grams, both in one tree, and both in one distribution: tokens per target pass on code, chat and repetitive text, and what
that is worth by costs and by the clock.

  research/bench/mixed_drafts.py 'target/release/polydraft' FILE.gguf --dtype q8_0 --head demo/smollm2-head --costs COSTS.json -o RECORD

Chains of --depth tokens of each draft alone and of their mixture (block verification, which is the best for one path), and a tree of
one such path of each (specinfer, which takes distinct drafts). Each prompt is decoded in all ways in turn. COSTS.json is what
'polydraft generate --costs' left for the target and the head. A step costs its target pass and as many passes of the head as the path
is long; n-grams cost nothing.
"""

import argparse
import json
import shlex
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "bindings/python/bench"))

from outputs import Outputs  # noqa: E402
from provenance import provenance  # noqa: E402

TEXTS = {"code": "prompts.jsonl", "chat": "chat.jsonl", "repeat": "repeat.jsonl"}


def seconds(passes, tokens):
    """Of a pass over so many tokens, between those that were measured."""
    for low, high in zip(passes, passes[1:]):
        if tokens <= high["tokens"]:
            share = (tokens - low["tokens"]) / (high["tokens"] - low["tokens"])
            return low["seconds"] + max(share, 0) * (high["seconds"] - low["seconds"])
    return passes[-1]["seconds"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("polydraft", help="the program, with the options of all runs")
    parser.add_argument("target")
    parser.add_argument("--dtype", default="q8_0")
    parser.add_argument("--head", required=True)
    parser.add_argument("--costs", type=Path, required=True)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--count", type=int, default=4, help="prompts of each text")
    parser.add_argument("--tokens", type=int, default=96, help="of each output")
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    ways = {
        "plain": ([], "none", None, 0),
        "head": (["--draft", args.head, "--mix-ngrams", "off"], "block", f"paths:1,{args.depth}", args.depth),
        "n-grams": (["--draft", "ngram"], "block", f"paths:1,{args.depth}", 0),
        "both": (["--draft", args.head, "--draft", "ngram"], "specinfer", f"distinct:2,{args.depth}", args.depth),
        "mixed": (["--draft", args.head, "--mix-ngrams", "on"], "block", f"paths:1,{args.depth}", args.depth),
    }
    costs = json.loads(args.costs.read_text())["costs"]
    plain = seconds(costs["target"], 1)
    rows = []
    for text, file in TEXTS.items():
        prompts = [json.loads(line)["prompt"] for line in (HERE / file).read_text().splitlines()][: args.count]
        for temperature in (0, 1):
            found = {way: Outputs() for way in ways}
            for seed, prompt in enumerate(prompts):
                common = ["--dtype", args.dtype, "-n", args.tokens, "-t", temperature, "--seed", seed]
                for way, (drafts, verifier, tree, _) in ways.items():
                    options = [*drafts, "--verifier", verifier, *(["--tree", tree] if tree else [])]
                    found[way].generate(args.polydraft, args.target, prompt, common + options)
            for way, (_, _, _, steps) in ways.items():
                own = found[way]
                per_pass, drafted = own.tokens_per_pass(), own.nodes_per_pass()
                spent = seconds(costs["target"], 1 + drafted) + steps * costs["draft"][0]["seconds"]
                by_costs = per_pass * plain / spent
                by_clock = found["plain"].ms_per_token() / own.ms_per_token()
                rows.append(
                    {"text": text, "temperature": temperature, "draft": way, "tokens_per_pass": per_pass,
                     "nodes": drafted, "by_costs": by_costs, "by_clock": by_clock}
                )  # fmt: skip
                said = f"{per_pass:.2f} tokens per pass, {drafted:.1f} nodes, {by_costs:.2f} by costs, {by_clock:.2f} by the clock"
                print(f"{text:7} T = {temperature} {way:8} {said}", flush=True)
    record = {**provenance(), "command": shlex.join(sys.argv), "costs": costs, "rows": rows}
    args.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
