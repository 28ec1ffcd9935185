#!/usr/bin/env python3
"""Hostile clients of `polydraft serve`, bounded, while others are served.

    python3 bench/hostile.py target/release/polydraft -- --threads 2

Bodies that are wrong, too large or never come, nonsense, readers that do not read. What follows
`--` goes to `polydraft serve`. Prints one JSON object: status codes of each kind (`null`: closed
without an answer), and memory before and after. Exit code 1 if anything was answered with another
code than is right.
"""

import asyncio
import collections
import json
import random
import socket
import sys

import harness

ROUTES = ["/v1/completions", "/v1/chat/completions", "/v1/responses"]
NAMES = (
    "prompt messages input max_tokens n stop temperature top_p top_k min_p seed logprobs"
    " top_logprobs echo stream stream_options speculation logit_bias user frequency_penalty"
    " presence_penalty response_format model tools tool_choice steps suffix x"
).split()
VALUES = [
    None,
    -1,
    1e308,
    2**70,
    "x",
    [],
    {},
    [[]],
    True,
    "\u0000",
    "9" * 300,
    {"a": 1},
    [None],
    0.5,
    {"type": "json_schema"},
    [{"role": "user"}],
    [{"role": "tool", "content": "x"}],
    {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}},
]
POST = b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nConnection: close\r\n"
# What may be answered: a few of the bodies come out right.
RIGHT = {200, 400, 404, 413}


