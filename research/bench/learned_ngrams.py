#!/usr/bin/env python3
"""What tables of n-grams that a model learned ('polydraft learn') are accepted, by how many tokens they learned.

  research/bench/learned_ngrams.py target/release/polydraft FILE.gguf --table 100k.ngrams --table 400k.ngrams -o RECORD

One token is drafted a step (paths:1,1), so that tokens per pass less one are the share that is accepted; beside the tables, n-grams of
the text alone. Each prompt is decoded in all ways in turn. How much that is worth by the clock: 'polydraft bench speed'.
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

TEXTS = {"chat": "chat.jsonl", "code": "prompts.jsonl", "repeat": "repeat.jsonl"}


def learned(table):
    """Tokens that a table learned: its second line says so."""
    with open(table, "rb") as file:
        file.readline()
        return json.loads(file.readline())["learned"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("polydraft", help="the program, with the options of all runs")
    parser.add_argument("target")
    parser.add_argument("--table", action="append", required=True, metavar="FILE")
    parser.add_argument("--count", type=int, default=14, help="prompts of each text")
    parser.add_argument("--tokens", type=int, default=200, help="of each output")
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    ways = {0: "ngram"} | {learned(table): table for table in args.table}
    rows = []
    for text, file in TEXTS.items():
        prompts = [json.loads(line)["prompt"] for line in (HERE / file).read_text().splitlines()][: args.count]
        for temperature in (0, 1):
            found = {tokens: Outputs() for tokens in ways}
            for seed, prompt in enumerate(prompts):
                common = ["--verifier", "block", "--tree", "paths:1,1", "-n", args.tokens, "-t", temperature, "--seed", seed]
                for tokens, draft in ways.items():
                    found[tokens].generate(args.polydraft, args.target, prompt, [*common, "--draft", draft])
            for tokens, own in found.items():
                accepted = own.tokens_per_pass() - 1
                rows.append({"text": text, "temperature": temperature, "learned": tokens, "accepted": accepted, "passes": own.calls})
                print(f"{text:7} T = {temperature} {tokens:9,} tokens: {accepted:.3f} of {own.calls:.0f}", flush=True)
    sizes = {learned(table): Path(table).stat().st_size for table in args.table}
    record = {**provenance(), "command": shlex.join(sys.argv), "tables": sizes, "rows": rows}
    args.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
