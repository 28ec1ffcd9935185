"""Sections of docs/benchmarks.md: speed, beside llama.cpp and by itself."""

import re
from pathlib import Path

from pages_base import TEXTS, TYPES, number, weight_type


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
        "SmolLM2-135M-Instruct (on the Xeon Gemma 3 270M for Q4_K_M), no speculation on either"
        " side, the same GGUF file, in turn."
        " Prefill is"
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
        "The whole process: start, load, one token, end. Milliseconds, so a ratio below 1 is in"
        " favour"
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


def speculation_table(page, record):
    """Speculation beside llama.cpp's, by temperature and text."""
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


def speculation(page):
    records = page.of("llama-speculation")
    if not records:
        return
    page.add("## Speculation beside llama.cpp")
    page.paragraph(
        "The same f32 file. polydraft drafts with `--draft self`; llama.cpp drafts three tokens,"
        " greedily, with the same model in Q5_1. Tokens per second. The last column is the"
        " median over"
        " rounds of polydraft / the better of llama.cpp's two."
    )
    for record in records:
        page.source(record)
        speculation_table(page, record)


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
        " Tokens per second, and *auto / plain*. *Best fixed* is the ratio of the fixed tree"
        " that was"
        " fastest on the other requests. *By costs* is *auto / plain* by measured costs of passes,"
        " which has no noise of the machine in it. Self-drafts are made from a model whose weights"
        " were moved off the grid of 4 bits (`research/bench/off_grid.py`); on the published file a"
        " self-draft"
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
        speculation_table(page, record)
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
            "Output tokens per second of all connections together, both servers in turn with the"
            " same"
            " file. The ratio is polydraft / llama-server."
        )
    for record in records:
        page.source(record)
        data = record.data
        page.table(
            ["model", "connections", "polydraft", "llama-server", "ratio"],
            [
                (
                    (row.get("model") or data["model"]).removesuffix(".gguf"),
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
            "Of 1,000 requests over 32 connections, a fifth of which are cancelled, half of the"
            " chunks"
            f" come within {spread['p50']:.1f} ms of the one before, 99 of 100 within"
            f" {spread['p99']:.1f} ms."
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
            "Time to the first token of a short request, beside a prompt of 4,000 tokens: a"
            " random model"
            f" of {data['parameters'] / 1e6:.0f} million parameters in f32. Machine:"
            f" {data['machine']}."
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