def body(rng):
    """A body that is wrong nearly always."""
    speculation = {"verifier": "block", "tree": "paths:1,2"}
    good = {"max_tokens": 1, "n": 1, "stop": ["x"], "speculation": speculation}
    good[rng.choice(["prompt", "input"])] = "fn"
    text, kind = json.dumps(good), rng.randrange(5)
    if kind == 0:
        return rng.randbytes(rng.randrange(200))
    if kind == 1:
        data = bytearray(text.encode())
        for _ in range(rng.randint(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        return bytes(data)
    if kind == 2:
        return text[: rng.randrange(len(text))].encode()
    if kind == 3:
        odd = {rng.choice(NAMES): rng.choice(VALUES)}
        return json.dumps({"max_tokens": 1, "prompt": "fn"} | odd).encode()
    return (b"[" if rng.random() < 0.5 else b'{"prompt":') * rng.randint(1, 3000)


async def bodies(port, count, connections, seed):
    """Wrong bodies, over several connections."""
    rng, left, codes = random.Random(seed), list(range(count)), collections.Counter()

    async def client():
        while left:
            left.pop()
            sent = body(rng)
            asked = await harness.connect(port, sent, rng.choice(ROUTES))
            code, answer = await harness.answered(*asked)
            codes[code] += 1
            # What is refused is refused in the interface's form.
            if code not in RIGHT or (code != 200 and "message" not in json.loads(answer)["error"]):
                print(f"wrong: {code} {answer[:300]!r} to {sent[:300]!r}", file=sys.stderr)

    await asyncio.gather(*[client() for _ in range(connections)])
    return codes


async def oversized(port, count):
    """Bodies over the limit, with their length stated and in pieces without one."""
    codes, piece = collections.Counter(), b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    for number in range(count):
        if number % 2:
            reader, writer = await harness.connect(port, b" " * (3 << 20))
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(POST + b"Transfer-Encoding: chunked\r\n\r\n" + piece * 40)
        codes[(await harness.answered(reader, writer))[0]] += 1
    return codes


async def nonsense(port, count, seed):
    """Bytes that are no HTTP, and heads that are too large."""
    rng, codes = random.Random(seed), collections.Counter()
    for number in range(count):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = (
            b"GET /health HTTP/1.1\r\nHost: h\r\nConnection: close\r\nX: "
            + b"x" * (1 << 17)
            + b"\r\n\r\n"
        )
        writer.write(head if number % 2 else rng.randbytes(rng.randint(20, 400)) + b"\r\n\r\n")
        codes[(await harness.answered(reader, writer))[0]] += 1
    return codes


async def half_open(port, count):
    """Connections that begin and say no more."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 50\r\n\r\n{"
    begun = [b"", b"POST /v1/comp", head]

    async def client(number):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(begun[number % 3])
        return (await harness.answered(reader, writer))[0]

    return collections.Counter(await asyncio.gather(*[client(number) for number in range(count)]))


async def not_reading(port, count, seconds):
    """Readers that ask for megabytes and take nothing for a while.

    What they get then is all of it, or was cut off.
    """

    async def client():
        small = socket.socket()
        small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        small.setblocking(False)
        await asyncio.get_running_loop().sock_connect(small, ("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=small, limit=4096)
        body = {"prompt": "fn", "max_tokens": 400, "stream": True, "steps": 16, "n": 8}
        asked = json.dumps(body).encode()
        writer.write(POST + b"Content-Length: %d\r\n\r\n" % len(asked) + asked)
        await asyncio.sleep(seconds)
        code, answer = await harness.answered(reader, writer)
        return f"{code}, {'whole' if b'[DONE]' in answer else 'cut off'}"

    return collections.Counter(await asyncio.gather(*[client() for _ in range(count)]))


async def served(port, until):
    """Requests that are right, one after another: seconds of the slowest."""
    loop, slowest, count = asyncio.get_running_loop(), 0, 0
    while not until.is_set():
        clock = loop.time()
        asked = await harness.connect(port, b'{"prompt": "fn", "max_tokens": 16}')
        code, answer = await harness.answered(*asked)
        if code != 200:
            raise RuntimeError(f"a request that was right: {code} {answer[:300]!r}")
        slowest, count = max(slowest, loop.time() - clock), count + 1
        await asyncio.sleep(0.2)
    return {"requests": count, "slowest_seconds": round(slowest, 3)}


async def measure(arguments, server):
    port, over = server.port, asyncio.Event()
    # All kinds once, to fill pools and caches.
    await asyncio.gather(
        bodies(port, arguments.bodies // 10, arguments.connections, 1),
        oversized(port, 40),
        nonsense(port, 200, 3),
        not_reading(port, 4, 5),
    )
    # At rest it gives memory back.
    await asyncio.sleep(3)
    before = server.resident()
    beside = asyncio.create_task(served(port, over))
    open_half = asyncio.create_task(half_open(port, 30))
    unread = asyncio.create_task(not_reading(port, 4, arguments.unread))
    kinds = {
        "bodies": await bodies(port, arguments.bodies, arguments.connections, 2),
        "oversized": await oversized(port, 40),
        "nonsense": await nonsense(port, 200, 3),
        "half_open": await open_half,
        "not_reading": await unread,
    }
    over.set()
    beside = await beside
    await asyncio.sleep(3)
    after = server.resident()
    named = {
        kind: {
            "null" if code is None else str(code): codes[code] for code in sorted(codes, key=str)
        }
        for kind, codes in kinds.items()
    }
    memory = {"resident_kib": [before, after], "resident_after_of_before": round(after / before, 4)}
    return named | {"beside_them": beside} | memory


def main():
    parser = harness.options(__doc__, "program", "record")
    parser.add_argument("--bodies", type=int, default=10000, help="that are wrong")
    parser.add_argument("--connections", type=int, default=32, help="at once")
    parser.add_argument("--unread", type=float, default=75, help="seconds in which nothing is read")
    arguments = harness.parsed(parser)
    with harness.serve(arguments.program, arguments.options) as server:
        result = asyncio.run(measure(arguments, server))
        result |= harness.provenance(arguments.program, arguments.options)
        result["exit_code"] = server.stop()
    harness.put(result, arguments.record)
    allowed = {
        "bodies": {str(code) for code in RIGHT},
        "oversized": {"413"},
        "nonsense": {"400", "431"},
        "half_open": {"408", "null"},
        "not_reading": {"200, whole", "200, cut off"},
    }
    right = all(set(result[kind]) <= codes for kind, codes in allowed.items())
    sys.exit(0 if result["exit_code"] == 0 and right else 1)


main()
