#!/usr/bin/env python3
"""Load on `polydraft serve`, bounded: many connections, some of which go away; memory.

    python3 bench/load.py target/release/polydraft -- --threads 2

What follows `--` goes to `polydraft serve`. Prints one JSON object: tokens per second one at a time
and together, with trees that choose themselves, fixed ones and none, by turns; and of rounds of
requests, a fifth of which are cancelled, what became of them, p50 and p99 of the time between two
chunks of a stream, and memory once they have ended, beside that after two rounds of the same kind
before them, which filled pools and caches. Exit code 1 if an answer was lost or memory grew by more
than 2 %.
"""

import asyncio
import json
import random
import statistics
import sys
import time

import harness

PROMPTS = [
    "impl Iterator for",
    "fn main() {",
    "/// Returns the",
    "pub struct Config {",
    "use std::",
    "#[test]\nfn",
]


async def stream(port, body, leave_after, slow, gaps):
    """Tokens, or None where this client left; raises where an answer was lost."""
    reader, writer = await harness.connect(port, body)
    last, count, tokens = None, 0, None
    async for chunk in harness.chunks(reader):
        now = time.monotonic()
        if last is not None and slow == 0:
            gaps.append(now - last)
        last, count = now, count + 1
        if chunk.get("usage"):
            tokens = chunk["usage"]["completion_tokens"]
        if leave_after is not None and count >= leave_after:
            writer.transport.abort()
            return None
        if slow:
            await asyncio.sleep(slow)
    writer.close()
    if tokens is None:
        raise RuntimeError("a stream without its usage")
    return tokens


def asked(rng, tokens):
    """A request without a seed: trees give way to neighbours only where no text was promised."""
    return {
        "prompt": rng.choice(PROMPTS),
        "max_tokens": rng.randint(tokens // 2, tokens),
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": rng.choice([0, 0.7, 1]),
    }


async def load(port, requests, connections, tokens, seed, cancels=0.2, extra={}):
    """Tokens, seconds, what became of requests, and times between chunks."""
    rng, queue, gaps = random.Random(seed), list(range(requests)), []
    counts, written = {"done": 0, "left": 0, "lost": 0}, 0

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


async def compared(port, ways, arguments, requests, connections, seed):
    """Tokens per second of each way to speculate, by turns; the median of the rounds."""
    speeds = {name: [] for name in ways}
    for turn in range(arguments.turns):
        for name, speculation in ways.items():
            written, seconds, counts, _ = await load(
                port,
                requests,
                connections,
                arguments.tokens,
                seed + turn,
                0,
                {"speculation": speculation},
            )
            assert counts["lost"] == 0, counts
            speeds[name].append(written / seconds)
    return {name: round(statistics.median(each), 1) for name, each in speeds.items()}


async def speeds(arguments, port):
    """Tokens per second of one request at a time and of many together."""
    auto, plain = {"tree": "auto"}, "none"
    fixed = {
        f"paths:{tree}": {"tree": f"paths:{tree}"} for tree in ("1,2", "1,4", "2,3", "2,5", "4,4")
    }
    ways = {"auto": auto, "plain": plain, **fixed}
    alone = await compared(port, ways, arguments, arguments.alone, 1, 10)
    together = await compared(
        port,
        {"auto": auto, "plain": plain},
        arguments,
        arguments.requests // 4,
        arguments.connections,
        20,
    )
    best = max(speed for name, speed in alone.items() if name in fixed)
    return {
        "tokens_per_second_alone": alone,
        "auto_of_best_fixed_tree_alone": round(alone["auto"] / best, 3),
        "tokens_per_second_together": together,
        "auto_of_plain_together": round(together["auto"] / together["plain"], 3),
        "together_of_alone": round(together["auto"] / alone["auto"], 2),
    }


def at(gaps, part):
    """Milliseconds below which so many of the sorted times are."""
    return round(1e3 * gaps[min(len(gaps) - 1, int(part * len(gaps)))], 2) if gaps else None


async def measure(arguments, server):
    rounds, memory = [], []
    # The first ones, of the same kind, fill pools and caches.
    for turn in range(arguments.warm + arguments.rounds):
        written, seconds, counts, gaps = await load(
            server.port, arguments.requests, arguments.connections, arguments.tokens, 2 + turn
        )
        # At rest it gives memory back.
        await asyncio.sleep(3)
        memory.append(server.resident())
        rounds.append(
            {
                "requests": counts,
                "tokens_per_second": round(written / seconds, 1),
                "milliseconds_between_chunks": {"p50": at(gaps, 0.5), "p99": at(gaps, 0.99)},
                "resident_kib": memory[-1],
            }
        )
    for turn in rounds[arguments.warm :]:
        turn["resident_of_before"] = round(turn["resident_kib"] / memory[arguments.warm - 1], 4)
    return {"rounds": rounds} | (await speeds(arguments, server.port) if arguments.turns else {})


def main():
    shared = ("program", "rounds", "tokens", "record")
    parser = harness.options(__doc__, *shared, rounds=8, tokens=48)
    add = parser.add_argument
    add("--requests", type=int, default=1000, help="of a round")
    add("--warm", type=int, default=2, help="rounds before those that count, at least 1")
    add("--connections", type=int, default=32, help="at once")
    add("--alone", type=int, default=30, help="requests of a turn one at a time")
    add("--turns", type=int, default=3, help="of each way to speculate; 0: memory alone")
    arguments = harness.parsed(parser)
    if arguments.warm < 1:
        parser.error("--warm: memory is compared with that after a round")
    with harness.serve(arguments.program, arguments.options) as server:
        result = asyncio.run(measure(arguments, server))
        result |= harness.provenance(arguments.program, arguments.options)
        result["exit_code"] = server.stop()
    harness.put(result, arguments.record)
    whole = (
        all(turn["requests"]["lost"] == 0 for turn in result["rounds"]) and result["exit_code"] == 0
    )
    steady = all(turn["resident_of_before"] <= 1.02 for turn in result["rounds"][arguments.warm :])
    sys.exit(0 if whole and steady else 1)


main()
