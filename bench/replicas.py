#!/usr/bin/env python3
"""Two replicas of `polydraft serve` behind vllm-router, one of which is killed in the middle.

  bench/replicas.py target/release/polydraft [options of serve]

Needs vllm-router from the Python registry. Sends requests over several connections; after a while
one replica is stopped with SIGTERM, later the other one, started again, with SIGKILL. Counted: whole
answers, streams that broke off and said so, and requests that were lost: there may be none of
these last ones that had not begun to stream.
"""

import collections
import http.client
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

PORTS, ROUTER = (8411, 8412), 8410
CONNECTIONS, SECONDS = 8, 40


def ready(port, seconds=120):
    for _ in range(seconds * 5):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.2)
    sys.exit(f"nothing answers at port {port}")


def ask(number, stream):
    """What became of a request."""
    body = {"prompt": f"fn number_{number}(", "max_tokens": 48, "stream": stream}
    connection = http.client.HTTPConnection("127.0.0.1", ROUTER, timeout=60)
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        return f"refused with {answer.status}"
    try:
        text = answer.read().decode()
    except http.client.IncompleteRead:
        return "a stream broke off" if stream else "lost"
    if not stream:
        return "whole" if json.loads(text)["choices"][0]["finish_reason"] else "lost"
    if "[DONE]" in text:
        return "whole" if '"error"' not in text else "a stream ended with an error"
    return "a stream broke off"


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    router = shutil.which("vllm-router") or Path(sys.executable).with_name("vllm-router")
    quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def replica(port):
        command = [sys.argv[1], "--no-config", "serve", "--port", port, "--grace", 10, *sys.argv[2:]]
        return subprocess.Popen([str(word) for word in command], **quiet)

    replicas = {port: replica(port) for port in PORTS}
    urls = [f"http://127.0.0.1:{port}" for port in PORTS]
    for port in PORTS:
        ready(port)
    command = [router, "--host", "127.0.0.1", "--port", str(ROUTER), "--policy", "cache_aware",
               "--health-check-interval-secs", "1", "--health-failure-threshold", "1",
               "--prometheus-port", str(ROUTER + 9), "--worker-urls", *urls]
    routing = subprocess.Popen(command, **quiet)
    counts, lock = collections.Counter(), threading.Lock()
    try:
        ready(ROUTER)
        end = time.time() + SECONDS

        def client(mine):
            number = mine
            while time.time() < end:
                try:
                    outcome = ask(number, number % 2 == 0)
                except OSError as error:
                    outcome = f"lost: {error}"
                with lock:
                    counts[outcome] += 1
                number += CONNECTIONS

        clients = [threading.Thread(target=client, args=(mine,)) for mine in range(CONNECTIONS)]
        [one.start() for one in clients]
        time.sleep(SECONDS / 4)
        replicas[PORTS[0]].send_signal(signal.SIGTERM)
        replicas[PORTS[0]].wait()
        time.sleep(SECONDS / 4)
        replicas[PORTS[0]] = replica(PORTS[0])
        ready(PORTS[0])
        time.sleep(SECONDS / 4)
        replicas[PORTS[1]].kill()
        [one.join() for one in clients]
    finally:
        for process in [routing, *replicas.values()]:
            process.kill()
    print(json.dumps(dict(counts.most_common()), indent=1))
    sys.exit(any(outcome.startswith("lost") for outcome in counts))


main()
