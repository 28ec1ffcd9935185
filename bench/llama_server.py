#!/usr/bin/env python3
"""`polydraft serve` beside llama.cpp's llama-server: one GGUF file, the same threads and requests.

  bench/llama_server.py --llama build/bin target/release/polydraft FILE.gguf -o RECORD
  bench/llama_server.py --show RECORD

Needs llama-server, built as bench/llama_cpp.py says. Both servers run all the time, and take turns
with rounds of requests over 1, 8 and 32 connections, so that a drift of the machine hits both
alike. A round is `--requests` completions for each connection, of `--tokens` tokens at most, at
temperature 1, each with a prompt of its own. Both decode plainly unless what follows `--` says how
ours drafts. Speeds are tokens received per second, medians over rounds; `ratio` is the median over
rounds of ours / theirs within a round. Checked first: at temperature 0 both write the same tokens
for a prompt, or part where rounding can decide; the longest equal beginning of four texts is
recorded, in characters.
"""

import contextlib
import os
import shlex
import statistics
import sys
import threading
import time
from pathlib import Path

import harness

BEGINNINGS = (
    "The old lighthouse had not been lit for thirty years when",
    "def quicksort(items):\n    ",
    "Dear Sir or Madam, I am writing to",
    "The three most important things about bread are",
)


def ask(server, prompt, tokens, temperature, seed):
    """The text and the number of tokens of one completion."""
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": temperature, "seed": seed}
    answer = harness.complete(server.port, body)
    return answer["choices"][0]["text"], answer["usage"]["completion_tokens"]


def round_of(server, connections, requests, tokens, seed):
    """Tokens per second of all connections together."""
    left, lock, total = list(range(connections * requests)), threading.Lock(), [0]

    def client():
        while True:
            with lock:
                if not left:
                    return
                number = left.pop()
            prompt = f"{number}. {BEGINNINGS[number % len(BEGINNINGS)]}"
            count = ask(server, prompt, tokens, 1, seed + number)[1]
            with lock:
                total[0] += count

    start = time.perf_counter()
    clients = [threading.Thread(target=client) for _ in range(connections)]
    for one in clients:
        one.start()
    for one in clients:
        one.join()
    return total[0] / (time.perf_counter() - start)


def servers(args):
    """Both, the other one first: rounds begin with it."""
    most, port = max(args.connections), harness.free_port()
    theirs = [args.llama / "llama-server", "-m", args.model, "--port", port, "-t", args.threads]
    theirs += ["-np", most, "-c", most * args.context]
    ours = [args.program, "serve", "--target", args.model, "--port", 0, "--no-config"]
    ours += ["--threads", args.threads, *args.options]
    return {"llama_server": harness.Server(theirs, port), "polydraft": harness.Server(ours)}


def measure(args):
    """Writes the record, anew after each number of connections."""
    started = servers(args)
    with contextlib.ExitStack() as stack:
        for server in started.values():
            stack.enter_context(server).ready()
        texts = [
            [ask(server, prompt, 48, 0, 1)[0] for server in started.values()]
            for prompt in BEGINNINGS
        ]
        # Where two tokens are about as likely, rounding decides: one text in four may part early.
        common = max((os.path.commonprefix(pair) for pair in texts), key=len)
        print(f"temperature 0: at most {len(common)} characters are equal", flush=True)
        if len(common) < 40:
            sys.exit(f"the servers write different texts: {texts}")
        record = {
            "what": "llama-server",
            **harness.provenance(args.program, args.options),
            "model": Path(args.model).name,
            "threads": args.threads,
            "tokens": args.tokens,
            "rounds": args.rounds,
            "equal_characters": len(common),
            "rows": [],
        }
        for connections in args.connections:

            def way(server):
                case = (server, connections, args.requests, args.tokens)
                return lambda number: round_of(*case, number * 1000)

            ways = {name: way(server) for name, server in started.items()}
            speeds = harness.in_turn(ways, args.rounds, swap=True)
            row = {"connections": connections}
            row |= {name: round(statistics.median(all), 1) for name, all in speeds.items()}
            row["ratio"] = round(harness.ratio(speeds["polydraft"], speeds["llama_server"]), 2)
            record["rows"].append(row)
            print(row, flush=True)
            harness.write(args.record, record)


def main():
    shared = ("program?", "llama", "rounds", "threads", "tokens", "record", "show")
    parser = harness.options(__doc__, *shared, rounds=5, tokens=64)
    add = parser.add_argument
    add("model", nargs="?", help="a GGUF file")
    add("--connections", nargs="+", type=int, default=[1, 8, 32], help="at once")
    add("--requests", type=int, default=3, help="of each connection in a round")
    add("--context", type=int, default=512, help="of each connection")
    args = harness.parsed(parser)
    args.options = args.options or shlex.split("--verifier none")
    if args.show is None:
        if None in (args.program, args.model, args.llama, args.record):
            parser.error("expected --llama DIR, the program, a model and -o RECORD; or --show")
        measure(args)
    head = ["connections", "polydraft, tokens/s", "llama-server, tokens/s", "ratio"]
    rows = [
        (
            row["connections"],
            f"{row['polydraft']:.0f}",
            f"{row['llama_server']:.0f}",
            f"{row['ratio']:.2f}",
        )
        for row in harness.read(args.show or args.record)["rows"]
    ]
    print("\n".join(harness.markdown(head, rows)))


main()
