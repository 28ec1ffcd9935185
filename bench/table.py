#!/usr/bin/env python3
"""The table of --tree auto: its speed relative to plain decoding and to the best fixed tree, for types × drafts × texts × temperatures.

  bench/table.py target/release/polydraft MODEL.gguf --drafts self ngram FIRST8.gguf --dtypes f32 q8_0 -o record.json
  bench/table.py --show record.json

Each cell is one 'polydraft bench speed', in which all ways take turns, a few steps each; beside each ratio by the clock stands the one
by what passes cost, which has no noise of the machine in it. The record is written after each cell, and a run that is started again
with the same record goes on from there: cells of another target, other trees, threads or tokens are measured anew, and the table
says which is which. A copy of the target that would not be faster is written down as refused; anything else that goes wrong ends the
run.
Printed is Markdown.
"""

import argparse
import json
import shlex
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
TEXTS = {"code": "prompts.jsonl", "chat": "chat.jsonl", "repeat": "repeat.jsonl"}
GRID = [f"paths:{k},{l}" for k in (1, 2, 4) for l in (1, 2, 3, 4, 6)]

# What 'bench speed' says, with exit code 2, of a copy of the target that is no use.
REFUSAL = "it would not be faster"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("polydraft", nargs="?", type=Path, help="the program")
    parser.add_argument("target", nargs="?", help="the target model, or 'demo' for the demo pair")
    parser.add_argument("--drafts", nargs="+", default=["self", "ngram"], help="'demo' is the demo pair's own")
    parser.add_argument("--dtypes", nargs="+", default=["f32", "q8_0"], help="'default' is what the target is held in if nothing is said")
    parser.add_argument("--texts", nargs="+", default=list(TEXTS), choices=list(TEXTS))
    parser.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 0.7, 1.0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=20, help="of each cell, about")
    parser.add_argument("--count", type=int, help="texts of each cell, instead of seconds")
    parser.add_argument("--tokens", type=int, default=64, help="of each text")
    parser.add_argument("--trees", nargs="+", default=GRID, help="the fixed trees")
    parser.add_argument("--common", default="", help="options of all ways, such as '--backend llama', with --dtypes default")
    parser.add_argument("-o", "--output", type=Path, help="the record")
    parser.add_argument("--show", type=Path, metavar="RECORD", help="print the table of a record, measure nothing")
    args = parser.parse_args()
    if args.show is None and (args.polydraft is None or args.target is None or args.output is None):
        parser.error("expected a program, a target and -o RECORD, or --show RECORD")
    if args.show is None and args.target != "demo" and "demo" in args.drafts:
        parser.error(f"--drafts demo: expected the target demo, got {args.target}")
    return args


# Of a run; and of each of its cells.
OF_RUN = ("target", "tokens", "trees", "threads")
OF_CELL = ("dtype", "draft", "text", "temperature")


def key_of(args, cell):
    """All that a cell's figures hang on: what of it is in a record already is not measured again."""
    common = {"common": args.common} if args.common else {}
    return {name: getattr(args, name) for name in OF_RUN} | common | dict(zip(OF_CELL, cell))


def measure(args, dtype, draft, text, temperature):
    command = [args.polydraft, "bench", "speed", "--json", "--threads", args.threads, *shlex.split(args.common)]
    if dtype != "default":
        command += ["--dtype", dtype]
    command += ["--prompts", HERE / TEXTS[text], "-t", temperature, "-n", args.tokens]
    command += ["--texts", args.count] if args.count else ["--seconds", args.seconds]
    if args.target != "demo":
        command += ["--target", args.target]
    if draft != "demo":
        command += ["--draft", draft]
    for tree in args.trees:
        # At temperature 0 the paths of a tree are all the same one.
        if temperature > 0 or tree.startswith("paths:1,"):
            command += ["--tree", tree]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        # A copy in as many bits as the target has.
        why = [line.removeprefix("error: ") for line in done.stderr.splitlines() if REFUSAL in line]
        if done.returncode == 2 and why:
            return {"refused": why[0]}
        sys.exit(f"{' '.join(map(str, command))}\nended with {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def differing(cells):
    """What cells of several runs differ in, by name; those of old records say less of it."""
    said = {name: [str(cell.get(name, cell["speed"].get(name, "-"))) for cell in cells] for name in ("target", "tokens", "threads", "common")}
    return {name: [Path(value).name for value in values] for name, values in said.items() if len(set(values)) > 1}


def show(record):
    runs = differing(record["cells"])
    head = [*runs, "type", "draft", "text", "T", "texts", "plain, tokens/s", "`auto`", "of plain", "fixed tree tried before"]
    head += ["by costs: `auto`", "tried before", "the best in hindsight"]
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
        figures = [auto["ratio"], speed.get("tried_before"), auto.get("by_costs"), speed.get("tried_before_by_costs"), best.get("by_costs", best["ratio"])]
        ratio, tried, by_costs, tried_by_costs, best_by_costs = (f"{figure:.2f}" if figure else "-" for figure in figures)
        print(
            f"{name} {speed['texts']} | {plain['tokens_per_second']:.1f} | {auto['tokens_per_second']:.1f} | {ratio} | {tried} |"
            f" {by_costs} | {tried_by_costs} | {best_by_costs} (`{best['tree']}`) |"
        )


def main():
    args = arguments()
    if args.show:
        show(json.loads(args.show.read_text()))
        return
    record = {"command": " ".join(sys.argv), "date": time.strftime("%Y-%m-%d"), "cells": []}
    if args.output.exists():
        record = json.loads(args.output.read_text())
        missing = [name for name in OF_RUN if any(name not in cell for cell in record["cells"])]
        if missing:
            sys.exit(f"{args.output}: expected cells with {', '.join(OF_RUN)}, got some without {', '.join(missing)}: an old record, to be shown only")
    done = [{name: value for name, value in cell.items() if name != "speed"} for cell in record["cells"]]
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
        args.output.write_text(json.dumps(record) + "\n")
    show(record)


if __name__ == "__main__":
    main()
