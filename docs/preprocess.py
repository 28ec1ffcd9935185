#!/usr/bin/env python3
"""A preprocessor of mdBook: formulas for MathJax, links out of the book.

GitHub reads $x$ and $$x$$, mdBook's MathJax other signs; Markdown must not touch what is between.
Links to files of the repository that are no pages become links to the repository where book.toml
has git-repository-url, else their names.
"""

import json
import re
import sys

CODE = re.compile(r"(^```.*?^```|`[^`\n]*`)", re.MULTILINE | re.DOTALL)
MATH = re.compile(r"\$\$(.+?)\$\$|\$(\S(?:[^$]*?\S)?)\$", re.DOTALL)
OUTSIDE = re.compile(r"\[([^\]]*)\]\(\.\./([^)\s]+)\)")


def escaped(formula):
    """A formula that Markdown gives on as it is."""
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", " ".join(formula.split()))


def formulas(text):
    def one(match):
        opening, closing = (r"\[", r"\]") if match[1] else (r"\(", r"\)")
        return escaped(opening + (match[1] or match[2]) + closing)

    return MATH.sub(one, text)


def outside(text, repository):
    def one(match):
        if repository:
            return f"[{match[1]}]({repository}/blob/main/{match[2]})"
        name = re.sub(r"^(bench|research)/records/", "", match[2].partition("#")[0])
        same = match[1].strip("`") in match[2] or match[1] in ("1", "2", "3", "4", "record")
        return f"`{name}`" if same else f"{match[1]} (`{name}`)"

    return OUTSIDE.sub(one, text)


def chapter(text, repository, has_formulas):
    # First links, whose text may be code; then formulas, between pieces of code.
    text = outside(text, repository)
    if has_formulas:
        text = "".join(
            part if number % 2 else formulas(part) for number, part in enumerate(CODE.split(text))
        )
    return text


def walk(items, repository):
    for item in items:
        if isinstance(item, dict) and "Chapter" in item:
            this = item["Chapter"]
            has_formulas = this.get("path") == "theory.md"
            this["content"] = chapter(this["content"], repository, has_formulas)
            walk(this["sub_items"], repository)


def main():
    if sys.argv[1:2] == ["supports"]:
        sys.exit(0 if sys.argv[2] == "html" else 1)
    context, book = json.load(sys.stdin)
    html = context["config"].get("output", {}).get("html", {})
    walk(
        book.get("items", book.get("sections")), (html.get("git-repository-url") or "").rstrip("/")
    )
    json.dump(book, sys.stdout)


if __name__ == "__main__":
    main()
