#!/usr/bin/env python3
"""Shares of audits that accuse a lossless server: are they those that `polydraft audit` promises?

  bench/audit_repeatedly.py target/release/polydraft --audits 100 -o demo.json
  bench/audit_repeatedly.py target/release/polydraft --audits 30 -o smollm2.json \\
      -- FILE.gguf --draft HEAD
  bench/audit_repeatedly.py target/release/polydraft --url http://127.0.0.1:8000 -o other.json

Starts `polydraft serve` with what follows `--` (the demo pair by default), or takes the server at
--url, and audits it with the seeds from --first on. The error rate is 5 % unless another is given,
so that a wrong one would show. Counts the audits that accuse the server, and those whose smallest
p-value, corrected for all tests of the audit, is at most 1, 5, 10, 20 and 50 %: of a lossless
server no more than such shares. Audits that are in the record are not made again, if they were made
with the same options. The exit code is 1 if more audits accuse the server than the error rate and
three standard deviations allow.
"""

import collections
import contextlib
import json
import sys
import time

import harness

LEVELS = (0.01, 0.05, 0.1, 0.2, 0.5)


def parsed():
    parser = harness.options(__doc__, "program", "record!")
    add = parser.add_argument
    add("--audits", type=int, default=100, metavar="N", help="with a seed each")
    add("--first", type=int, default=1, metavar="SEED", help="the first audit's")
    add("--error-rate", type=float, default=0.05, metavar="P", help="of each audit")
    add("--requests", type=int, metavar="N", help="of each audit at most; 1500 without --minutes")
    add("--minutes", type=int, metavar="N", help="of each audit at most")
    add("--url", help="audit this server, which runs already")
    add("--option", action="append", default=[], help="of `polydraft audit`; may be repeated")
    add("--json", action="store_true", help="print the record too")
    add("--quiet", action="store_true", help="no progress")
    args = harness.parsed(parser)
    if args.url and args.options:
        parser.error("options of a server that runs already cannot be given")
    if not args.requests and not args.minutes:
        args.requests = 1500
    return args


def begun(args):
    """The record so far; a new one if there is none."""
    asked = {name: getattr(args, name) for name in ("error_rate", "requests", "minutes")}
    asked["audit_options"] = args.option
    head = harness.provenance(args.program, args.options)
    new = {"what": "audits of one server", **head, **asked, "url": args.url, "audits": []}
    if not args.record.exists():
        return new
    old = harness.read(args.record)
    must_be = (*asked, "url", "options", "version")
    differing = [name for name in must_be if old.get(name) != new[name]]
    if differing:
        sys.exit(f"{args.record}: made with another {', '.join(differing)}; take another file")
    return old


def audited(args, url, seed):
    """The report of one audit, summed up."""
    command = [args.program, "--no-config", "audit", url, "--json", "--seed", seed]
    command += ["--error-rate", args.error_rate, "--requests", args.requests or 1_000_000]
    command += ["--minutes", args.minutes] if args.minutes else []
    clock = time.monotonic()
    report = json.loads(harness.run([*command, *args.option], accept=(0, 1, 3)).stdout)
    if report["cut_short"]:
        sys.exit(f"the audit with seed {seed} was cut short {report['cut_short']}")
    return summary(report, seed, time.monotonic() - clock)


def summary(report, seed, seconds):
    """The part of an audit's report that the record has."""
    findings = report["findings"]
    values = {
        found["check"]: found["p_value"] for found in findings if found["p_value"] is not None
    }
    smallest = min(values, key=values.get, default=None)
    overall = next((found for found in findings if found["check"] == "overall"), None)
    return {
        "seed": seed,
        "verdict": report["verdict"],
        "faults": [found for found in findings if found["verdict"] == "fault"],
        # Checks that chance has a part in share the error rate.
        "tests": len(values),
        "smallest_p": values.get(smallest),
        "smallest_of": smallest,
        "corrected_p": min(1.0, values[smallest] * len(values)) if smallest else None,
        "p_values": {name: float(f"{value:.4g}") for name, value in values.items()},
        "tokens": overall["seen"] if overall else 0,
        "would_find": overall and overall["would_find"],
        "summary": overall and overall["summary"],
        "requests": report["requests"],
        "seconds": round(seconds, 1),
        "speculation": report["speculation"],
    }


def sum_up(record):
    """Counts over all audits so far."""
    audits = record["audits"]
    corrected = [one["corrected_p"] for one in audits if one["corrected_p"] is not None]
    singles = [value for one in audits for value in one["p_values"].values()]
    record["summary"] = {
        "audits": len(audits),
        "accused": sum(bool(one["faults"]) for one in audits),
        "verdicts": dict(collections.Counter(one["verdict"] for one in audits).most_common()),
        "corrected_p_at_most": {
            str(level): sum(value <= level for value in corrected) for level in LEVELS
        },
        "tests": len(singles),
        "p_at_most": {str(level): sum(value <= level for value in singles) for level in LEVELS},
        "smallest_p": min(
            (one["smallest_p"] for one in audits if one["smallest_p"] is not None), default=None
        ),
        "tokens": sum(one["tokens"] for one in audits),
        "requests": sum(one["requests"] for one in audits),
        "seconds": round(sum(one["seconds"] for one in audits), 1),
    }


def most(args, count):
    """Three standard deviations above the promise."""
    return args.error_rate * count + 3 * (args.error_rate * count) ** 0.5


@contextlib.contextmanager
def server(args):
    """The address of the server."""
    if args.url:
        yield args.url
        return
    with harness.serve(args.program, args.options) as running:
        yield f"http://127.0.0.1:{running.port}"
        running.stop()


def main():
    args = parsed()
    record = begun(args)
    done = {one["seed"] for one in record["audits"]}
    left = [seed for seed in range(args.first, args.first + args.audits) if seed not in done]

    def say(text):
        if not args.quiet:
            print(text, file=sys.stderr, flush=True)

    if done:
        say(f"{len(done)} audits are in {args.record} already")
    if left:
        with server(args) as url:
            for seed in left:
                one = audited(args, url, seed)
                record["audits"].append(one)
                sum_up(record)
                harness.write(args.record, record)
                so_far = f"{len(record['audits'])} done, {record['summary']['accused']} accused"
                smallest = f"smallest p {one['smallest_p']} of {one['smallest_of']}"
                spent = f"{one['tokens']} tokens in {one['seconds']} s"
                say(f"{so_far}; seed {seed}: {one['verdict']}, {smallest}, {spent}")
    sum_up(record)
    print(json.dumps(record if args.json else record["summary"], indent=1))
    sys.exit(record["summary"]["accused"] > most(args, record["summary"]["audits"]))


main()
