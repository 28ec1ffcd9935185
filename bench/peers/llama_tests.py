#!/usr/bin/env python3
"""llama-server's own tests, from llama.cpp's sources, against `polydraft serve` and llama-server.

  bench/peers/llama_tests.py --source DIR --model smollm2.gguf \\
      [--polydraft target/release/polydraft] [--llama-server build/bin/llama-server] \\
      [--own FILE] [-k EXPRESSION] [-o RECORD]

DIR holds llama.cpp's sources (llama-cpp-python's vendor/llama.cpp). Needs what
DIR/tools/server/tests/requirements.txt names. Files and single tests about what there is not here
are left out (OTHERS, SUBJECTS). Tests of routes that are not here are counted apart; so are those
that llama-server itself does not pass with this model, where it is given: they are about the tests'
own model. Each other failure needs its reason in llama_reasons.json. Exit code 1 if one has none.
"""

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import peers
from peers import HERE, harness

# Files that are about other models or other programs from the first line to the last.
OTHERS = {
    "test_embedding": "embeddings",
    "test_rerank": "rerankers",
    "test_infill": "filling in the middle",
    "test_lora": "LoRA",
    "test_vision_api": "pictures",
    "test_mcp_servers": "tools that the server runs",
    "test_tools_builtin": "tools that the server runs",
    "test_proxy": "a proxy for its page",
    "test_router": "its router",
    "test_sleep": "its sleeping",
    "test_stream": "its router",
    "test_slot_save": "slots in files",
    "test_ctx_shift": "dropping a context's start",
    "test_kv_keep_only_active": "its log",
    "test_compat_gcp": "Vertex AI's routes",
}
# Single tests elsewhere about the same, left out whether they pass or not.
SUBJECTS = {
    "vision|image|local_media_file": "pictures",
    "cors_proxy|with_tools_enabled": "tools that the server runs",
}

# What only llama-server's own name would satisfy, and what is asked instead.
INSTEAD = {'.startswith("b")': '.startswith(("b", "fp_"))'}


def run(source, model, kind, program, expression):
    """The outcome of each test, the routes that it asked for, and why it failed."""
    with tempfile.TemporaryDirectory() as folder:
        # The tests open files of the sources by paths relative to their own folder.
        place = Path(folder, "tools", "server", "tests")
        shutil.copytree(source / "tools" / "server" / "tests", place)
        os.symlink((source / "models").resolve(), Path(folder, "models"))
        for path in place.glob("unit/test_*.py"):
            text = path.read_text(encoding="utf-8")
            for old, new in INSTEAD.items():
                text = text.replace(old, new)
            path.write_text(text, encoding="utf-8")
        env = {
            **os.environ,
            "LLAMA_SERVER_BIN_PATH": str(HERE / "as_llama_server.py"),
            "PEERS_SERVER": kind,
            "PEERS_PROGRAM": str(Path(program).resolve()),
            "PEERS_MODEL": str(Path(model).resolve()),
            "PYTHONPATH": f"{HERE}{os.pathsep}{place}",
            "PORT": str(harness.free_port()),
        }
        files = sorted(path for path in place.glob("unit/test_*.py") if path.stem not in OTHERS)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "llama_plugin"]
        command += ["-p", "no:cacheprovider", "-m", "not slow"]
        command += [str(path.relative_to(place)) for path in files]
        command += ["-k", expression] if expression else []
        return peers.noted(command, place, env)


def main():
    parser = peers.options(__doc__)
    parser.add_argument("--llama-server", help="the program")
    parser.add_argument(
        "--own", type=Path, help="its outcomes: read if they are there, else written"
    )
    args = parser.parse_args()
    known = peers.routes(args.polydraft, args.model)
    ours = run(args.source, args.model, "polydraft", args.polydraft, args.expression)
    if args.own and args.own.exists():
        theirs = {test: {"outcome": outcome} for test, outcome in harness.read(args.own).items()}
    elif args.llama_server:
        theirs = run(args.source, args.model, "llama-server", args.llama_server, args.expression)
        if args.own:
            harness.write(args.own, {test: note["outcome"] for test, note in theirs.items()})
    else:
        theirs = {}
    subject = re.compile("|".join(SUBJECTS))
    kept = {test: note for test, note in ours.items() if not subject.search(test)}
    reasons = "llama_reasons.json"
    sys.exit(peers.report("llama-server", kept, theirs, known, reasons, args.record, ours))


if __name__ == "__main__":
    main()
