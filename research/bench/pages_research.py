"""Sections of docs/benchmarks.md: verifiers, passes, GPUs, quality, solvers."""

import re

from pages_base import number


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
                f"The same drafts for every verifier, `{result['tree']}`,"
                f" {result['positions']:,} positions,"
                f" drafts of {result['nodes_per_call']:.1f} nodes on average. Differences are to"
                " the first row."
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
            " --temperatures 0,1 --depths 3,6 --paths 1,2 --verifiers block,nested-priority"
            " --rounds 3",
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
            "A random Llama of 484 million parameters. Reading the weights bounds decoding: *of"
            " memory*"
            " is the part of the memory's speed, measured in the same run, that decoding"
            " reaches. A pass"
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
        "`polydraft.gpu`: distributions of the draft, draws, distributions of the target, and"
        " verification,"
        " in Triton kernels captured in a CUDA graph. Random rows in bf16. *Step* is all of"
        " these, *verify*"
        " the last. Medians, microseconds. `token` and `block` verify one path."
    )
    for record in records:
        data = record.data
        page.source(record, data["command"].replace("/root/out/", ""))
        good = sum(row["ok"] for part in ("rows", "methods", "graphs") for row in data[part])
        every = sum(len(data[part]) for part in ("rows", "methods", "graphs"))
        page.paragraph(f"PyTorch {data['torch']}. {good} of {every} checks against float64 hold.")
        if "note" in data:
            page.paragraph(data["note"])
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
        "Milliseconds from the two distributions to an emitted token, n i.i.d. drafts from the"
        " draft's k"
        " likeliest tokens. In brackets the share of positions at which Global Resolution finds a"
        " solution. The means of this record weigh fast positions more, so cells of 2 to 25 ms"
        " may be"
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
            "Right answers of SmolLM2-135M-Instruct in q8_0 to the prompts of"
            " `bench/quality.jsonl`. The"
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
            "`certify` on the demo pair, a seed a row: a correct verifier fails with probability"
            " 1 in"
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
