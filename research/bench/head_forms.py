#!/usr/bin/env python3
"""Heads of several forms beside each other: tokens per target pass, and what drafting takes.

  research/bench/head_forms.py target/release/polydraft FILE.gguf --head eagle3=DIR \\
      --head block=DIR --tree paths:1,3 --tree paths:4,3 -o RECORD

For one path and for several. Each prompt is decoded plainly and in all ways in turn, with
'nested-priority'; n-grams are not mixed in. What follows `--` goes to all runs. Times are by the
clock; what drafting and the whole take is in parts of plain decoding's time for a token.
"""

from pathlib import Path

import _path  # noqa: F401
import harness
from outputs import Outputs


def main():
    shared = ("program", "target", "dtype", "prompts", "count", "tokens", "record!")
    parser = harness.options(__doc__, *shared, prompts=Path("chat.jsonl"), count=6, tokens=96)
    add = parser.add_argument
    add("--head", action="append", required=True, metavar="NAME=DIR", help="may be repeated")
    add("--tree", action="append", required=True, help="may be repeated")
    add("--note", help="what to know of the heads, for the record")
    args = harness.parsed(parser)
    heads = dict(head.split("=", 1) for head in args.head)
    ways = {("plain", "none"): ["--draft", "none"]}
    for name, folder in heads.items():
        for tree in args.tree:
            draft = ["--draft", folder, "--mix-ngrams", "off"]
            ways[name, tree] = [*draft, "--verifier", "nested-priority", "--tree", tree]
    prompts = harness.prompts(args.prompts, args.count)
    rows = []
    for temperature in (0, 1):
        found = {way: Outputs() for way in ways}
        for seed, prompt in enumerate(prompts):
            common = ["--dtype", args.dtype, "-n", args.tokens, "-t", temperature, "--seed", seed]
            common += args.options
            for way, options in ways.items():
                found[way].generate(args.program, args.target, prompt, common + options)
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
            shown = {k: f"{v:.3f}" if isinstance(v, float) else v for k, v in row.items()}
            print(", ".join(f"{k} {v}" for k, v in shown.items()), flush=True)
    head = harness.provenance(args.program, args.options)
    record = {**head, "note": args.note, "forms": sorted(heads), "rows": rows}
    harness.write(args.record, record)


if __name__ == "__main__":
    main()
