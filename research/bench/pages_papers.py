#!/usr/bin/env python3
"""Makes the tables of docs/papers.md that are measured: systems, and the orders of their figures.

  research/bench/pages_papers.py     writes them between their marks in docs/papers.md
  research/bench/pages_papers.py --check   exit code 1 if the page is not what records give

Records are what 'polydraft-lab bench paper NAME --save FILE' wrote,
research/records/*-paper-NAME.json; of each paper the newest counts.
"""

import argparse
import json
import re
import sys

import _path  # noqa: F401
from pages_base import ROOT
from pages_base import records as files

PAGE = ROOT / "docs" / "papers.md"
NAME = re.compile(r"(\d{4}-\d\d-\d\d)-.+-paper-(.+)\.json")

# In the order of the page.
PAPERS = ["spectr", "spechub", "canonical", "global-resolution", "gbv", "delayed"]

# What a system is, its command, what stands beside it: a table of ours with row and column, and the
# source of the paper's figure, by its name and its models; and what differs.
SYSTEMS = [
    (
        "block verification (Sun et al. 2024)",
        "polydraft generate --verifier block --depth 8",
        ("gbv", "paths", "K = 1", "greedy-block"),
        ("table 1", "350M, GSM8K"),
        "",
    ),
    (
        "SpecTr, K paths (Sun et al. 2023)",
        "polydraft generate --verifier spectr --paths 8 --depth 8",
        ("spectr", "efficiency", "K = 8, L = 8", "spectr"),
        ("table 4", "20M"),
        "",
    ),
    (
        "the same, a ρ of one's own",
        "polydraft-lab couple pair.json --rule k-seq --set rho=2",
        None,
        None,
        "a ρ below the best one is raised to it: the rule is not valid there",
    ),
    (
        "SpecInfer (Miao et al. 2023), K paths; tree 3,2,1 with `--tree 3,2,1`",
        "polydraft generate --verifier specinfer --paths 2 --depth 8",
        ("gbv", "methods", "T = 1, K = 2", "specinfer"),
        ("table 7", ""),
        "figure of GBV's authors",
    ),
    (
        "several small models in one tree (Miao et al. 2023)",
        "polydraft generate --draft A --draft B --verifier specinfer",
        None,
        None,
        "no figure: its text is not at hand",
    ),
    (
        "RRS on a binary Sequoia tree (SpecHub, table 5)",
        "polydraft generate --verifier specinfer --tree sequoia:16 --drafting iid",
        ("spechub", "trees-1", "biSeq16", "RRS"),
        ("table 5", ""),
        "trees by our acceptances",
    ),
    (
        "importance sampling, drafts of temperatures 1.2 and 2 (Khisti et al. 2025)",
        "polydraft-lab generate --verifier walk:importance --draft-temperature 1.2,2 --depth 5 "
        "--top-k 50",
        ("canonical", "truncation", "K = 2, L = 5", "alphabet 40, s = 5"),
        ("table 1", ""),
        "top-k is our reading",
    ),
    (
        "RSD, Sequoia: the same without replacement (Jeon et al. 2024, Chen et al. 2024)",
        "polydraft generate --verifier specinfer --tree sequoia:16",
        ("spechub", "trees-1", "biSeq16", "RRSw"),
        ("table 5", ""),
        "figure of SpecHub's authors; a repeated token keeps its position",
    ),
    (
        "SpecHub (Sun et al. 2024); on a binary tree with `--tree binary`",
        "polydraft generate --verifier walk:hub --tree sequoia:16 --drafting hub",
        ("spechub", "trees-1", "biSeq16", "SpecHub"),
        ("table 5", ""),
        "trees by our acceptances",
    ),
    (
        "SpecTr with Global Resolution as published (Thomas and Pal 2025a): measured, never"
        " emitted",
        "polydraft-lab efficiency --target t.json --draft d.json --verifier walk:global-resolution "
        "--set mode=published-walk",
        ("global-resolution", "efficiency", "K = 4, L = 8", "as published"),
        ("table 4", ""),
        "draws from the target where there is no solution, at most nodes here",
    ),
    (
        "the same, repaired",
        "polydraft-lab generate --verifier walk:global-resolution --paths 4 --depth 8 "
        "--draft-top-k 100",
        ("global-resolution", "efficiency", "K = 4, L = 8", "walk:global-resolution"),
        None,
        "`priority` takes over at those nodes",
    ),
    (
        "GBV (Thomas and Pal 2025b)",
        "polydraft generate --verifier greedy-block --paths 2 --depth 8",
        ("gbv", "paths", "K = 2", "greedy-block"),
        ("table 1", "350M, GSM8K"),
        "on their Qwen-3 and Llama-3 pairs K = 2 loses",
    ),
    (
        "traversal verification (Weng et al. 2025); trees with `--tree sequoia:16`",
        "polydraft generate --verifier traversal --paths 2 --depth 8",
        ("gbv", "methods", "T = 1, K = 2", "traversal"),
        ("table 7", ""),
        "figure of GBV's authors",
    ),
    (
        "delayed trees (Thomas et al. 2026); here traversal, paths from the root",
        "polydraft generate --tree delayed:2,4,6",
        ("delayed", "means", "paths from the root", "traversal"),
        ("delayed", ""),
        "means over other models and settings",
    ),
]


