#!/usr/bin/env python3
"""Structured output on schemas: what is refused, and whether what is written is valid.

  bench/schemas.py target/release/polydraft FOLDER [-o RECORD]

FOLDER has JSON files: lists of objects with "schema" (as JSON-Schema-Test-Suite's
tests/draft2020-12 has them), or single schemas. For each schema the demo pair writes one output at
temperature 1, with drafts, which the package jsonschema checks; output that is cut off at --tokens
counts apart. A request that takes longer than --seconds is a hang. What follows `--` goes to
`polydraft serve`.
"""

import collections
import concurrent.futures
import json
import sys
from pathlib import Path

import harness
import jsonschema


def schemas(folder):
    """Names of schemas, and the schemas."""
    for path in sorted(Path(folder).rglob("*.json")):
        read = harness.read(path)
        groups = read if isinstance(read, list) else [{"schema": read, "description": ""}]
        for group in groups:
            if isinstance(group, dict) and isinstance(group.get("schema"), dict):
                yield f"{path.stem}: {group.get('description', '')}", group["schema"]


def outcome(schema, port, args):
    """The outcome of a schema, and what was said of it."""
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    body = {"prompt": "{", "response_format": wanted, "max_tokens": args.tokens, "seed": 1}
    try:
        status, answer = harness.ask(port, "/v1/completions", body, args.seconds)
    except TimeoutError:
        return "hang", ""
    answer = json.loads(answer)
    if status != 200:
        return ("refused" if status == 400 else f"status {status}"), answer["error"]["message"]
    choice = answer["choices"][0]
    if choice["finish_reason"] == "length":
        return "cut off", ""
    try:
        value = json.loads(choice["text"])
        jsonschema.Draft202012Validator(schema).validate(value)
        return "valid", ""
    except (ValueError, jsonschema.ValidationError) as error:
        return "invalid", f"{choice['text'][:200]}: {str(error)[:200]}"
    except Exception as error:  # what the validator itself cannot resolve
        return "not checked", str(error)[:200]


def main():
    parser = harness.options(__doc__, "program", "tokens", "record", tokens=300)
    parser.add_argument("folder", type=Path, help="of JSON files")
    parser.add_argument("--seconds", type=float, default=60, help="of a request at most")
    args = harness.parsed(parser)
    all = list(schemas(args.folder))
    with harness.serve(args.program, args.options) as server:
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda pair: outcome(pair[1], server.port, args), all))
    counts = collections.Counter(kind for kind, _ in found)
    rows = [
        {"schema": name, "outcome": kind, "message": said}
        for (name, _), (kind, said) in zip(all, found)
    ]
    for row in rows:
        if row["outcome"] in ("invalid", "hang") or row["outcome"].startswith("status"):
            print(f"{row['outcome']}: {row['schema']}: {row['message']}")
    print(dict(counts))
    if args.record:
        refused = [row for row in rows if row["outcome"] == "refused"]
        head = harness.provenance(args.program, args.options)
        harness.write(
            args.record, {"what": "schemas", **head, "counts": counts, "refused": refused}
        )
    sys.exit(any(kind in ("invalid", "hang") or kind.startswith("status") for kind, _ in found))


main()
