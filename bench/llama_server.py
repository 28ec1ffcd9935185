#!/usr/bin/env python3
"""`polydraft serve` beside llama.cpp's llama-server: one GGUF file, the same threads and requests.

  bench/llama_server.py --llama build/bin target/release/polydraft FILE.gguf -o RECORD
  bench/llama_server.py --show RECORD

Needs llama-server, built as bench/llama_cpp.py says. Both servers run all the time, and take turns
with rounds of requests over 1, 8 and 32 connections, so that a drift of the machine hits both
alike. A round is `--requests` completions for each connection, of `--tokens` tokens at most, at
temperature 1, each with a prompt of its own. Both decode plainly unless `--options` says how ours
drafts. Speeds are tokens received per second, medians over rounds; `ratio` is the median over
rounds of ours / theirs within a round. Checked first: at temperature 0 both write the same tokens
for a prompt, or part where rounding can decide; the longest equal beginning of four texts is
recorded, in characters.
"""

import argparse
import http.client
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

PORTS = {"polydraft": 8391, "llama_server": 8392}
BEGINNINGS = (
    "The old lighthouse had not been lit for thirty years when",
    "def quicksort(items):\n    ",
    "Dear Sir or Madam, I am writing to",
    "The three most important things about bread are",
)


def ask(name, prompt, tokens, temperature, seed):
    """The text and the number of tokens of one completion."""
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": temperature, "seed": seed}
    connection = http.client.HTTPConnection("127.0.0.1", PORTS[name], timeout=600)
    connection.request("POST", "/v1/completions", json.dumps(body),
                       {"Content-Type": "application/json"})
    answer = connection.getresponse()
    content = answer.read()
    if answer.status != 200:
        sys.exit(f"{name} answered {answer.status}: {content[:300]!r}")
    parsed = json.loads(content)
    return parsed["choices"][0]["text"], parsed["usage"]["completion_tokens"]


def ready(name, server):
    for _ in range(600):
        if server.poll() is not None:
            sys.exit(f"{name} ended with {server.returncode} before it answered")
        try:
            connection = http.client.HTTPConnection("127.0.0.1", PORTS[name], timeout=5)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.2)
    sys.exit(f"{name} does not answer")


def round_of(name, connections, requests, tokens, seed):
    """Tokens per second of all connections together."""
    left, lock, total = list(range(connections * requests)), threading.Lock(), [0]

    def client():
        while True:
            with lock:
                if not left:
                    return
                number = left.pop()
            prompt = f"{number}. {BEGINNINGS[number % len(BEGINNINGS)]}"
            count = ask(name, prompt, tokens, 1, seed + number)[1]
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
    most = max(args.connections)
    ours = [args.polydraft, "serve", "--target", args.model, "--port", PORTS["polydraft"],
            "--threads", args.threads, "--no-config", "-q", *shlex.split(args.options)]
    theirs = [args.llama / "llama-server", "-m", args.model, "--port", PORTS["llama_server"],
              "-t", args.threads, "-np", most, "-c", most * args.context]
    return {"polydraft": [str(x) for x in ours], "llama_server": [str(x) for x in theirs]}


def processor():
    names = [line.split(":")[1].strip() for line in open("/proc/cpuinfo") if "model name" in line]
    return f"{names[0] if names else platform.processor()}, {os.cpu_count()} threads"


def measure(args):
    commands = servers(args)
    quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    started = {name: subprocess.Popen(command, **quiet) for name, command in commands.items()}
    try:
        for name, server in started.items():
            ready(name, server)
        texts = [[ask(name, prompt, 48, 0, 1)[0] for name in commands] for prompt in BEGINNINGS]
        # Where two tokens are about as likely, rounding decides: one text in four may part early.
        common = max((os.path.commonprefix(pair) for pair in texts), key=len)
        print(f"temperature 0: at most {len(common)} characters are equal", flush=True)
        if len(common) < 40:
            sys.exit(f"the servers write different texts: {texts}")
        head = ["git", "-C", Path(__file__).parent, "rev-parse", "--short", "HEAD"]
        commit = subprocess.run(head, capture_output=True, text=True).stdout.strip()
        record = {"what": "llama-server", "machine": processor(), "date": time.strftime("%F"),
                  "commit": commit, "model": Path(args.model).name,
                  "threads": args.threads, "tokens": args.tokens, "rounds": args.rounds,
                  "options": args.options, "equal_characters": len(common),
                  "command": shlex.join(["bench/llama_server.py", *sys.argv[1:]]), "rows": []}
        for connections in args.connections:
            speeds = {name: [] for name in commands}
            for number in range(args.rounds):
                for name in list(commands)[:: 1 if number % 2 else -1]:
                    speed = round_of(name, connections, args.requests, args.tokens, number * 1000)
                    speeds[name].append(speed)
            pairs = zip(speeds["polydraft"], speeds["llama_server"])
            row = {"connections": connections}
            row |= {name: round(statistics.median(all), 1) for name, all in speeds.items()}
            row["ratio"] = round(statistics.median(a / b for a, b in pairs), 2)
            record["rows"].append(row)
            print(row, flush=True)
            args.output.write_text(json.dumps(record, indent=1) + "\n")
    finally:
        for server in started.values():
            server.terminate()
            server.wait()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("polydraft", nargs="?", type=Path, help="the program")
    parser.add_argument("model", nargs="?", help="a GGUF file")
    parser.add_argument("--llama", type=Path, help="the folder of llama-server")
    parser.add_argument("--connections", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--requests", type=int, default=3, help="of each connection in a round")
    parser.add_argument("--tokens", type=int, default=64, help="of each completion, at most")
    parser.add_argument("--context", type=int, default=512, help="of each connection")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--options", default="--verifier none", help="further ones of ours")
    parser.add_argument("-o", "--output", type=Path, help="the record")
    parser.add_argument("--show", type=Path, metavar="RECORD", help="print a record's table")
    args = parser.parse_args()
    if args.show is None:
        if None in (args.polydraft, args.model, args.llama, args.output):
            parser.error("expected --llama DIR, the program, a model and -o RECORD; or --show")
        measure(args)
    record = json.loads((args.show or args.output).read_text())
    print("| connections | polydraft, tokens/s | llama-server, tokens/s | ratio |")
    print("|---|---|---|---|")
    for row in record["rows"]:
        print(f"| {row['connections']} | {row['polydraft']:.0f} | {row['llama_server']:.0f} "
              f"| {row['ratio']:.2f} |")


main()
