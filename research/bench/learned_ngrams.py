#!/usr/bin/env python3
"""The acceptance of n-grams that a model learned ('polydraft learn'), by tokens learned.

  research/bench/learned_ngrams.py target/release/polydraft FILE.gguf --table 100k.ngrams \\
      --table 400k.ngrams -o RECORD

One token is drafted a step (paths:1,1), so that tokens per pass less one are the share that is
accepted; beside the tables, n-grams of the text alone. Each prompt is decoded in all ways in turn.
What follows `--` goes to all runs. How much that is worth by the clock: 'polydraft bench speed'.
"""

import json
from pathlib import Path

import _path  # noqa: F401
import harness
from outputs import Outputs


def learned(table):
    """Tokens that a table learned: its second line says so."""
    with open(table, "rb") as file:
        file.readline()
        return json.loads(file.readline())["learned"]


def main():
    shared = ("program", "target", "count", "tokens", "record!")
    parser = harness.options(__doc__, *shared, count=14, tokens=200)
    parser.add_argument("--table", action="append", required=True, help="may be repeated")
    args = harness.parsed(parser)
    ways = {0: "ngram"} | {learned(table): table for table in args.table}
    rows = []
    for text, file in harness.TEXTS.items():
        prompts = harness.prompts(file, args.count)
        for temperature in (0, 1):
            found = {tokens: Outputs() for tokens in ways}
            for seed, prompt in enumerate(prompts):
                common = ["--verifier", "block", "--tree", "paths:1,1", "-n", args.tokens]
                common += ["-t", temperature, "--seed", seed, *args.options]
                for tokens, draft in ways.items():
                    own = [*common, "--draft", draft]
                    found[tokens].generate(args.program, args.target, prompt, own)
            for tokens, own in found.items():
                accepted = own.tokens_per_pass() - 1
                row = {"text": text, "temperature": temperature, "learned": tokens}
                rows.append(row | {"accepted": accepted, "passes": own.calls})
                shown = f"{tokens:9,} tokens: {accepted:.3f} of {own.calls:.0f}"
                print(f"{text:7} T = {temperature} {shown}", flush=True)
    sizes = {learned(table): Path(table).stat().st_size for table in args.table}
    head = harness.provenance(args.program, args.options)
    harness.write(args.record, {**head, "tables": sizes, "rows": rows})


if __name__ == "__main__":
    main()
