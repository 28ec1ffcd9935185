"""Writes the table of docs/papers.md that says which orders of the papers' figures ours have.

    python3 bench/pages_papers.py RECORD.. >> page.md

RECORDs are what 'polydraft-lab bench paper NAME --save FILE' wrote.
"""

import json
import sys


def number(value):
    """A figure without zeros at the end."""
    return f"{value:.4f}".rstrip("0").rstrip(".")


def with_error(value, decimals):
    """Ours, with its standard error where there is one."""
    error = value.get("error")
    text = f"{value['value']:.{decimals}f}"
    return text if error is None else f"{text} ± {error:.{decimals}f}"


def at(place, other):
    """What tells one figure from the other, and what both have in common."""
    if place[0] == other[0]:
        return place[1], other[1], place[0]
    return place[0], other[0], place[1]


def rows(record):
    """One row for each of their tables, whatever their models, beside each of ours."""
    for table in record["tables"]:
        names = [source["source"] for source in table["theirs"]]
        for name in dict.fromkeys(names):
            own = [order for order in table["orders"] if names[order["source"]] == name]
            if not own:
                continue
            count = {"reproduced": 0, "contradicted": 0, "undecided": 0}
            for order in own:
                count[order["verdict"]] += 1
            most = max(own, key=lambda order: order["theirs"])
            more, less, common = at(most["more"], most["less"])
            yield [
                name,
                f"`{record['paper']}`, {table['name']}",
                f"{common}: {more} over {less}",
                number(most["theirs"]),
                with_error(most["ours"], table["decimals"]),
                " / ".join(str(count[name]) for name in count),
            ]


def main():
    print("| theirs | `bench paper` | their largest difference | theirs | ours | orders |")
    print("|---|---|---|---|---|---|")
    for name in sys.argv[1:]:
        with open(name, encoding="utf-8") as file:
            record = json.load(file)
        for row in rows(record):
            print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
