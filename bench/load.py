#!/usr/bin/env python3
"""Load on `polydraft serve`, over loopback, bounded: many connections, some of which go away; hostile bodies; memory.

    python3 bench/load.py target/release/polydraft --requests 1000 --connections 32 --fuzz 10000 -- --threads 2

What follows `--` goes to `polydraft serve`. Prints one JSON object: tokens per second one at a time and together, with trees that
choose themselves, fixed ones and none, by turns; p50 and p99 of the time between two chunks of a stream; status codes; memory before
and after each of three rounds of requests, some of which are cancelled, and after the hostile bodies. Exit code 1 if anything was
lost or answered with another code than is right.
"""

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
import time

PROMPTS = ["impl Iterator for", "fn main() {", "/// Returns the", "pub struct Config {", "use std::", "#[test]\nfn"]


def resident(pid):
    with open(f"/proc/{pid}/status") as file:
        return int(re.search(r"VmRSS:\s+(\d+)", file.read())[1])


async def connect(port, body, path="/v1/completions"):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    return reader, writer


async def whole(port, body, path="/v1/completions"):
    """Status and body; None where the server closed the connection without an answer."""
    reader, writer = await connect(port, body, path)
    data = await reader.read()
    writer.close()
    if not data.startswith(b"HTTP/1.1 "):
        return None, data
    head, _, rest = data.partition(b"\r\n\r\n")
    return int(head[9:12]), rest


async def stream(port, body, leave_after, slow, gaps):
    """Tokens, or None where this client left; raises where an answer was lost."""
    reader, writer = await connect(port, body)
    last, chunks, tokens, done = None, 0, None, False
    while line := await reader.readline():
        if not line.startswith(b"data: "):
            continue
        if line.strip() == b"data: [DONE]":
            done = True
            continue
        now = time.monotonic()
        if last is not None and slow == 0:
            gaps.append(now - last)
        last, chunks = now, chunks + 1
        chunk = json.loads(line[6:])
        if "error" in chunk:
            raise RuntimeError(chunk)
        if chunk.get("usage"):
            tokens = chunk["usage"]["completion_tokens"]
        if leave_after is not None and chunks >= leave_after:
            writer.transport.abort()
            return None
        if slow:
            await asyncio.sleep(slow)
    writer.close()
    if not done or tokens is None:
        raise RuntimeError("a stream ended before its end")
    return tokens


