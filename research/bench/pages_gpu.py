"""The section of docs/benchmarks.md on whole steps on a GPU. Used by pages.py."""

import sys
from pathlib import Path

from pages_base import number

sys.path.insert(0, str(Path(__file__).resolve().parent / "gpu"))

from step_table import answers  # noqa: E402

KINDS = {
    "noise": "noise of one strength at all positions",
    "even": "each position has the same acceptance",
    "mixture": "the draft is a mixture of the target's distribution and another",
}


def steps(page):
    records = page.of("gpu-step")
    if not records:
        return
    page.add("## Whole steps on a GPU")
    page.paragraph(
        "Tokens per second relative to plain decoding. Steps are measured: draft, target, draws,"
        " verification and KV cache in one CUDA graph, random weights, bf16. Acceptance is"
        " emulated, by pairs of distributions over 128,256 tokens. K × L is K paths of L tokens:"
        " `block` verifies one path, `nested-priority` several. See [GPUs](gpu.md)."
    )
    for record in records:
        data = record.data
        page.source(record, data["command"].replace("/root/out/", ""))
        good = sum(row["ok"] for part in ("tokens", "trees") for row in data[part])
        good += sum(row["graph_is_eager"] for row in data["steps"])
        every = sum(len(data[part]) for part in ("tokens", "trees", "steps"))
        page.paragraph(
            f"PyTorch {data['torch']}; a copy reached {data['copy_gb_s']:,} GB/s."
            f" {good} of {every} checks hold."
        )
        page.table(
            ["target", "batch size", "plain pass, ms", "of a copy's speed"],
            [
                (row["target"], row["batch"], number(row["plain_ms"], 2), number(row["of_copy"], 2))
                for row in data["plain"]
            ],
        )
        found = answers(data)
        sizes = sorted({(row["length"], row["paths"]) for row in found})
        for kind in dict.fromkeys(row["kind"] for row in found):
            page.paragraph(f"Kind `{kind}`: {KINDS.get(kind, kind)}.")
            cells, rows = {}, {}
            for row in found:
                if row["kind"] == kind:
                    key = row["target"], row["draft"], row["batch"], row["acceptance"]
                    rows[key] = True
                    cells[key, row["length"], row["paths"]] = row["relative"]
            page.table(
                [
                    "target",
                    "draft",
                    "batch size",
                    "acceptance",
                    *(f"{paths} × {length}" for length, paths in sizes),
                ],
                [
                    (*key, *(number(cells.get((key, length, paths)), 2) for length, paths in sizes))
                    for key in rows
                ],
            )


def published(page):
    records = page.of("published")
    if not records:
        return
    page.add("## transformers' models on a GPU")
    page.paragraph(
        '`polydraft.transformers` with `loop="device"`: draft, target, verification and KV cache in'
        " one CUDA graph a step."
        " Tokens per second, relative to plain decoding in a CUDA graph with the same kernels,"
        " and tokens a pass. K × L is K"
        " paths of L tokens; `block` verifies one, `nested-priority` several. See [GPUs](gpu.md)."
    )
    for record in records:
        data = record.data
        page.source(record, data["command"])
        page.paragraph(
            f"{data['target']}, PyTorch {data['torch']}, transformers {data['transformers']};"
            f" outputs of {data['new_tokens']}"
            f" tokens. {data['note']}"
        )
        plain = {
            (row["kind"], row["batch"], row["temperature"]): row["rate"]
            for row in data["model"] if row["how"] == "plain, CUDA graph"
        }  # fmt: skip
        rows = []
        for row in data["model"]:
            cell = row["kind"], row["batch"], row["temperature"]
            passes = number(row["efficiency"], 2) if row.get("efficiency") else ""
            rows.append(
                (
                    *cell,
                    row["how"],
                    number(row["rate"], 0),
                    number(row["rate"] / plain[cell], 2),
                    passes,
                )
            )
        page.table(
            ["prompts", "batch size", "T", "how", "tokens/s", "times plain", "tokens a pass"], rows
        )
        page.paragraph(
            "Random weights in the shape of Llama 3.1 8B, a draft of one such layer, a context"
            f" of {data['context']} tokens:"
            " milliseconds of a step, and of the passes in it alone."
        )
        page.table(
            ["batch size", "how", "step, ms", "target", "draft"],
            [
                (
                    row["batch"],
                    row["how"],
                    *(
                        number(row[part], 2) if part in row else ""
                        for part in ("whole", "target", "draft")
                    ),
                )
                for row in data["large"]
            ],
        )
        families = [row for row in data["checks"] if "family" in row]
        good = sum(row["takes"] and row.get("same", False) for row in families)
        captured = [row["family"] for row in families if row.get("captured")]
        sampled = [row for row in data["checks"] if "method" in row]
        page.paragraph(
            f"Tiny models in f32: greedy outputs of {good} of {len(families)} families are"
            " transformers' own, and the steps of"
            f" {len(captured)} were captured ({', '.join(captured)}). Sampled tokens, counted by"
            " their rank under the model and"
            " the token before:"
        )
        page.table(
            ["verifier", "tokens", "χ²", "degrees of freedom"],
            [
                (f"`{row['method']}`", f"{row['tokens']:,}", number(row["chi2"], 1), row["freedom"])
                for row in sampled
            ],
        )


def llama(page):
    records = page.of("llama-cuda")
    if not records:
        return
    page.add("## llama.cpp on a GPU")
    page.paragraph(
        "llama.cpp's own loop, milliseconds of a pass with the logits of each token on the CPU:"
        " when every pass has the"
        " width of the one before, and when the widths change from pass to pass. llama.cpp builds"
        " its graph anew for"
        " another width. See [GPUs](gpu.md)."
    )
    for record in records:
        first, last = record.data["runs"]
        page.source(record, record.data["command"])
        passes = first["llama_passes"]["passes"]
        page.table(
            ["tokens", "same width, ms", "changing, ms", "relative to one", "changing, relative"],
            [
                (
                    row["tokens"],
                    number(row["repeated_ms"], 2),
                    number(row["changing_ms"], 2),
                    number(row["repeated_ms"] / passes[0]["repeated_ms"], 2),
                    number(row["changing_ms"] / passes[0]["repeated_ms"], 2),
                )
                for row in passes
            ],
        )
        page.paragraph(
            f"llama.cpp's loop decodes {first['llama_passes']['tokens_per_second']:.0f} tokens/s."
            " polydraft with"
            " llama.cpp's CUDA, a draft head on the CPU, trees of one shape; two chat prompts of"
            " up to 160 tokens:"
        )
        rows = {}
        for row in last["generate"]:
            rows.setdefault((row["temperature"], row["way"]), []).append(row)
        page.table(
            ["T", "way", "tokens/s", "tokens a pass", "target, ms a step", "draft", "verification"],
            [
                (
                    t,
                    way,
                    *(
                        number(sum(x) / len(x), digits)
                        for x, digits in (
                            ([r["tokens_per_second"] for r in own], 0),
                            ([r["per_call"] for r in own], 2),
                            *(
                                ([r["time_ms"][part] / r["calls"] for r in own], 2)
                                for part in ("target", "draft", "verify")
                            ),
                        )
                    ),
                )
                for (t, way), own in rows.items()
            ],
        )
