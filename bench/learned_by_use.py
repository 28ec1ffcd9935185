#!/usr/bin/env python3
"""The gain of `polydraft serve --learn` by use: the same questions again, each answer drawn anew.

  bench/learned_by_use.py target/release/polydraft FILE.gguf -o RECORD
  bench/learned_by_use.py target/release/polydraft FILE.gguf --table LEARNED.ngrams -o RECORD

Three servers take turns, request by request: one decodes plainly, one drafts from n-grams of each
text alone, one with --learn, which begins with nothing or with a copy of --table. What follows `--`
goes to those that draft, such as `--tree paths:1,1`. A round asks each question of bench/chat.jsonl
once, without a seed. By round: how many of the drafted tokens were accepted, tokens per target
pass, and tokens per second relative to the plain server, which decoded the same questions in turn.
Speeds are of whole requests, one at a time.
"""

import contextlib
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

import harness


def ask(port, body):
    """Usage of a completion, and its seconds."""
    start = time.perf_counter()
    return harness.complete(port, body)["usage"], time.perf_counter() - start


class Round:
    """Counts and seconds of one server in a round."""

    def __init__(self):
        self.tokens = self.calls = self.drafted = self.accepted = 0
        self.seconds = 0.0

    def add(self, usage, seconds):
        said = usage.get("speculation") or {}
        self.tokens += usage["completion_tokens"]
        self.calls += said.get("target_calls", usage["completion_tokens"])
        self.drafted += said.get("draft_tokens", 0)
        self.accepted += sum(said.get("accepted", []))
        self.seconds += seconds

    def row(self, plain):
        return {
            "tokens": self.tokens,
            "accepted": self.accepted / self.drafted if self.drafted else None,
            "tokens_per_pass": self.tokens / self.calls,
            "relative_speed": self.tokens / self.seconds / (plain.tokens / plain.seconds),
        }


def measure(args, servers, prompts):
    """Rows of the record."""
    rows = []
    for number in range(args.rounds):
        rounds = {way: Round() for way in servers}
        for prompt in prompts:
            for way, server in servers.items():
                asked = {"max_tokens": args.tokens, "temperature": args.temperature}
                rounds[way].add(*ask(server.port, {"prompt": prompt, **asked}))
        for way in servers:
            row = {"round": number + 1, "draft": way, **rounds[way].row(rounds["none"])}
            rows.append(row)
            print(json.dumps(row), flush=True)
    return rows


def main():
    shared = ("program", "target", "rounds", "count", "tokens", "record!")
    parser = harness.options(__doc__, *shared, rounds=12, count=16, tokens=128)
    add = parser.add_argument
    add("--table", help="begin with a copy of this one")
    add("--temperature", type=float, default=1.0, help="of all answers")
    add("--settle", type=float, default=8, help="seconds for a server to measure its costs")
    args = harness.parsed(parser)
    prompts = harness.prompts("chat.jsonl", args.count)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        table = Path(folder) / "use.ngrams"
        if args.table:
            shutil.copy(args.table, table)
        ways = {
            "none": ["--draft", "none"],
            "ngram": ["--draft", "ngram"],
            "learn": ["--learn", str(table)],
        }
        common = [args.target, "--backend", "native"]
        servers = {}
        for way, draft in ways.items():
            own = args.options if way != "none" else []
            server = harness.serve(args.program, [*common, *draft, *own])
            servers[way] = stack.enter_context(server)
            # Costs are measured between its steps and while nobody asks: alone.
            ask(server.port, {"prompt": "Once", "max_tokens": 128})
            time.sleep(args.settle)
        rows = measure(args, servers, prompts)
        head = harness.provenance(args.program, args.options)
        harness.write(args.record, {**head, "temperature": args.temperature, "rows": rows})
        code = servers["learn"].stop()
        if code:
            sys.exit(f"the server ended with {code}")


if __name__ == "__main__":
    main()
