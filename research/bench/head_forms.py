#!/usr/bin/env python3
"""Heads of several forms beside each other: tokens per target pass, and what drafting takes, for one path and for several.

  research/bench/head_forms.py target/release/polydraft FILE.gguf --dtype q8_0 --head eagle3=DIR --head block=DIR \
    --tree paths:1,3 --tree paths:4,3 -o RECORD

Each prompt is decoded plainly and in all ways in turn, with 'nested-priority'; n-grams are not mixed in. Times are by the clock; what
drafting and the whole take is in parts of plain decoding's time for a token.
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("polydraft", help="the program, with the options of all runs")
    parser.add_argument("target")
    parser.add_argument("--dtype", default="q8_0")
    parser.add_argument("--head", action="append", required=True, metavar="NAME=DIR")
    parser.add_argument("--tree", action="append", required=True)
    parser.add_argument("--prompts", type=Path, default=HERE / "chat.jsonl")
    parser.add_argument("--count", type=int, default=6, help="prompts")
    parser.add_argument("--tokens", type=int, default=96, help="of each output")
    parser.add_argument("--note", help="what to know of the heads, for the record")
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    heads = dict(head.split("=", 1) for head in args.head)
    ways = {("plain", "none"): ["--draft", "none"]}
    for name, folder in heads.items():
        for tree in args.tree:
            draft = ["--draft", folder, "--mix-ngrams", "off", "--verifier", "nested-priority", "--tree", tree]
            ways[name, tree] = draft
    prompts = [json.loads(line)["prompt"] for line in args.prompts.read_text().splitlines()][: args.count]
    rows = []
    for temperature in (0, 1):
        found = {way: Outputs() for way in ways}
        for seed, prompt in enumerate(prompts):
            common = ["--dtype", args.dtype, "-n", args.tokens, "-t", temperature, "--seed", seed]
            for way, options in ways.items():
                found[way].generate(args.polydraft, args.target, prompt, common + options)
        a_token = found.pop(("plain", "none")).ms_per_token()
        for (form, tree), own in found.items():
            row = {
                "form": form,
                "tree": tree,
                "temperature": temperature,
                "tokens_per_pass": own.tokens_per_pass(),
                "nodes": own.nodes_per_pass(),
                "draft": own.draft_ms / own.calls / a_token,
                "times_plain": a_token / own.ms_per_token(),
            }
            rows.append(row)
            print(", ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)
    record = {**provenance(), "command": shlex.join(sys.argv), "note": args.note, "forms": sorted(heads), "rows": rows}
    args.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