def number(value):
    """A figure without zeros at the end."""
    return f"{value:.4f}".rstrip("0").rstrip(".")


def with_error(value, decimals):
    """Ours, with its standard error where there is one."""
    error = value.get("error")
    text = f"{value['value']:.{decimals}f}"
    return text if not error else f"{text} ± {error:.{decimals}f}"


def records():
    """The newest record of each paper, and its name."""
    found = {}
    for path in files():
        match = NAME.fullmatch(path.name)
        if match:
            found[match[2]] = (path.name, json.loads(path.read_text()))
    return {name: found[name] for name in PAPERS}


def table_of(record, name):
    return next(table for table in record["tables"] if table["name"] == name)


def system(found, ours, theirs):
    """The setting, the paper's figure and ours."""
    if ours is None:
        return ["", "", ""]
    paper, name, row, column = ours
    table = table_of(found[paper][1], name)
    entries = table["entries"]
    entry = next(one for one in entries if (one["row"], one["column"]) == (row, column))
    figure = ""
    if theirs is not None:
        source = next(
            index
            for index, source in enumerate(table["theirs"])
            if theirs[0] in source["source"] and theirs[1] in source["models"]
        )
        figure = f"{number(entry['theirs'][source]['value'])} ({theirs[0]})"
    return [f"`{paper}`, {name}: {row}", figure, with_error(entry["ours"], 2)]


def systems(found):
    yield "| system | command | measured | theirs | ours | what differs |"
    yield "|---|---|---|---|---|---|"
    for name, command, ours, theirs, differs in SYSTEMS:
        cells = [name, f"`{command}`", *system(found, ours, theirs), differs]
        yield "| " + " | ".join(cells) + " |"


def at(place, other):
    """Words that tell one figure from the other, and what both have in common."""
    if place[0] == other[0]:
        return place[1], other[1], place[0]
    return place[0], other[0], place[1]


def most(own):
    """The order of their largest difference; of those that a text states, ours that fits least."""
    figures = [order for order in own if order.get("theirs") is not None]
    if figures:
        return max(figures, key=lambda order: order["theirs"])
    return min(own, key=lambda order: order["ours"]["value"])


def orders(found):
    yield "| theirs | `bench paper` | their largest difference | theirs | ours | orders |"
    yield "|---|---|---|---|---|---|"
    for _, record in found.values():
        for table in record["tables"]:
            names = [source["source"] for source in table["theirs"]]
            for name in dict.fromkeys(names):
                own = [order for order in table["orders"] if names[order["source"]] == name]
                if not own:
                    continue
                count = {"reproduced": 0, "contradicted": 0, "undecided": 0}
                for order in own:
                    count[order["verdict"]] += 1
                order = most(own)
                more, less, common = at(order["more"], order["less"])
                theirs = order.get("theirs")
                cells = [
                    name,
                    f"`{record['paper']}`, {table['name']}",
                    f"{common}: {more} over {less}",
                    "its text" if theirs is None else number(theirs),
                    with_error(order["ours"], table["decimals"]),
                    " / ".join(str(count[name]) for name in count),
                ]
                yield "| " + " | ".join(cells) + " |"


def runs(found):
    """Links to the records, and how long each measured."""
    yield "| record, of the demo pair | machine | `--seconds` | commit |"
    yield "|---|---|---|---|"
    for paper, (name, record) in found.items():
        seconds = re.search(r"--seconds (\d+)", record["command"])
        seconds = seconds[1] if seconds else "840"
        commit = (record.get("commit") or "not recorded")[:7]
        machine = record["machine"].removesuffix(", linux x86_64").replace("(R)", "")
        machine = machine.replace(" Processor", "")
        link = f"[{paper}, {name[:10]}](../research/records/{name})"
        yield f"| {link} | {machine} | {seconds} | `{commit}` |"


def page(text, found):
    """The page with its measured parts made anew."""
    for name, lines in (("systems", systems), ("runs", runs), ("orders", orders)):
        begin, end = (
            f"<!-- {name}: made by research/bench/pages_papers.py -->\n",
            f"<!-- end of {name} -->\n",
        )
        before, rest = text.split(begin)
        after = rest.split(end)[1]
        made = "\n".join(lines(found))
        text = f"{before}{begin}\n{made}\n\n{end}{after}"
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--check", action="store_true", help="exit code 1 if the page is not what the records give"
    )
    args = parser.parse_args()
    old = PAGE.read_text(encoding="utf-8")
    new = page(old, records())
    if args.check:
        if new != old:
            sys.exit(
                "docs/papers.md is not what the records give: run research/bench/pages_papers.py"
            )
    else:
        PAGE.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
