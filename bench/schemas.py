#!/usr/bin/env python3
"""Structured output on schemas: what is refused, and whether what is written is valid.

  bench/schemas.py polydraft FOLDER [-o RECORD]

FOLDER has JSON files: lists of objects with "schema" (as JSON-Schema-Test-Suite's tests/draft2020-12
has them), or single schemas. For each schema the demo pair writes one output at temperature 1, with
drafts, which the package jsonschema checks; output that is cut off at --tokens counts apart. A
request that takes longer than --seconds is a hang.
"""

import argparse
import collections
import concurrent.futures
import json
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import jsonschema
from serving import Server


def schemas(folder):
    for path in sorted(Path(folder).rglob("*.json")):
        read = json.loads(path.read_text())
        groups = read if isinstance(read, list) else [{"schema": read, "description": ""}]
        for group in groups:
            if isinstance(group, dict) and isinstance(group.get("schema"), dict):
                yield f"{path.stem}: {group.get('description', '')}", group["schema"]


def post(body, port, seconds):
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=seconds) as answer:
        return json.load(answer)


def outcome(schema, args):
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    body = {"prompt": "{", "response_format": wanted, "max_tokens": args.tokens, "seed": 1}
    try:
        choice = post(body, args.port, args.seconds)["choices"][0]
    except urllib.error.HTTPError as error:
        said = json.load(error)["error"]["message"]
        return ("refused" if error.code == 400 else f"status {error.code}"), said
    except TimeoutError:
        return "hang", ""
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("polydraft", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    server = Server(args.polydraft, [])
    args.port = server.port
    try:
        all = list(schemas(args.folder))
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda pair: outcome(pair[1], args), all))
    finally:
        server.stop()
    counts = collections.Counter(kind for kind, _ in found)
    rows = [{"schema": name, "outcome": kind, "message": said} for (name, _), (kind, said) in zip(all, found)]
    for row in rows:
        if row["outcome"] in ("invalid", "hang") or row["outcome"].startswith("status"):
            print(f"{row['outcome']}: {row['schema']}: {row['message']}")
    print(dict(counts))
    if args.output:
        record = {"what": "schemas", "date": time.strftime("%F"), "counts": counts,
                  "refused": [row for row in rows if row["outcome"] == "refused"]}
        args.output.write_text(json.dumps(record, indent=1) + "\n")
    sys.exit(any(kind in ("invalid", "hang") or kind.startswith("status") for kind, _ in found))


main()
