#!/usr/bin/env python3
"""Are lossless servers accused no more often than `polydraft audit` says? Many audits of one server, each with a seed of its own.

  bench/audit_repeatedly.py target/release/polydraft --audits 100 --requests 1500 --record demo.json
  bench/audit_repeatedly.py target/release/polydraft --audits 30 --requests 1500 --record smollm2.json -- FILE.gguf --draft HEAD
  bench/audit_repeatedly.py target/release/polydraft --audits 30 --url http://127.0.0.1:8000 --record other.json

Starts `polydraft serve` with what follows `--` (the demo pair by default), or takes the server at
--url, and audits it with the seeds from --first on. The error rate is 5 % unless another is given, so
that a wrong one would show. Counts the audits that accuse the server, and those whose smallest p-value,
corrected for all tests of the audit, is at most 1, 5, 10, 20 and 50 %: of a lossless server no more
than such shares. Audits that are in the file --record are not made again, if they were made with the
same options. The exit code is 1 if more audits accuse the server than the error rate and three standard
deviations allow.
"""

import argparse
import collections
import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import serving

LEVELS = (0.01, 0.05, 0.1, 0.2, 0.5)


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="polydraft")
    parser.add_argument("--audits", type=int, default=100, metavar="N")
    parser.add_argument("--first", type=int, default=1, metavar="SEED", help="the first audit's seed (default: 1)")
    parser.add_argument("--error-rate", type=float, default=0.05, metavar="P", help="of each audit (default: 0.05)")
    parser.add_argument("--requests", type=int, metavar="N", help="of each audit at most (default: 1500, without --minutes)")
    parser.add_argument("--minutes", type=int, metavar="N", help="of each audit at most")
    parser.add_argument("--url", help="audit this server, which runs already")
    parser.add_argument("--option", action="append", default=[], metavar="OPTION", help="of `polydraft audit`; may be repeated")
    parser.add_argument("--record", type=Path, required=True, metavar="FILE", help="where the record is kept, and goes on")
    parser.add_argument("--json", action="store_true", help="print the record too")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    args, options = serving.arguments(parser)
    if args.url and options:
        parser.error("options of a server that runs already cannot be given")
    if not args.requests and not args.minutes:
        args.requests = 1500
    return args, options


def begun(args, options):
    """The record so far; a new one if there is none."""
    asked = {"error_rate": args.error_rate, "requests": args.requests, "minutes": args.minutes, "audit_options": args.option}
    new = {"what": "audits of one server", **serving.around(args.program, options), **asked, "url": args.url, "audits": []}
    if not args.record.exists():
        return new
    old = json.loads(args.record.read_text())
    differing = [name for name in (*asked, "url", "options", "version") if old.get(name) != new[name]]
    if differing:
        sys.exit(f"{args.record}: made with another {', '.join(differing)}; take another file")
    return old


def kept(record, path):
    """Written whole or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(record, indent=1) + "\n")
    os.replace(part, path)


def audited(args, url, seed):
    """What one audit says."""
    command = [args.program, "--no-config", "audit", url, "--json", "--seed", str(seed), "--error-rate", str(args.error_rate)]
    command += ["--requests", str(args.requests or 1_000_000)]
    command += ["--minutes", str(args.minutes)] if args.minutes else []
    clock = time.monotonic()
    done = subprocess.run([*command, *args.option], capture_output=True, text=True)
    if done.returncode not in (0, 1, 3) or not done.stdout:
        sys.exit(f"the audit with seed {seed} ended with exit code {done.returncode}: {done.stderr.strip()}")
    report = json.loads(done.stdout)
    if report["cut_short"]:
        sys.exit(f"the audit with seed {seed} was cut short {report['cut_short']}")
    return summary(report, seed, time.monotonic() - clock)


def summary(report, seed, seconds):
    findings = report["findings"]
    values = {found["check"]: found["p_value"] for found in findings if found["p_value"] is not None}
    smallest = min(values, key=values.get, default=None)
    together = next((found for found in findings if found["check"] == "together"), None)
    return {
        "seed": seed, "verdict": report["verdict"], "faults": [found for found in findings if found["verdict"] == "fault"],
        # Checks that chance has a part in share the error rate.
        "tests": len(values), "smallest_p": values.get(smallest), "smallest_of": smallest,
        "corrected_p": min(1.0, values[smallest] * len(values)) if smallest else None,
        "p_values": {name: float(f"{value:.4g}") for name, value in values.items()},
        "tokens": together["seen"] if together else 0, "would_find": together and together["would_find"],
        "said": together and together["said"],
        "requests": report["requests"], "seconds": round(seconds, 1), "speculation": report["speculation"],
    }


def summed_up(record):
    audits = record["audits"]
    corrected = [one["corrected_p"] for one in audits if one["corrected_p"] is not None]
    singles = [value for one in audits for value in one["p_values"].values()]
    record["summary"] = {
        "audits": len(audits), "accused": sum(bool(one["faults"]) for one in audits),
        "verdicts": dict(collections.Counter(one["verdict"] for one in audits).most_common()),
        "corrected_p_at_most": {str(level): sum(value <= level for value in corrected) for level in LEVELS},
        "tests": len(singles), "p_at_most": {str(level): sum(value <= level for value in singles) for level in LEVELS},
        "smallest_p": min((one["smallest_p"] for one in audits if one["smallest_p"] is not None), default=None),
        "tokens": sum(one["tokens"] for one in audits), "requests": sum(one["requests"] for one in audits),
        "seconds": round(sum(one["seconds"] for one in audits), 1),
    }


def most(args, count):
    """Three standard deviations above the promise."""
    return args.error_rate * count + 3 * (args.error_rate * count) ** 0.5


@contextlib.contextmanager
def server(args, options):
    if args.url:
        yield args.url
        return
    with serving.server(args.program, options) as running:
        yield f"http://127.0.0.1:{running.port}"
        running.stop()


def main():
    args, options = parsed()
    record = begun(args, options)
    done = {one["seed"] for one in record["audits"]}
    left = [seed for seed in range(args.first, args.first + args.audits) if seed not in done]
    say = (lambda text: None) if args.quiet else (lambda text: print(text, file=sys.stderr, flush=True))
    if done:
        say(f"{len(done)} audits are in {args.record} already")
    if left:
        with server(args, options) as url:
            for seed in left:
                one = audited(args, url, seed)
                record["audits"].append(one)
                summed_up(record)
                kept(record, args.record)
                so_far = f"{len(record['audits'])} done, {record['summary']['accused']} accused"
                smallest = f"smallest p {one['smallest_p']} of {one['smallest_of']}"
                say(f"{so_far}; seed {seed}: {one['verdict']}, {smallest}, {one['tokens']} tokens in {one['seconds']} s")
    summed_up(record)
    if args.json:
        print(json.dumps(record, indent=1))
    else:
        print(json.dumps(record["summary"], indent=1))
    sys.exit(record["summary"]["accused"] > most(args, record["summary"]["audits"]))


main()
