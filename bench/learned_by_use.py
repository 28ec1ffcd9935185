#!/usr/bin/env python3
"""What `polydraft serve --learn` gains by use: the same questions again and again, each answer drawn anew.

  bench/learned_by_use.py target/release/polydraft FILE.gguf -o RECORD
  bench/learned_by_use.py target/release/polydraft FILE.gguf --table LEARNED.ngrams -o RECORD

Three servers take turns, request by request: one decodes plainly, one drafts from n-grams of each text alone, one with --learn, which
begins with nothing or with a copy of --table. A round asks each question of bench/chat.jsonl once, without a seed. By round: how
many of the drafted tokens were accepted, tokens per target pass, and tokens per second relative to the plain server, which decoded the
same questions in turn. Speeds are of whole requests, one at a time.
"""

import argparse
import asyncio
import contextlib
import json
import shlex
import shutil
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "bindings/python/bench"))

import serving  # noqa: E402
from provenance import provenance  # noqa: E402


async def ask(port, body):
    """Usage of a completion, and its seconds."""
    start = time.perf_counter()
    status, answer = await serving.answered(*await serving.connect(port, json.dumps(body).encode()))
    if status != 200:
        sys.exit(f"{status}: {answer[:300]!r}")
    return json.loads(answer)["usage"], time.perf_counter() - start


class Round:
    """What one server did in a round."""

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


async def measure(args, servers, prompts):
    rows = []
    for number in range(args.rounds):
        rounds = {way: Round() for way in servers}
        for prompt in prompts:
            for way, server in servers.items():
                body = {"prompt": prompt, "max_tokens": args.tokens, "temperature": args.temperature}
                rounds[way].add(*await ask(server.port, body))
        for way in servers:
            row = {"round": number + 1, "draft": way, **rounds[way].row(rounds["none"])}
            rows.append(row)
            print(json.dumps(row), flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("polydraft")
    parser.add_argument("target")
    parser.add_argument("--table", help="begin with a copy of this one")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--count", type=int, default=16, help="questions of a round")
    parser.add_argument("--tokens", type=int, default=128, help="of an answer at most")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--settle", type=float, default=8, help="seconds for a server to measure its costs")
    parser.add_argument("--options", default="", help="of all servers, such as '--tree paths:1,1'")
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    prompts = [json.loads(line)["prompt"] for line in (HERE / "chat.jsonl").read_text().splitlines()][: args.count]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        table = Path(folder) / "use.ngrams"
        if args.table:
            shutil.copy(args.table, table)
        ways = {"none": ["--draft", "none"], "ngram": ["--draft", "ngram"], "learn": ["--learn", str(table)]}
        common = [args.target, "--backend", "native"]
        servers = {}
        for way, draft in ways.items():
            tree = shlex.split(args.options) if way != "none" else []
            servers[way] = stack.enter_context(serving.server(args.polydraft, [*common, *draft, *tree]))
            # Costs are measured between its steps and while nobody asks: alone.
            asyncio.run(ask(servers[way].port, {"prompt": "Once", "max_tokens": 128}))
            time.sleep(args.settle)
        rows = asyncio.run(measure(args, servers, prompts))
        record = {**provenance(), "command": shlex.join(sys.argv), "temperature": args.temperature, "rows": rows}
        args.output.write_text(json.dumps(record, indent=1) + "\n")
        code = servers["learn"].stop()
        if code:
            sys.exit(f"the server ended with {code}")


if __name__ == "__main__":
    main()
