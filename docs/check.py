#!/usr/bin/env python3
"""Checks the book without a network: links, anchors, contents, lengths, TL;DR blocks, JSON
examples and names of tests.

  python3 docs/check.py

Prints what is wrong, a line each; the exit code is 1 if anything is.
"""

import json
import re
import sys
from functools import cache
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
OTHERS = [
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "bindings/python/README.md",
    "demo/README.md",
    "bench/README.md",
    "research/bench/README.md",
    "fuzz/README.md",
]

LINES, COLUMNS = 300, 100
LONG_PAGES = {"theory.md", "benchmarks.md"}


def prose(text):
    """Lines without code blocks and comments, with their numbers; blank ones stand for those."""
    is_code, is_comment = False, False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
            yield number, ""
            continue
        is_comment = is_comment or line.startswith("<!--")
        yield number, "" if is_code or is_comment else line
        is_comment = is_comment and "-->" not in line


def anchor(heading):
    """The name that mdBook and GitHub give to a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


@cache
def anchors(path):
    """The anchors of a file's headings; those that occur again are numbered."""
    found = set()
    for _, line in prose(path.read_text()):
        if heading := re.match(r"#{1,6}\s+(.*)", line):
            name, number = anchor(heading[1]), 0
            while (name if not number else f"{name}-{number}") in found:
                number += 1
            found.add(name if not number else f"{name}-{number}")
    return found


def links(path):
    """What is wrong with the relative links of a file."""
    for number, line in prose(path.read_text()):
        line = re.sub(r"`[^`]*`", lambda code: "x" * len(code[0]), line)
        for target in re.findall(r"\]\(([^)\s]+)\)", line):
            if re.match(r"[a-z]+:", target):
                continue
            file, _, name = target.partition("#")
            other = (path.parent / file).resolve() if file else path
            if not other.exists():
                yield number, f"link to {target}: there is no such file"
            elif name and other.suffix == ".md" and name not in anchors(other):
                yield number, f"link to {target}: there is no such heading"


def page(path):
    """What is wrong with a page of the book."""
    text = path.read_text()
    lines = text.splitlines()
    if path.name not in LONG_PAGES and len(lines) > LINES:
        yield len(lines), f"expected at most {LINES} lines, got {len(lines)}"
    head = [line for line in lines[:12] if line.strip() and not line.startswith("<!--")]
    if not (len(head) > 1 and head[0].startswith("# ") and head[1].startswith("> **TL;DR")):
        yield 1, "expected a heading, then a block that begins with > **TL;DR"
    for number, line in enumerate(lines, 1):
        if len(line) > COLUMNS and not line.startswith("|"):
            yield number, f"expected at most {COLUMNS} columns, got {len(line)}"


def examples(path):
    """JSON examples that do not parse: blocks of JSON, and shell arguments in quotes."""
    text = path.read_text()

    def check(start, example):
        try:
            json.loads(example)
        except ValueError as error:
            yield text.count("\n", 0, start) + 1, f"JSON example: {error}"

    for block in re.finditer(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if block[1] == "json":
            yield from check(block.start(2), block[2])
        if block[1] == "sh":
            for argument in re.finditer(r"'(\s*\{.*?\})'", block[2], re.DOTALL):
                yield from check(block.start(2) + argument.start(), argument[1])
    for inline in re.finditer(r"`--?[\w-]+ '(\{[^`]*\})'`", text):
        yield from check(inline.start(), inline[1])


def tests(path):
    """Tests named in a page that do not exist."""
    text = path.read_text()
    name = r"`(?:[\w-]+,\s+(?:[\w -]+:\s+)?)?([a-z]+(?:_[a-z0-9]+){2,})`"
    for found in re.finditer(name, text):
        if found[1] not in identifiers():
            yield text.count("\n", 0, found.start()) + 1, f"no test {found[1]}"


@cache
def identifiers():
    """All words of the sources and their tests."""
    folders = ("crates", "research", "bindings", "tools", "bench", "demo")
    files = (path for folder in folders for path in (ROOT / folder).rglob("*"))
    sources = (path for path in files if path.suffix in (".rs", ".py", ".json") and path.is_file())
    return {word for path in sources for word in re.findall(r"\w+", path.read_text(errors="ignore"))}


def summary():
    """Every page is listed in SUMMARY.md, once."""
    listed = re.findall(r"\]\(([^)]+)\)", (DOCS / "SUMMARY.md").read_text())
    pages = {path.name for path in DOCS.glob("*.md")} - {"SUMMARY.md"}
    for name in sorted(pages - set(listed)):
        yield 1, f"{name} is not listed"
    for name in sorted({name for name in listed if listed.count(name) > 1}):
        yield 1, f"{name} is listed more than once"


def main():
    wrong = []

    def note(path, found):
        wrong.extend(f"{path.relative_to(ROOT)}:{number}: {what}" for number, what in found)

    for path in sorted(DOCS.glob("*.md")):
        note(path, links(path))
        note(path, examples(path))
        note(path, tests(path) if path.name == "theory.md" else [])
        if path.name != "SUMMARY.md":
            note(path, page(path))
    note(DOCS / "SUMMARY.md", summary())
    for name in OTHERS:
        if (ROOT / name).exists():
            note(ROOT / name, links(ROOT / name))
            note(ROOT / name, examples(ROOT / name))
    print("\n".join(wrong))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
