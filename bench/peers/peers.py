"""What the runs of other servers' own tests against `polydraft serve` share."""

import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
KINDS = ["passed", "failed, with a reason", "failed", "about another model", "routes not here", "not passed by its own server",
         "asks no server", "skipped"]


def start(program, model, port, *options):
    """A server that answers."""
    # A file, not a pipe, which a server that logs would fill.
    log = tempfile.TemporaryFile("w+", errors="replace")
    server = subprocess.Popen([program, "serve", model, "--port", str(port), *options], stderr=log)
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health"):
                return server
        except OSError:
            time.sleep(0.1)
        if server.poll() is not None:
            log.seek(0)
            raise RuntimeError(f"the server ended: {log.read()}")
    server.kill()
    raise RuntimeError("the server does not answer")


def stop(server):
    server.terminate()
    server.wait()


def free_port():
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def noted(command, folder, env):
    """Runs pytest with the plugin `noted`; by test its outcome, the routes that it asked for, and why it failed."""
    notes = Path(folder, "notes.json")
    subprocess.run(command, cwd=folder, env={**env, "PEERS_NOTES": str(notes)}, stdout=sys.stderr, check=False)
    return {note.pop("test"): note for note in json.loads(notes.read_text())}


def routes(program, model):
    """The server's routes, as patterns, from its own description."""
    port = free_port()
    server = start(program, model, port, "--verifier", "none")
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/openapi.json") as answer:
            paths = json.load(answer)["paths"]
    finally:
        stop(server)
    found = {(verb.upper(), re.sub(r"\{[^}]*\}", "[^/]+", path)) for path, verbs in paths.items() for verb in verbs}
    # The pages, and the same without /v1.
    found |= {("GET", "/"), ("GET", "/health")}
    return found | {(verb, path.removeprefix("/v1")) for verb, path in found}


def is_here(asked, known):
    verb, path = asked.split(" ", 1)
    return verb in ("OPTIONS", "HEAD") or any(verb == v and re.fullmatch(p, path) for v, p in known)


def judge(ours, theirs, known, reasons):
    """Counts each test as one of KINDS; what failed for no known reason.

    Reasons are by a pattern of the test's name; one that begins with "model: " is about what another model would write.
    """
    counts, unexplained, given = dict.fromkeys(KINDS, 0), [], json.loads((HERE / reasons).read_text())
    for test, note in ours.items():
        note["routes not here"] = [asked for asked in note["asked"] if not is_here(asked, known)]
        reason = next((reason for pattern, reason in given.items() if re.search(pattern, test)), None)
        if note["outcome"] == "skipped":
            kind = "skipped"
        elif note["outcome"] == "passed":
            kind = "passed" if note["asked"] else "asks no server"
        elif theirs and theirs.get(test, {}).get("outcome") != "passed":
            kind = "not passed by its own server"
        elif note["routes not here"]:
            kind = "routes not here"
        elif not note["asked"] and not theirs:
            kind = "asks no server"
        elif reason:
            kind = "about another model" if reason.startswith("model: ") else "failed, with a reason"
            note["reason"] = reason
        else:
            kind = "failed"
            unexplained.append((test, note["why"]))
        note["counted as"] = kind
        counts[kind] += 1
    return counts, unexplained


def report(name, ours, theirs, known, reasons, output, with_left_out=None):
    """Prints the counts and writes the record; the exit code. Beside `ours` the count is told with tests that are left out."""
    more, _ = judge(with_left_out or ours, theirs, known, reasons)
    more = f"{more['passed']} of {sum(more[kind] for kind in KINDS[:3])}"
    counts, unexplained = judge(ours, theirs, known, reasons)
    judged = sum(counts[kind] for kind in KINDS[:3])
    share = counts["passed"] / max(judged, 1)
    print(json.dumps(counts, indent=1), f"\n{counts['passed']} of {judged} that are about routes of both: {100 * share:.0f} %")
    if with_left_out:
        print(f"with single tests about what there is not here: {more}")
    for test, why in unexplained:
        print("without a reason:", test, "|", why)
    if output:
        kept = {test: {word: note[word] for word in ("counted as", "reason", "routes not here") if note.get(word)}
                for test, note in ours.items() if note["counted as"] not in ("passed", "asks no server")}
        record = {"what": "peers", "tests of": name, "date": time.strftime("%F"), "counts": counts, "share": round(share, 3),
                  **({"with single tests that are left out": more} if with_left_out else {}), "not passed": kept}
        output.write_text(json.dumps(record, indent=1) + "\n")
    return 1 if unexplained else 0
