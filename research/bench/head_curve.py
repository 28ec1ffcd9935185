#!/usr/bin/env python3
"""The learning curve of a draft head, as a record, from the work folder of `polydraft.train`.

  research/bench/head_curve.py WORK --target SmolLM2-135M-Instruct.Q8_0.gguf \\
      --command 'python -m polydraft.train ..' -o research/records/DATE-MACHINE-head-curve.json

Acceptance is of the first to the last drafted token on samples that were kept for validation, at
temperatures 1 and 0; --note says what a reader should know besides.
"""

import json
from pathlib import Path

import _path  # noqa: F401
import harness


def main():
    parser = harness.options(__doc__, "threads", "record!", threads=1)
    add = parser.add_argument
    add("work", type=Path, help="the trainer's folder")
    add("--target", required=True, help="the head's target")
    add("--command", required=True, help="what trained it")
    add("--note", default="", help="for readers of the record")
    args = parser.parse_args()
    points = [json.loads(line) for line in (args.work / "curve.jsonl").read_text().splitlines()]
    record = {
        **harness.provenance(),
        "threads": args.threads,
        "command": args.command,
        "target": args.target,
        "dtype": harness.read(args.work / "origin.json")["dtype"],
        "note": args.note,
        "points": points,
    }
    harness.write(args.record, record)


if __name__ == "__main__":
    main()
