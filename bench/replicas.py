#!/usr/bin/env python3
"""Two replicas of `polydraft serve` behind vllm-router, one of which is killed in the middle.

  bench/replicas.py target/release/polydraft -- --threads 1

What follows `--` goes to `polydraft serve`. Needs vllm-router from the Python registry. Sends
requests over several connections; after a while one replica is stopped with SIGTERM, later the
other one, started again, with SIGKILL. Counted: whole answers, streams that broke off and said so,
and requests that were lost: there may be none of these last ones that had not begun to stream.
"""

import collections
import contextlib
import http.client
import json
import shutil
import sys
import threading
import time
from pathlib import Path

import harness

CONNECTIONS = 8


def ask(port, number, stream):
    """The outcome of a request."""
    body = {"prompt": f"fn number_{number}(", "max_tokens": 48, "stream": stream}
    try:
        status, answer = harness.ask(port, "/v1/completions", body, seconds=60)
    except http.client.IncompleteRead:
        return "a stream broke off" if stream else "lost"
    except (OSError, http.client.HTTPException) as error:
        return f"lost: {error}"
    if status != 200:
        return f"refused with {status}"
    text = answer.decode()
    if not stream:
        return "whole" if json.loads(text)["choices"][0]["finish_reason"] else "lost"
    if "[DONE]" in text:
        return "whole" if '"error"' not in text else "a stream ended with an error"
    return "a stream broke off"


def clients(port, seconds, counts):
    """Threads that send requests for so long."""
    end, lock = time.time() + seconds, threading.Lock()

    def client(mine):
        number = mine
        while time.time() < end:
            outcome = ask(port, number, number % 2 == 0)
            with lock:
                counts[outcome] += 1
            number += CONNECTIONS

    return [threading.Thread(target=client, args=(mine,)) for mine in range(CONNECTIONS)]


def main():
    parser = harness.options(__doc__, "program", "record")
    parser.add_argument("--seconds", type=float, default=40, help="of requests")
    args = harness.parsed(parser)
    router = shutil.which("vllm-router") or Path(sys.executable).with_name("vllm-router")
    port, counts = harness.free_port(), collections.Counter()

    def replica(port=None):
        options = ["--grace", "10", *args.options]
        return stack.enter_context(harness.serve(args.program, options, port, is_loud=False))

    with contextlib.ExitStack() as stack:
        first, second = replica(), replica()
        command = [router, "--host", "127.0.0.1", "--port", port, "--policy", "cache_aware"]
        command += ["--health-check-interval-secs", 1, "--health-failure-threshold", 1]
        command += ["--prometheus-port", harness.free_port(), "--worker-urls"]
        command += [f"http://127.0.0.1:{one.port}" for one in (first, second)]
        stack.enter_context(harness.Server(command, port)).ready()
        asking = clients(port, args.seconds, counts)
        for one in asking:
            one.start()
        time.sleep(args.seconds / 4)
        first.stop()
        time.sleep(args.seconds / 4)
        replica(first.port)
        time.sleep(args.seconds / 4)
        second.kill()
        for one in asking:
            one.join()
    found = dict(counts.most_common())
    print(json.dumps(found, indent=1))
    if args.record:
        head = harness.provenance(args.program, args.options)
        harness.write(args.record, {"what": "replicas", **head, "outcomes": found})
    sys.exit(any(outcome.startswith("lost") for outcome in counts))


main()
