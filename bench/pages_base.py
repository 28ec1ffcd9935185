"""Records, the page and numbers, for the sections of docs/benchmarks.md."""

import json
import re
import shlex
import textwrap
from pathlib import Path

from harness import ROOT, markdown

RECORDS = [ROOT / "bench" / "records", ROOT / "research" / "records"]
PAGE = ROOT / "docs" / "benchmarks.md"

# The longest names first: a name ends with its kind.
KINDS = [
    "head-curve",
    "head-training",
    "llama-cuda",
    "table-llama-backend",
    "llama-backend-plain",
    "llama-speculation",
    "llama-backend",
    "llama-server",
    "verifiers-trees",
    "llama-behind",
    "llama-plain",
    "llama-start",
    "table-demo",
    "solve-time",
    "first-token",
    "throughput",
    "verifiers",
    "quality",
    "certify",
    "hostile",
    "gpu-kernels",
    "gpu-step",
    "published",
    "passes",
    "decode",
    "ngram",
    "model",
    "table",
    "load",
]
MACHINE = r"(?:[a-z0-9]+-)*?(?:\d+-threads?|[a-z]+\d+)"
NAME = re.compile(
    rf"(\d{{4}}-\d\d-\d\d)-({MACHINE})-({'|'.join(KINDS)})(?:-follow|-turns)?\.jsonl?"
)

# What machines are called where a record says less than its name.
MACHINES = {
    "amd-epyc-avx512": "AMD EPYC with AVX-512 VNNI",
    "intel-xeon": "Intel Xeon with AVX-512 VNNI",
}
TEXTS = {"code": "code", "chat": "chat", "repeat": "repetitive"}
TYPES = {"Q4_0": 0, "Q4_1": 1, "Q4_K_M": 2, "Q5_1": 3, "Q8_0": 4, "bf16": 5, "f32": 6}


class Record:
    def __init__(self, path, date, slug, kind):
        self.path, self.date, self.slug, self.kind = path, date, slug, kind
        text = path.read_text()
        if path.suffix == ".jsonl":
            self.data = {"rows": [json.loads(line) for line in text.splitlines()]}
        else:
            self.data = json.loads(text)

    @property
    def machine(self):
        if "gpu" in self.data:
            return f"One {self.data['gpu']}"
        name = re.sub(r"-\d+-threads?$", "", self.slug)
        threads = re.search(r"-(\d+)-(threads?)$", self.slug)
        recorded = re.sub(r", \d+ threads?,.*", "", self.data.get("machine") or name)
        said = MACHINES.get(name, recorded)
        if name == "amd-epyc":
            # From that day on records tell the two kinds apart by their names.
            said = "AMD EPYC with AVX2" if self.date >= "2026-11-24" else "AMD EPYC"
        return f"{said}, {threads[1]} {threads[2]}" if threads else said

    @property
    def commit(self):
        data = self.data
        if "cells" in data:
            data = data["cells"][0]["speed"]
        commit = data.get("commit")
        if not commit:
            return "not recorded"
        dirty = " with uncommitted changes" if commit.endswith("-dirty") else ""
        return f"`{commit.removesuffix('-dirty')[:7]}`{dirty}"


def records():
    """Files of records, in the order of their names."""
    return sorted(
        (path for folder in RECORDS for path in folder.iterdir()), key=lambda path: path.name
    )


def newest():
    """The newest record of each kind and machine: {kind: [records, the newest first]}."""
    found = {}
    for path in records():
        match = NAME.fullmatch(path.name)
        if match:
            found[match[3], match[2]] = Record(path, *match.groups())
    kinds = {}
    for record in sorted(found.values(), key=lambda record: record.date, reverse=True):
        kinds.setdefault(record.kind, []).append(record)
    return kinds


class Page:
    def __init__(self, kinds):
        self.kinds, self.lines, self.used = kinds, [], set()

    def of(self, kind):
        records = self.kinds.get(kind, [])
        self.used.update(record.path for record in records)
        return records

    def add(self, text):
        self.lines += text.strip("\n").split("\n") + [""]

    def paragraph(self, text):
        """Plain words, broken at 100 columns."""
        self.lines += textwrap.wrap(
            " ".join(text.split()), 100, break_long_words=False, break_on_hyphens=False
        ) + [""]

    def source(self, record, command=None):
        """The heading of one machine's table: machine, date, commit, record and command."""
        self.add(f"**{record.machine}**")
        where = f"[record](../{record.path.relative_to(ROOT).as_posix()})"
        self.paragraph(f"{record.date}, commit {record.commit}, {where}.")
        command = command or record.data.get("command")
        if command:
            self.add("```sh\n" + "\n".join(wrapped(command)) + "\n```")

    def table(self, head, rows):
        self.lines += [*markdown(head, rows), ""]


def wrapped(command):
    """Commands as a shell takes them, at most 96 columns a line."""
    lines = []
    for one in command.split(" ; "):
        parts = shlex.split(one)
        for name in ("-o", "--record", "--json", "--save"):
            # Where a record went says nothing.
            if len(parts) > 2 and parts[-2] == name:
                parts = parts[:-2] + ([name] if name == "--json" and "bench" in parts[:2] else [])
        parts = [shown(part) for part in todays(parts)]
        if parts[:2] == ["polydraft", "bench"] and parts[2] not in ("speed", "model"):
            parts[0] = "polydraft-lab"
        line, pairs = "", []
        for part in parts:
            # An option stays beside its value.
            if (
                pairs
                and pairs[-1].startswith("-")
                and " " not in pairs[-1]
                and not part.startswith("-")
            ):
                pairs[-1] += f" {part}"
            else:
                pairs.append(part)
        for part in pairs:
            if line and len(line) + len(part) > 93:
                lines.append(line + " \\")
                line = "  " + part
            else:
                line = f"{line} {part}" if line else part
        lines.append(line)
    return lines


def todays(parts):
    """Options of the program after `--`, where scripts take them today."""
    for name in ("--common", "--options"):
        if name in parts and parts[0].startswith("bench/"):
            at = parts.index(name)
            parts = [*parts[:at], *parts[at + 2 :], "--", *shlex.split(parts[at + 1])]
    return ["native" if part == "candle" else part for part in parts]


def shown(part):
    """An argument in today's names, without the folders of the machine."""
    part = re.sub(r"^bench/gpu/", "research/bench/gpu/", part)
    if part.startswith("/"):
        part = Path(part).name
    return shlex.quote(part)


def number(value, digits=None):
    """Three figures, or so many digits after the point."""
    if value is None:
        return "–"
    if digits is None:
        digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}"


def times(values):
    least, most = min(values), max(values)
    return f"{least:.2f} to {most:.2f}"


def weight_type(case):
    """The weight type of a GGUF file, by its name."""
    found = re.search(r"[-.](Q\d\w*|F32)\b", case, re.I)
    kind = found[1].upper() if found else "bf16"
    return "f32" if kind == "F32" else kind
