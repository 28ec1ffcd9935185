#!/usr/bin/env python3
"""Makes docs/benchmarks.md from the records in bench/records.

  bench/pages.py              writes the page
  bench/pages.py --check      writes nothing; exit code 1 if the page is not what the records give
  bench/pages.py --unused     lists the records that the page does not use

A record's name is DATE-MACHINE-KIND.json. Of each kind and machine the page has the newest record;
a kind without a record has no section. Python's standard library is all that this needs.
"""

import argparse
import json
import re
import shlex
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "bench" / "records"
PAGE = ROOT / "docs" / "benchmarks.md"

# The longest names first: a name ends with its kind.
KINDS = [
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
        said = MACHINES.get(name, self.data.get("machine") or name)
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


def newest():
    """The newest record of each kind and machine: {kind: [records, the newest first]}."""
    found = {}
    for path in sorted(RECORDS.iterdir()):
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
        where = f"[record](../bench/records/{record.path.name})"
        self.paragraph(f"{record.date}, commit {record.commit}, {where}.")
        command = command or record.data.get("command")
        if command:
            self.add("```sh\n" + "\n".join(wrapped(command)) + "\n```")

    def table(self, head, rows):
        self.lines.append(f"| {' | '.join(head)} |")
        self.lines.append("|" + "---|" * len(head))
        self.lines += [f"| {' | '.join(map(str, row))} |" for row in rows]
        self.lines.append("")


def wrapped(command):
    """Commands as a shell takes them, at most 96 columns a line."""
    lines = []
    for one in command.split(" ; "):
        parts = [shown(part) for part in shlex.split(one)]
        for name in ("-o", "--json", "--save"):
            # Where a record went says nothing.
            if len(parts) > 2 and parts[-2] == name:
                parts = parts[:-2] + ([name] if name == "--json" and "bench" in parts[:2] else [])
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


def shown(part):
    """An argument in today's names, without the folders of the machine."""
    part = part.replace("--backend candle", "--backend native")
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
    found = re.search(r"[-.](Q\d\w*|F32)\b", case)
    return {"F32": "f32"}.get(found[1], found[1]) if found else "bf16"


def plain_rows(record):
    rows = []
    for case in record.data["cases"]:
        model, threads, _, what = re.fullmatch(
            r"(\S+) (\d) (threads?) (\w+)", case["case"]
        ).groups()
        rows.append((weight_type(model), int(threads), what, *case["medians"], case["ratios"][0]))
    return sorted(rows, key=lambda row: (row[2], row[1], TYPES.get(row[0], 9)))


def plain(page):
    records = page.of("llama-plain")
    if not records:
        return
    page.add("## Plain decoding and prefill beside llama.cpp")
    page.paragraph(
        "SmolLM2-135M-Instruct, no speculation on either side, the same GGUF file, in turn. Prefill is"
        " a prompt of 512 tokens. Tokens per second; the ratio is the median over rounds of"
        " polydraft / llama.cpp."
    )
    for record in records:
        page.source(record)
        for what, title in (("decode", "Decoding"), ("prompt", "Prefill, 512 tokens")):
            rows = [row for row in plain_rows(record) if row[2] == what]
            page.add(f"{title}:")
            page.table(
                ["weight type", "threads", "polydraft", "llama.cpp", "ratio"],
                [(row[0], row[1], number(row[3]), number(row[4]), f"{row[5]:.2f}") for row in rows],
            )


def after_context(page):
    records = page.of("llama-behind")
    if not records:
        return
    page.add("## Decoding after a long context, beside llama.cpp")
    page.paragraph(
        "The same after 4,000 tokens of context. polydraft's KV cache is f32, llama.cpp's is f16."
    )
    for record in records:
        page.source(record)
        page.table(
            ["weight type", "threads", "polydraft", "llama.cpp", "ratio"],
            [
                (row[0], row[1], number(row[3]), number(row[4]), f"{row[5]:.2f}")
                for row in plain_rows(record)
            ],
        )


def start(page):
    records = page.of("llama-start")
    if not records:
        return
    page.add("## Start to first token, beside llama.cpp")
    page.paragraph(
        "The whole process: start, load, one token, end. Milliseconds, so a ratio below 1 is in favour"
        " of polydraft. llama.cpp maps the file; polydraft reads it."
    )
    for record in records:
        page.source(record)
        rows = [
            (weight_type(case["case"].split()[0]), *case["medians"], case["ratios"][0])
            for case in record.data["cases"]
        ]
        page.table(
            ["weight type", "polydraft", "llama.cpp", "ratio"],
            [(row[0], number(row[1], 0), number(row[2], 0), f"{row[3]:.2f}") for row in rows],
        )


def speculation(page):
    records = page.of("llama-speculation")
    if not records:
        return
    page.add("## Speculation beside llama.cpp")
    page.paragraph(
        "The same f32 file. polydraft drafts with `--draft self`; llama.cpp drafts three tokens,"
        " greedily, with the same model in Q5_1. Tokens per second. The last column is the median over"
        " rounds of polydraft / the better of llama.cpp's two."
    )
    for record in records:
        page.source(record)
        rows = []
        for case in record.data["cases"]:
            temperature, text = re.search(r"T=(\S+) (\w+)$", case["case"]).groups()
            if text != "all":
                rows.append(
                    (temperature, text, *map(number, case["medians"]), f"{best_ratio(case):.2f}")
                )
        head = [
            "T",
            "text",
            "polydraft",
            "polydraft, plain",
            "llama.cpp, speculation",
            "llama.cpp, plain",
        ]
        page.table(head + ["ratio"], rows)


def best_ratio(case):
    """Ours relative to the better of llama.cpp's two, as medians go."""
    names = dict(zip(case["columns"], case["medians"]))
    return names["polydraft"] / max(names["llama.cpp speculation"], names["llama.cpp plain"])


def cells(record):
    """(type, draft, text, T, texts, plain, auto, ratio, fixed tree, by costs) of each cell."""
    for cell in record.data["cells"]:
        speed = cell["speed"]
        if "refused" in speed:
            continue
        rows = {row["tree"]: row for row in speed["results"]}
        draft = Path(cell["draft"]).name
        bits = re.search(r" in (q\d\w*)$", speed.get("draft", ""))
        name = {
            "self": f"self, {bits[1]}" if bits else "self",
            "ngram": "n-grams",
            "demo": "demo draft",
        }.get(draft)
        if name is None:
            name = "head" if "head" in draft else "first 8 layers"
        yield (
            cell["dtype"],
            name,
            TEXTS[cell["text"]],
            cell["temperature"],
            speed["texts"],
            rows["none"]["tokens_per_second"],
            rows["auto"]["tokens_per_second"],
            rows["auto"]["ratio"],
            speed.get("tried_before"),
            rows["auto"].get("by_costs"),
        )


def adaptive(page):
    tables = page.of("table")
    if not tables and not page.kinds.get("table-demo"):
        return
    page.add("## Adaptive draft length beside plain decoding")
    page.paragraph(
        "`--tree auto` and plain decoding of polydraft, SmolLM2-135M-Instruct, 64 tokens a request."
        " Tokens per second, and *auto / plain*. *Best fixed* is the ratio of the fixed tree that was"
        " fastest on the other requests. *By costs* is *auto / plain* by measured costs of passes,"
        " which has no noise of the machine in it. Self-drafts are made from a model whose weights"
        " were moved off the grid of 4 bits (`bench/off_grid.py`); on the published file a self-draft"
        " in 4 bits would be the model itself. The first 8 layers are a draft that cannot pay."
    )
    head = [
        "type",
        "draft",
        "text",
        "T",
        "requests",
        "plain",
        "auto",
        "auto / plain",
        "best fixed",
        "by costs",
    ]
    for kind, note in (("table", None), ("table-demo", "The demo pair, one thread.")):
        for record in page.of(kind):
            command = record.data["cells"][0]["speed"].get("command")
            page.source(record, command)
            page.paragraph(
                note or "The command is that of the first row; the record has each row's."
            )
            rows = [
                (
                    *row[:3],
                    f"{row[3]:g}",
                    row[4],
                    number(row[5]),
                    number(row[6]),
                    f"**{row[7]:.2f}**",
                    number(row[8], 2),
                    number(row[9], 2),
                )
                for row in cells(record)
            ]
            page.table(head, rows)


def llama_backend(page):
    plain_records, speed, table = (
        page.of("llama-backend-plain"),
        page.of("llama-backend"),
        page.of("table-llama-backend"),
    )
    if not plain_records + speed + table:
        return
    page.add("## polydraft on the llama.cpp backend")
    page.paragraph(
        "The same comparisons with `--backend llama`: both sides run llama.cpp's kernels."
    )
    for record in plain_records:
        page.source(record)
        rows = [
            (
                weight_type(case["case"].split()[0]),
                case["case"].split()[-1],
                *map(number, case["medians"]),
                f"{case['ratios'][0]:.2f}",
            )
            for case in record.data["cases"]
        ]
        page.table(["weight type", "what", "polydraft", "llama.cpp", "ratio"], rows)
    for record in speed:
        page.source(record)
        rows = []
        for case in record.data["cases"]:
            temperature, text = re.search(r"T=(\S+) (\w+)$", case["case"]).groups()
            if text != "all":
                rows.append(
                    (temperature, text, *map(number, case["medians"]), f"{best_ratio(case):.2f}")
                )
        head = [
            "T",
            "text",
            "polydraft",
            "polydraft, plain",
            "llama.cpp, speculation",
            "llama.cpp, plain",
            "ratio",
        ]
        page.table(head, rows)
    for record in table:
        page.source(record, record.data["cells"][0]["speed"].get("command"))
        rows = [
            (
                row[1],
                row[2],
                f"{row[3]:g}",
                number(row[5]),
                number(row[6]),
                f"**{row[7]:.2f}**",
                number(row[8], 2),
                number(row[9], 2),
            )
            for row in cells(record)
        ]
        page.table(
            ["draft", "text", "T", "plain", "auto", "auto / plain", "best fixed", "by costs"], rows
        )


def server(page):
    records = page.of("llama-server")
    if records:
        page.add("## The server beside llama-server")
        page.paragraph(
            "Output tokens per second of all connections together, both servers in turn with the same"
            " file. The ratio is polydraft / llama-server."
        )
    for record in records:
        page.source(record)
        data = record.data
        if data.get("model"):
            page.paragraph(f"Model: {data['model']}.")
        page.table(
            ["connections", "polydraft", "llama-server", "ratio"],
            [
                (
                    row["connections"],
                    number(row["polydraft"]),
                    number(row["llama_server"]),
                    f"{row['ratio']:.2f}",
                )
                for row in data["rows"]
            ],
        )
    throughput, load, first = page.of("throughput"), page.of("load"), page.of("first-token")
    if not throughput + load + first:
        return
    page.add("## The server by itself")
    for record in throughput:
        page.source(
            record,
            "python3 bench/load.py target/release/polydraft --rounds 0 --warm 1 -- --threads 2",
        )
        page.paragraph("The demo pair; tokens per second of one connection, then of 32 together.")
        alone, together = (
            record.data["tokens_per_second_alone"],
            record.data["tokens_per_second_together"],
        )
        rows = [(1, tree, number(speed)) for tree, speed in alone.items()]
        rows += [(32, tree, number(speed)) for tree, speed in together.items()]
        page.table(["connections", "tree", "tokens/s"], rows)
        spread = record.data["rounds"][0]["milliseconds_between_chunks"]
        page.paragraph(
            f"Of 1,000 requests over 32 connections, a fifth of which are cancelled, half of the chunks"
            f" come within {spread['p50']:.1f} ms of the one before, 99 of 100 within {spread['p99']:.1f} ms."
        )
    for record in load:
        if "resident_kib" not in record.data["rounds"][0]:
            continue
        page.source(record, "python3 bench/load.py target/release/polydraft -- --threads 2")
        page.paragraph(
            f"Resident memory after each round of 1,000 requests over 32 connections."
            f" Machine busy: {record.data.get('load', 'no')}."
        )
        page.table(
            ["round", "finished", "cancelled", "lost", "MB"],
            [
                (
                    n + 1,
                    *(row["requests"][key] for key in ("done", "left", "lost")),
                    number(row["resident_kib"] * 1024 / 1e6, 1),
                )
                for n, row in enumerate(record.data["rounds"])
            ],
        )
    for record in first:
        data = record.data
        page.source(record, "python3 bench/first_token.py target/release/polydraft -- --threads 2")
        page.paragraph(
            f"Time to the first token of a short request, beside a prompt of 4,000 tokens: a random model"
            f" of {data['parameters'] / 1e6:.0f} million parameters in f32. Machine: {data['machine']}."
        )
        page.table(
            ["what", "seconds"],
            [
                ("the short request alone", number(data["alone_seconds"], 2)),
                ("beside the long prompt, median", number(data["beside_seconds"], 2)),
                ("beside the long prompt, worst", number(data["beside_worst_seconds"], 2)),
                ("the long prompt itself", number(data["long_seconds"], 0)),
            ],
        )


def verifiers(page):
    records, decodes, trees = page.of("verifiers"), page.of("decode"), page.of("verifiers-trees")
    if not records + decodes + trees:
        return
    page.add("## Tokens per target pass by verifier")
    page.paragraph(
        "The demo pair at T = 1. *Tokens per target pass* is what the papers call block efficiency:"
        " emitted tokens for each forward pass of the target. Errors are standard errors."
    )
    for record in records:
        page.source(record)
        for result in record.data["results"]:
            page.paragraph(
                f"The same drafts for every verifier, `{result['tree']}`, {result['positions']:,} positions,"
                f" drafts of {result['nodes_per_call']:.1f} nodes on average. Differences are to the first row."
            )
            page.table(
                [
                    "verifier",
                    "tokens per target pass",
                    "error",
                    "difference",
                    "error of the difference",
                ],
                [
                    (
                        f"`{row['verifier']}`",
                        number(row["block_efficiency"], 3),
                        number(row["block_efficiency_error"], 3),
                        number(row["difference"], 3),
                        number(row["difference_error"], 3),
                    )
                    for row in result["verifiers"]
                ],
            )
    for record in decodes[:1]:
        page.source(record, "polydraft-lab bench decode --paths 2,4 --depths 4,8 -n 64 --rounds 3")
        page.paragraph("Each verifier decodes by itself. A dash in the first row: plain decoding.")
        rows = [
            (
                f"`{row['verifier']}`",
                row["paths"] or "–",
                row["depth"] or "–",
                number(row["block_efficiency"], 2),
                number(row["block_efficiency_error"], 2),
                number(row["nodes_per_call"], 1),
                number(row["ratio"], 2),
            )
            for row in record.data["results"]
        ]
        head = [
            "verifier",
            "paths",
            "depth",
            "tokens per target pass",
            "error",
            "nodes per pass",
            "speed / plain",
        ]
        page.table(head, rows)
    for record in trees:
        page.source(record, "polydraft-lab bench verifiers --tree TREE")
        page.paragraph("By tree: the same drafts for all verifiers that are exact on the tree.")
        rows = []
        for result in record.data["results"]:
            rows += [
                (
                    f"`{result['tree']}`",
                    number(result["nodes_per_call"], 1),
                    f"`{row['verifier']}`",
                    number(row["block_efficiency"], 3),
                    number(row["block_efficiency_error"], 3),
                )
                for row in result["verifiers"]
            ]
        page.table(["tree", "nodes", "verifier", "tokens per target pass", "error"], rows)


def ngrams(page):
    records = page.of("ngram")
    if not records:
        return
    page.add("## n-gram drafts on repetitive text")
    page.paragraph("The demo target without a draft model, on `bench/repeat.jsonl`.")
    for record in records:
        page.source(
            record,
            "polydraft-lab bench decode --draft ngram --prompts bench/repeat.jsonl"
            " --temperatures 0,1 --depths 3,6 --paths 1,2 --verifiers block,nested-priority --rounds 3",
        )
        rows = [
            (
                f"{row['temperature']:g}",
                f"`{row['verifier']}`",
                row["paths"],
                row["depth"],
                number(row["block_efficiency"], 2),
                number(row["block_efficiency_error"], 2),
                number(row["ratio"], 2),
            )
            for row in record.data["results"]
            if row["paths"]
        ]
        page.table(
            ["T", "verifier", "paths", "depth", "tokens per target pass", "error", "speed / plain"],
            rows,
        )


def passes(page):
    records = page.of("model")
    if records:
        page.add("## What a forward pass costs on a CPU")
        page.paragraph(
            "A random Llama of 484 million parameters. Reading the weights bounds decoding: *of memory*"
            " is the part of the memory's speed, measured in the same run, that decoding reaches. A pass"
            " over n tokens of one sequence is relative to a pass over one."
        )
    for record in records:
        command = record.data.get("command") or "polydraft bench model --json"
        page.source(record, command)
        page.paragraph(f"The memory gave {record.data['memory_bytes_per_second'] / 1e9:.1f} GB/s.")
        results = record.data["results"]
        counts = [row["nodes"] for row in results[0]["passes"] if row["nodes"] > 1]
        rows = []
        for row in results:
            relative = {part["nodes"]: part["relative"] for part in row["passes"]}
            rows.append(
                (
                    row["dtype"],
                    number(row["load_seconds"]),
                    number(row["tokens_per_second"]),
                    number(100 * row["bandwidth_share"], 0) + " %",
                    *(number(relative[n], 2) for n in counts),
                )
            )
        page.table(
            ["type", "load, s", "tokens/s", "of memory", *(f"{n} tokens" for n in counts)], rows
        )


def gpu(page):
    records = page.of("passes")
    if not records:
        return
    page.add("## Forward passes on a GPU")
    page.paragraph(
        "Random decoders in the shapes of published models, bf16, CUDA graphs, a context of"
        " 1,024 tokens, in PyTorch: no code of polydraft runs in these. See [GPUs](gpu.md)."
    )
    for record in records:
        data = record.data
        page.source(record, data["command"].replace("/root/out/", ""))
        page.paragraph(f"PyTorch {data['torch']}; a copy reached {data['copy_gb_s']:,} GB/s.")
        counts = sorted({row["nodes"] for row in data["passes"]})
        shapes = dict.fromkeys((row["shape"], row["batch"]) for row in data["passes"])
        rows = []
        for shape, batch in shapes:
            of = {
                row["nodes"]: row
                for row in data["passes"]
                if (row["shape"], row["batch"]) == (shape, batch)
            }
            rows.append(
                (
                    shape,
                    batch,
                    number(of[1]["ms"], 2),
                    *(number(of[n]["ms"] / of[1]["ms"], 2) if n in of else "–" for n in counts[1:]),
                )
            )
        page.table(
            ["shape", "batch size", "one token, ms", *(f"{n} nodes" for n in counts[1:])], rows
        )
        page.add("Sampling in plain PyTorch, milliseconds:")
        vocabularies = sorted({row["vocabulary"] for row in data["sampling"]})
        measured = dict.fromkeys((row["what"], row["rows"]) for row in data["sampling"])
        rows = []
        for what, count in measured:
            of = {
                row["vocabulary"]: row["ms"]
                for row in data["sampling"]
                if (row["what"], row["rows"]) == (what, count)
            }
            rows.append((what, count, *(number(of.get(v), 3) for v in vocabularies)))
        page.table(["what", "rows", *(f"V = {v:,}" for v in vocabularies)], rows)


def kernels(page):
    records = page.of("gpu-kernels")
    if not records:
        return
    page.add("## Drawing and verification on a GPU")
    page.paragraph(
        "`polydraft.gpu`: distributions of the draft, draws, distributions of the target, and verification,"
        " in Triton kernels captured in a CUDA graph. Random rows in bf16. *Step* is all of these, *verify*"
        " the last. Medians, microseconds. `token` and `block` verify one path."
    )
    for record in records:
        data = record.data
        page.source(record, data["command"].replace("/root/out/", ""))
        good = sum(row["ok"] for part in ("rows", "methods", "graphs") for row in data[part])
        every = sum(len(data[part]) for part in ("rows", "methods", "graphs"))
        page.paragraph(f"PyTorch {data['torch']}. {good} of {every} checks against float64 hold.")
        of, shapes = {}, {}
        for row in data["timed"]:
            if row["kind"] == "random" and row["dtype"] == "bfloat16":
                of[row["method"], row["batch"], row["what"]] = row["us"]
                shapes[row["paths"], row["length"], row["vocabulary"]] = True
        for paths, length, vocabulary in shapes:
            page.paragraph(f"K = {paths}, L = {length}, V = {vocabulary:,}:")
        batches = sorted({batch for _, batch, _ in of})
        methods = dict.fromkeys(method for method, _, what in of if what == "whole")
        rows = [
            (
                f"`{method}`",
                *(
                    number(of.get((method, batch, what)), 0)
                    for batch in batches
                    for what in ("verify", "whole")
                ),
            )
            for method in methods
        ]
        parts = dict.fromkeys(what for method, _, what in of if method == "torch")
        rows += [
            (
                f"PyTorch: {what}",
                *(
                    value
                    for batch in batches
                    for value in ("–", number(of.get(("torch", batch, what)), 0))
                ),
            )
            for what in parts
        ]
        page.table(
            [
                "method",
                *(
                    f"{what}, batch size {batch}"
                    for batch in batches
                    for what in ("verify", "step")
                ),
            ],
            rows,
        )


def solvers(page):
    records = page.of("solve-time")
    if not records:
        return
    page.add("## Solvers of the best token-level rule")
    page.paragraph(
        "Milliseconds from the two distributions to an emitted token, n i.i.d. drafts from the draft's k"
        " likeliest tokens. In brackets the share of positions at which Global Resolution finds a"
        " solution. The means of this record weigh fast positions more, so cells of 2 to 25 ms may be"
        " too low."
    )
    for record in records:
        page.source(record, "polydraft-lab bench solve-time --json")
        for data in record.data["datasets"]:
            name = {"pair": "Distributions of the demo pair", "synthetic": "Zipf distributions"}[
                data["name"]
            ]
            page.add(f"{name}, vocabulary {data['vocabulary']:,}:")
            solvers = [cell["solver"] for cell in data["rows"][0]["cells"]]
            rows = []
            for row in data["rows"]:
                of = {cell["solver"]: cell for cell in row["cells"]}
                rows.append((row["row"], *(solved(of.get(solver)) for solver in solvers)))
            head = [
                solver.replace("highs", "HiGHS").replace(
                    "priority, near-linear", "`priority`, pooled"
                )
                for solver in solvers
            ]
            page.table(
                [
                    "(k, n)",
                    *(name.replace("priority, exact", "`priority`, exact") for name in head),
                ],
                rows,
            )


def solved(cell):
    if cell is None or cell["too_large"] and not cell["positions"]:
        return "too large"
    if not cell["success"] or cell["milliseconds"] is None:
        return "–"
    value = cell["milliseconds"]
    shown = f"{value:.0f}" if value >= 10 else f"{value:.2g}"
    if cell["lower_bound"]:
        shown = "> " + shown
    return shown if cell["success"] == 1 else f"{shown} ({100 * cell['success']:.0f} %)"


def quality(page):
    records, certified = page.of("quality"), page.of("certify")
    if not records + certified:
        return
    page.add("## Quality and losslessness")
    for record in records:
        data = record.data
        page.source(record)
        page.paragraph(
            "Right answers of SmolLM2-135M-Instruct in q8_0 to the prompts of `bench/quality.jsonl`. The"
            " interval has 95 % of the bootstrap over prompts, in points."
        )
        rows = []
        for row in data["scores"]:
            low, high = (100 * value for value in row["interval"])
            rows.append(
                (
                    f"{row['temperature']:g}",
                    row["samples"],
                    f"{100 * row['plain']:.1f} %",
                    f"{100 * row['speculative']:.1f} %",
                    f"{100 * row['difference']:+.1f}",
                    f"{low:+.1f}",
                    f"{high:+.1f}",
                )
            )
        page.table(
            ["T", "outputs a prompt", "plain", "speculative", "difference", "from", "to"], rows
        )
    for record in certified:
        page.source(record, record.data["rows"][0]["command"])
        page.paragraph(
            "`certify` on the demo pair, a seed a row: a correct verifier fails with probability 1 in"
            " 1,000, and its p-values are uniform between 0 and 1."
        )
        rows = []
        for row in record.data["rows"]:
            seed = re.search(r"--seed (\d+)", row["command"])[1]
            rows.append(
                (
                    seed,
                    f"`{row['verifier']}`",
                    row["tree"],
                    f"{row['runs']:,}",
                    row["freedom"],
                    number(row["statistic"]),
                    f"{row['p_value']:.2g}",
                    row["verdict"],
                )
            )
        page.table(
            ["seed", "verifier", "tree", "runs", "degrees of freedom", "G", "p-value", "verdict"],
            rows,
        )


def summary(page):
    """The answer in a few lines."""
    kinds, lines, dates = page.kinds, [], set()

    def say(kind, text, values):
        found = [value for record in kinds.get(kind, []) for value in values(record)]
        if found:
            dates.update(record.date for record in kinds[kind])
            lines.append(text.format(times(found)))

    say(
        "llama-plain",
        "Plain decoding runs at **{}** times llama.cpp's speed, by weight type and CPU.",
        lambda record: [row[5] for row in plain_rows(record) if row[2] == "decode"],
    )
    say(
        "llama-server",
        "The server gives **{}** times llama-server's tokens per second.",
        lambda record: [row["ratio"] for row in record.data["rows"]],
    )
    for dtype in ("f32", "bf16"):
        say(
            "table",
            f"A self-draft in 5 bits makes {dtype} **{{}}** times as fast as plain decoding.",
            lambda record, dtype=dtype: [
                row[7] for row in cells(record) if row[0] == dtype and row[1].startswith("self")
            ],
        )
    say(
        "table",
        "n-grams make q8_0 **{}** times as fast: code, chat, repetitive text; T = 0, 0.7, 1.",
        lambda record: [row[7] for row in cells(record) if row[1] == "n-grams"],
    )
    lines.append(
        f"SmolLM2-135M, one and two threads of server CPUs, {min(dates)} to {max(dates)}. No larger"
        " model was measured. What ran on a GPU is in [GPUs](gpu.md)."
    )
    return lines


METHOD = """
## Method

- **In turn.** What is compared runs in turn in one process or one script, a few steps or one
  request each, so that a drift of the machine hits all alike. Quote ratios, not speeds.
- **Checked first.** `bench decode` compares the output of every verifier with plain decoding's at
  temperature 0, token by token, before it times. `bench solve-time` enumerates what every solver
  emits on small problems first.
- **Medians.** A speed is the median over rounds. A ratio is the median over rounds of the ratio
  within a round, so it is not the quotient of the two medians. With so few requests a cell, ratios
  at T > 0 are good to about a tenth.
- **Small models.** All of this is SmolLM2-135M-Instruct, a random model of 484 million parameters,
  or the demo pair, on two CPU threads of virtual machines whose memory changes speed by the hour.
  No larger model has been measured.
- **Older programs.** Beside each table stands the commit that was measured. The algorithm of
  `--tree auto` was rewritten in commit `f37c394` (2026-11-26); a table of an older commit shows its
  predecessor. Commands are printed in today's names.
- **Your machine.** `polydraft bench speed --target MODEL --draft DRAFT` measures your pair in a
  minute; `polydraft bench model MODEL` what its passes cost.
"""


def build():
    page = Page(newest())
    page.add("# Benchmarks")
    page.add("<!-- Made by bench/pages.py from bench/records. Edit those, not this. -->")
    page.add("> **TL;DR**")
    page.lines.pop()
    page.lines.append(">")
    for line in summary(page):
        page.lines += textwrap.wrap(
            line, 100, initial_indent="> - ", subsequent_indent=">   ", break_on_hyphens=False
        )
    page.lines.append("")
    page.add(METHOD)
    for section in (
        plain,
        server,
        adaptive,
        speculation,
        after_context,
        start,
        llama_backend,
        verifiers,
        ngrams,
        passes,
        gpu,
        kernels,
        quality,
        solvers,
    ):
        section(page)
    return "\n".join(page.lines).rstrip("\n") + "\n", page.used


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="exit code 1 if the page is not what the records give"
    )
    parser.add_argument(
        "--unused", action="store_true", help="list the records that the page does not use"
    )
    args = parser.parse_args()
    text, used = build()
    if args.unused:
        print("\n".join(sorted(path.name for path in RECORDS.iterdir() if path not in used)))
        return
    if args.check:
        if not PAGE.exists() or PAGE.read_text() != text:
            sys.exit(f"{PAGE.relative_to(ROOT)}: not what bench/records gives; run bench/pages.py")
        return
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
