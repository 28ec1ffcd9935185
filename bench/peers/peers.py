"""The parts common to the runs of other servers' tests against `polydraft serve`."""

import json
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Also in pytest, which gets this folder alone.
sys.path.append(str(HERE.parent))
import harness  # noqa: E402

KINDS = [
    "passed",
    "failed, with a reason",
    "failed",
    "about another model",
    "routes not here",
    "not passed by its own server",
    "asks no server",
    "skipped",
]


def options(doc):
    """The options of both scripts."""
    parser = harness.options(doc, "polydraft", "record")
    parser.add_argument("--source", type=Path, required=True, help="the sources of the tests")
    parser.add_argument("--model", required=True, help="a GGUF file")
    parser.add_argument("-k", dest="expression", help="of pytest: some tests alone")
    return parser


def noted(command, folder, env):
    """Runs pytest with the plugin `noted`.

    By test its outcome, the routes that it asked for, and why it failed.
    """
    notes = Path(folder, "notes.json")
    env = {**env, "PEERS_NOTES": str(notes)}
    subprocess.run(command, cwd=folder, env=env, stdout=sys.stderr, check=False)
    return {note.pop("test"): note for note in json.loads(notes.read_text())}


def routes(program, model):
    """The server's routes, as patterns, from its own description."""
    with harness.serve(program, [model, "--verifier", "none"], is_loud=False) as server:
        paths = json.loads(harness.ask(server.port, "/openapi.json")[1])["paths"]
    found = {
        (verb.upper(), re.sub(r"\{[^}]*\}", "[^/]+", path))
        for path, verbs in paths.items()
        for verb in verbs
    }
    # The pages, and the same without /v1.
    found |= {("GET", "/"), ("GET", "/health")}
    return found | {(verb, path.removeprefix("/v1")) for verb, path in found}


def is_here(asked, known):
    """Tells whether what a test asked for is one of the known routes."""
    verb, path = asked.split(" ", 1)
    return verb in ("OPTIONS", "HEAD") or any(verb == v and re.fullmatch(p, path) for v, p in known)


def judge(ours, theirs, known, reasons):
    """Counts each test as one of KINDS; what failed for no known reason.

    Reasons are by a pattern of the test's name; one that begins with "model: " is about what
    another model would write.
    """
    counts, unexplained, given = dict.fromkeys(KINDS, 0), [], harness.read(HERE / reasons)
    for test, note in ours.items():
        note["routes not here"] = [asked for asked in note["asked"] if not is_here(asked, known)]
        reason = next(
            (reason for pattern, reason in given.items() if re.search(pattern, test)), None
        )
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
            kind = (
                "about another model" if reason.startswith("model: ") else "failed, with a reason"
            )
            note["reason"] = reason
        else:
            kind = "failed"
            unexplained.append((test, note["why"]))
        note["counted as"] = kind
        counts[kind] += 1
    return counts, unexplained


def report(name, ours, theirs, known, reasons, output, with_left_out=None):
    """Prints the counts and writes the record; the exit code.

    Beside `ours` the count is told with tests that are left out.
    """
    more, _ = judge(with_left_out or ours, theirs, known, reasons)
    more = f"{more['passed']} of {sum(more[kind] for kind in KINDS[:3])}"
    counts, unexplained = judge(ours, theirs, known, reasons)
    judged = sum(counts[kind] for kind in KINDS[:3])
    share = counts["passed"] / max(judged, 1)
    said = f"{counts['passed']} of {judged} that are about routes of both: {100 * share:.0f} %"
    print(json.dumps(counts, indent=1), f"\n{said}")
    if with_left_out:
        print(f"with single tests about what there is not here: {more}")
    for test, why in unexplained:
        print("without a reason:", test, "|", why)
    if output:
        words = ("counted as", "reason", "routes not here")
        kept = {
            test: {word: note[word] for word in words if note.get(word)}
            for test, note in ours.items()
            if note["counted as"] not in ("passed", "asks no server")
        }
        record = {"what": "peers", "tests of": name, **harness.provenance()}
        record |= {"counts": counts, "share": round(share, 3)}
        record |= {"with single tests that are left out": more} if with_left_out else {}
        harness.write(output, record | {"not passed": kept})
    return 1 if unexplained else 0
