#!/usr/bin/env python3
"""Makes docs/benchmarks.md from the records in bench/records and research/records.

  bench/pages.py              writes the page
  bench/pages.py --check      writes nothing; exit code 1 if the page is not what the records give
  bench/pages.py --unused     lists the records that the page does not use

A record's name is DATE-MACHINE-KIND.json. Of each kind and machine the page has the newest record;
a kind without a record has no section. Python's standard library is all that this needs.
"""

import argparse
import sys
import textwrap

import pages_speed
from pages_base import PAGE, ROOT, Page, newest, records, times
from pages_speed import cells, plain_rows

sys.path.append(str(ROOT / "research" / "bench"))
import pages_gpu  # noqa: E402
import pages_heads  # noqa: E402
import pages_research  # noqa: E402


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
        lambda record: [row[7] for row in cells(record) if row[:2] == ("q8_0", "n-grams")],
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
    page.add("<!-- Made by bench/pages.py from records. Edit those, not this. -->")
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
        pages_speed.plain,
        pages_speed.server,
        pages_speed.adaptive,
        pages_speed.speculation,
        pages_speed.after_context,
        pages_speed.start,
        pages_speed.llama_backend,
        pages_research.verifiers,
        pages_research.ngrams,
        pages_research.passes,
        pages_research.gpu,
        pages_research.kernels,
        pages_gpu.steps,
        pages_gpu.published,
        pages_gpu.llama,
        pages_heads.curve,
        pages_heads.trained,
        pages_research.quality,
        pages_research.solvers,
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
        print("\n".join(sorted(path.name for path in records() if path not in used)))
        return
    if args.check:
        if not PAGE.exists() or PAGE.read_text() != text:
            sys.exit(f"{PAGE.relative_to(ROOT)}: not what records give; run bench/pages.py")
        return
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