def asked(rng, tokens):
    """Without a seed: trees give way to neighbours only where no text was promised bit for bit."""
    return {
        "prompt": rng.choice(PROMPTS), "max_tokens": rng.randint(tokens // 2, tokens), "stream": True,
        "stream_options": {"include_usage": True}, "temperature": rng.choice([0, 0.7, 1]),
    }


async def load(port, requests, connections, tokens, seed, cancels=0.2, extra={}):
    rng, queue, counts, gaps = random.Random(seed), list(range(requests)), {"done": 0, "left": 0, "lost": 0}, []
    written = 0

    async def client():
        nonlocal written
        while queue:
            queue.pop()
            body = json.dumps(asked(rng, tokens) | extra).encode()
            leave = rng.randint(1, 6) if rng.random() < cancels else None
            slow = 0.02 if rng.random() < 0.02 else 0
            try:
                made = await stream(port, body, leave, slow, gaps)
                counts["left" if made is None else "done"] += 1
                written += made or 0
            except Exception as error:
                print(f"lost: {error!r}", file=sys.stderr)
                counts["lost"] += 1

    clock = time.monotonic()
    await asyncio.gather(*[client() for _ in range(connections)])
    return written, time.monotonic() - clock, counts, sorted(gaps)


def hostile(rng):
    """A body that is wrong nearly always."""
    good = json.dumps({"prompt": "fn", "max_tokens": 1, "n": 1, "stop": ["x"], "speculation": {"verifier": "block", "tree": "paths:1,2"}})
    kind = rng.randrange(5)
    if kind == 0:
        return rng.randbytes(rng.randrange(200))
    if kind == 1:
        data = bytearray(good.encode())
        for _ in range(rng.randint(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        return bytes(data)
    if kind == 2:
        return good[: rng.randrange(len(good))].encode()
    if kind == 3:
        value = rng.choice([None, -1, 1e308, 2**70, "x", [], {}, [[]], True, "\u0000", "9" * 300, {"a": 1}, [None], 0.5])
        name = rng.choice("prompt max_tokens n stop temperature top_p top_k min_p seed logprobs echo stream speculation logit_bias user "
                          "frequency_penalty stream_options messages model tools x".split())
        return json.dumps({"max_tokens": 1, "prompt": "fn", name: value}).encode()
    return (b"[" if rng.random() < 0.5 else b'{"prompt":') * rng.randint(1, 3000)


async def fuzz(port, count, connections, seed):
    rng, left, codes = random.Random(seed), list(range(count)), {}

    async def client():
        while left:
            left.pop()
            path = rng.choice(["/v1/completions", "/v1/chat/completions"])
            code, body = await whole(port, hostile(rng), path)
            codes[code] = codes.get(code, 0) + 1
            if code not in (200, 400, 404, 413):
                print(f"wrong: {code} {body[:300]!r}", file=sys.stderr)

    await asyncio.gather(*[client() for _ in range(connections)])
    return codes


async def half_open(port, count):
    """Connections that begin and say no more; they are left open."""
    writers = []
    for number in range(count):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write([b"", b"POST /v1/comp", b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 50\r\n\r\n{"][number % 3])
        writers.append(writer)
    return writers


async def compared(port, ways, arguments, requests, connections, seed):
    """Tokens per second of each way to speculate, by turns; the median of the rounds."""
    speeds = {name: [] for name in ways}
    for turn in range(arguments.rounds):
        for name, speculation in ways.items():
            extra = {} if speculation is None else {"speculation": speculation}
            written, seconds, counts, _ = await load(port, requests, connections, arguments.tokens, seed + turn, 0, extra)
            assert counts["lost"] == 0, counts
            speeds[name].append(written / seconds)
    return {name: round(sorted(each)[len(each) // 2], 1) for name, each in speeds.items()}


async def measure(arguments, port, pid):
    auto, plain = {"tree": "auto"}, "none"
    fixed = {tree: {"tree": tree} for tree in ["paths:1,2", "paths:1,4", "paths:2,3", "paths:2,5", "paths:4,4"]}
    # Warm: pools, caches, and what is kept for prompts that begin alike.
    await load(port, 8 * arguments.connections, arguments.connections, arguments.tokens, 0)
    alone = await compared(port, {"auto": auto, "plain": plain, **fixed}, arguments, arguments.alone, 1, 10)
    held = await half_open(port, 30)
    memory = [resident(pid)]
    rounds = []
    for turn in range(3):
        written, seconds, counts, gaps = await load(port, arguments.requests, arguments.connections, arguments.tokens, 2 + turn)
        at = lambda part: round(1e3 * gaps[min(len(gaps) - 1, int(part * len(gaps)))], 2) if gaps else None
        memory.append(resident(pid))
        rounds.append({
            "requests": counts, "tokens_per_second": round(written / seconds, 1),
            "milliseconds_between_chunks": {"p50": at(0.5), "p99": at(0.99)},
        })
    together = await compared(
        port, {"auto": auto, "plain": plain}, arguments, arguments.requests // 4, arguments.connections, 20
    )
    codes = await fuzz(port, arguments.fuzz, arguments.connections, 3)
    [writer.close() for writer in held]
    await asyncio.sleep(2)
    memory.append(resident(pid))
    best = max(speed for name, speed in alone.items() if name in fixed)
    return {
        "rounds": rounds,
        "tokens_per_second_alone": alone,
        "auto_of_best_fixed_tree_alone": round(alone["auto"] / best, 3),
        "tokens_per_second_together": together,
        "auto_of_plain_together": round(together["auto"] / together["plain"], 3),
        "together_of_alone": round(together["auto"] / alone["auto"], 2),
        "hostile_bodies": {str(code): count for code, count in sorted(codes.items(), key=str)},
        "resident_kib": memory,
        "resident_after_of_before": [round(after / before, 4) for before, after in zip(memory, memory[1:])],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--alone", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--fuzz", type=int, default=10000)
    own, _, serve = " ".join(sys.argv[1:]).partition(" -- ")
    arguments = parser.parse_args(own.split())
    command = [arguments.program, "--no-config", "serve", "--port", "0", *serve.split()]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        for line in server.stderr:
            if found := re.search(r"serving at http://127.0.0.1:(\d+)", line):
                break
        else:
            sys.exit("the server did not start")
        import threading

        threading.Thread(target=lambda: [sys.stderr.write(line) for line in server.stderr], daemon=True).start()
        result = asyncio.run(measure(arguments, int(found[1]), server.pid))
        server.terminate()
        result["exit_code"] = server.wait(timeout=90)
    finally:
        server.kill()
    print(json.dumps(result, indent=2))
    good = all(turn["requests"]["lost"] == 0 for turn in result["rounds"]) and result["exit_code"] == 0
    sys.exit(0 if good and set(result["hostile_bodies"]) <= {"200", "400", "404", "413"} else 1)


main()
