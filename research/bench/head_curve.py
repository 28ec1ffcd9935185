#!/usr/bin/env python3
"""The learning curve of a draft head, as a record: what `python -m polydraft.train` left in its work folder.

  research/bench/head_curve.py WORK --target SmolLM2-135M-Instruct.Q8_0.gguf --command 'python -m polydraft.train ..' \\
      -o research/records/DATE-MACHINE-head-curve.json

Acceptance is of the first to the last drafted token on samples that were kept for validation, at temperatures 1 and 0; --note says
what a reader should know besides.
"""

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bindings/python/bench"))

from provenance import provenance  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--target", required=True)
    parser.add_argument("--command", required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--note", default="")
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    points = [json.loads(line) for line in (args.work / "curve.jsonl").read_text().splitlines()]
    kept = json.loads((args.work / "origin.json").read_text())
    record = {
        **provenance(),
        "threads": args.threads,
        "command": args.command,
        "target": args.target,
        "dtype": kept["dtype"],
        "note": args.note,
        "points": points,
    }
    args.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
