#!/usr/bin/env python3
"""The table of --tree auto: its speed relative to plain decoding and to the best fixed tree.

  bench/table.py target/release/polydraft MODEL.gguf --drafts self ngram FIRST8.gguf \\
      --dtypes f32 q8_0 -o record.json
  bench/table.py --show record.json

For types × drafts × texts × temperatures. What follows `--` goes to the program in all ways, such
as `--backend llama`, with --dtypes default. Each cell is one 'polydraft bench speed', in which all
ways take turns, a few steps each; beside each ratio by the clock stands the one by what passes
cost, which has no noise of the machine in it. The record is written after each cell, and a run that
is started again with the same record goes on from there: cells of another target, other trees,
threads or tokens are measured anew, and the table says which is which. A copy of the target that
would not be faster is written down as refused; anything else that goes wrong ends the run. Printed
is Markdown.
"""

import json
import shlex
import sys
from pathlib import Path

import harness

GRID = [f"paths:{k},{l}" for k in (1, 2, 4) for l in (1, 2, 3, 4, 6)]

# What 'bench speed' says, with exit code 2, of a copy of the target that is no use.
REFUSAL = "it would not be faster"


def arguments():
    shared = ("program?", "target?", "threads", "count", "tokens", "record", "show")
    parser = harness.options(__doc__, *shared, tokens=64)
    add = parser.add_argument
    add("--drafts", nargs="+", default=["self", "ngram"], help="'demo' is the demo pair's own")
    add("--dtypes", nargs="+", default=["f32", "q8_0"], help="'default' is the target's own")
    texts = list(harness.TEXTS)
    add("--texts", nargs="+", default=texts, choices=texts, help="kinds of prompts")
    add("--temperatures", nargs="+", type=float, default=[0.0, 0.7, 1.0], help="of the outputs")
    add("--seconds", type=int, default=20, help="of each cell, about, without --count")
    add("--trees", nargs="+", default=GRID, help="the fixed ones")
    args = harness.parsed(parser)
    if args.show is None and None in (args.program, args.target, args.record):
        parser.error("expected a program, a target and -o RECORD, or --show RECORD")
    if args.show is None and args.target != "demo" and "demo" in args.drafts:
        parser.error(f"--drafts demo: expected the target demo, got {args.target}")
    return args


# Of a run; and of each of its cells.
OF_RUN = ("target", "tokens", "trees", "threads")
OF_CELL = ("dtype", "draft", "text", "temperature")


def key_of(args, cell):
    """All that a cell's figures hang on: what a record has of it is not measured again."""
    common = {"common": shlex.join(args.options)} if args.options else {}
    return {name: getattr(args, name) for name in OF_RUN} | common | dict(zip(OF_CELL, cell))


def measure(args, dtype, draft, text, temperature):
    """Measures a cell: what 'bench speed' says, or why it refused."""
    command = [args.program, "bench", "speed", "--json", "--threads", args.threads, *args.options]
    if dtype != "default":
        command += ["--dtype", dtype]
    prompts = harness.BENCH / harness.TEXTS[text]
    command += ["--prompts", prompts, "-t", temperature, "-n", args.tokens]
    command += ["--outputs", args.count] if args.count else ["--seconds", args.seconds]
    if args.target != "demo":
        command += ["--target", args.target]
    if draft != "demo":
        command += ["--draft", draft]
    for tree in args.trees:
        # At temperature 0 the paths of a tree are all the same one.
        if temperature > 0 or tree.startswith("paths:1,"):
            command += ["--tree", tree]
    done = harness.run(command, accept=(0, 2))
    if done.returncode:
        # A copy in as many bits as the target has.
        why = [line.removeprefix("error: ") for line in done.stderr.splitlines() if REFUSAL in line]
        if not why:
            sys.exit(done.stderr[-2000:])
        return {"refused": why[0]}
    return json.loads(done.stdout)


def differing(cells):
    """Differences of cells of several runs, by name; those of old records say less of it."""
    said = {
        name: [str(cell.get(name, cell["speed"].get(name, "-"))) for cell in cells]
        for name in ("target", "tokens", "threads", "common")
    }
    return {
        name: [Path(value).name for value in values]
        for name, values in said.items()
        if len(set(values)) > 1
    }


def show(record):
    """Prints the table."""
    runs = differing(record["cells"])
    head = [*runs, "type", "draft", "text", "T", "texts", "plain, tokens/s", "`auto`", "of plain"]
    head += ["fixed tree tried before", "by costs: `auto`", "tried before", "the best in hindsight"]
    print(f"| {' | '.join(head)} |")
    print("|---" * len(head) + "|")
    for number, cell in enumerate(record["cells"]):
        speed = cell["speed"]
        name = [values[number] for values in runs.values()]
        name += [cell["dtype"], Path(cell["draft"]).name, cell["text"], f"{cell['temperature']:g}"]
        name = f"| {' | '.join(name)} |"
        if "refused" in speed:
            print(f"{name} refused: {speed['refused']} ||||||||")
            continue
        rows = {row["tree"]: row for row in speed["results"]}
        plain, auto = rows.pop("none"), rows.pop("auto")
        best = max(rows.values(), key=lambda row: row.get("by_costs", row["ratio"]))
        figures = [auto["ratio"], speed.get("tried_before"), auto.get("by_costs")]
        figures += [speed.get("tried_before_by_costs"), best.get("by_costs", best["ratio"])]
        speeds = f"{plain['tokens_per_second']:.1f} | {auto['tokens_per_second']:.1f}"
        figures = " | ".join(f"{figure:.2f}" if figure else "-" for figure in figures)
        print(f"{name} {speed['texts']} | {speeds} | {figures} (`{best['tree']}`) |")


def main():
    args = arguments()
    if args.show:
        show(harness.read(args.show))
        return
    record = harness.provenance(args.program, args.options) | {"cells": []}
    if args.record.exists():
        record = harness.read(args.record)
        missing = [name for name in OF_RUN if any(name not in cell for cell in record["cells"])]
        if missing:
            wrong = (
                f"expected cells with {', '.join(OF_RUN)}, got some without {', '.join(missing)}"
            )
            sys.exit(f"{args.record}: {wrong}: an old record, to be shown only")
    done = [
        {name: value for name, value in cell.items() if name != "speed"} for cell in record["cells"]
    ]
    cells = [
        (dtype, draft, text, temperature)
        for dtype in args.dtypes
        for draft in args.drafts
        for text in args.texts
        for temperature in args.temperatures
    ]
    for number, cell in enumerate(cells):
        key = key_of(args, cell)
        if key in done:
            continue
        print(f"{number + 1} of {len(cells)}: {' '.join(map(str, cell))}", file=sys.stderr)
        speed = measure(args, *cell)
        record["cells"].append(key | {"speed": speed})
        harness.write(args.record, record, indent=None)
    show(record)


if __name__ == "__main__":
    main()
