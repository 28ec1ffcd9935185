#!/usr/bin/env python3
"""Draws the README's pictures from what the program does: a step's tree, and a terminal.

  docs/images/draw.py target/release/polydraft

The tree is a real step of the demo pair, as `polydraft serve` reports it; the terminal shows
`polydraft generate --show-drafts`, letter for letter.
"""

import json
import re
import subprocess
import sys
import time
import urllib.request
from html import escape
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROMPT = "impl Iterator for"
PORT = 8499
# Colours of text, lines and of the fates of tokens; light, then dark.
THEMES = {
    "light": dict(ink="#1f2328", soft="#59636e", line="#c7cdd4", box="#ffffff", taken="#1a7f37",
                  takenbox="#dafbe1", lost="#8c959f", lostbox="#f6f8fa", new="#cf222e",
                  newbox="#ffebe9", root="#0969da", rootbox="#ddf4ff"),
    "dark": dict(ink="#f0f6fc", soft="#9198a1", line="#3d444d", box="#0d1117", taken="#3fb950",
                 takenbox="#12261e", lost="#656c76", lostbox="#151b23", new="#ff7b72",
                 newbox="#301b1e", root="#4493f8", rootbox="#121d2f"),
}
WIDE, HIGH, ACROSS, DOWN = 92, 40, 124, 50
FONT = "font-family=\"ui-monospace,SFMono-Regular,Menlo,Consolas,monospace\""


def steps(program):
    """The steps of one request, from the server."""
    command = [program, "serve", "--port", str(PORT), "--no-config", "-q"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    body = {"prompt": PROMPT, "max_tokens": 48, "seed": 4, "temperature": 1, "stream": True}
    body |= {"steps": 8, "speculation": {"tree": "paths:3,4"}}
    request = urllib.request.Request(
        f"http://127.0.0.1:{PORT}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    found = []
    try:
        for _ in range(100):
            try:
                answer = urllib.request.urlopen(request)
                break
            except OSError:
                time.sleep(0.2)
        for line in answer:
            if line.startswith(b"data: {"):
                found += json.loads(line[6:]).get("steps") or []
    finally:
        server.terminate()
    return found


def short(text):
    """A token as it is shown: white space made visible, long ones cut."""
    text = text.replace("\n", "⏎").replace(" ", "␣")
    return text if len(text) <= 9 else text[:8] + "…"


def tree(step, theme):
    """One step as an SVG: nodes of the draft, and the token emitted after the accepted ones."""
    c = THEMES[theme]
    nodes = step["nodes"]
    children = [[] for _ in nodes]
    for i, node in enumerate(nodes):
        if node.get("drawn"):
            children[node["drawn"]["parent"]].append(i)
    accepted = set(step["accepted"])
    end = step["accepted"][-1] if step["accepted"] else 0
    place, leaf, deepest = {}, 0, 0

    def lay(i, depth):
        nonlocal leaf, deepest
        deepest = max(deepest, depth)
        rows = [lay(child, depth + 1) for child in children[i]]
        if i == end:
            rows.append(leaf)
            place["new"] = (depth + 1, leaf)
            leaf, deepest = leaf + 1, max(deepest, depth + 1)
        if rows:
            row = (rows[0] + rows[-1]) / 2
        else:
            row, leaf = leaf, leaf + 1
        place[i] = (depth, row)
        return row

    lay(0, 0)

    def x(depth):
        return 8 + depth * ACROSS

    def y(row):
        return 8 + row * DOWN

    width, height = max(x(deepest) + WIDE + 8, 640), y(leaf - 1) + HIGH + 34
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height:.0f}" '
        f'viewBox="0 0 {width} {height:.0f}" role="img" aria-label="A tree of drafted tokens: one '
        'path is accepted, then one more token is drawn from the target">'
    ]

    def edge(a, b, colour):
        x1, y1, x2, y2 = x(a[0]) + WIDE, y(a[1]) + HIGH / 2, x(b[0]), y(b[1]) + HIGH / 2
        middle = (x1 + x2) / 2
        out.append(
            f'<path d="M{x1},{y1:.1f}C{middle},{y1:.1f} {middle},{y2:.1f} {x2},{y2:.1f}" '
            f'fill="none" stroke="{colour}" stroke-width="2"/>'
        )

    def chip(at, fate, text, below):
        fill, stroke = c[fate + "box"], c[fate]
        out.append(
            f'<g transform="translate({x(at[0])},{y(at[1]):.1f})"><rect width="{WIDE}" '
            f'height="{HIGH}" rx="8" fill="{fill}" stroke="{stroke}" stroke-width="1.5"/>'
            f'<text x="{WIDE / 2}" y="17" text-anchor="middle" font-size="13" fill="{c["ink"]}" '
            f'{FONT}>{escape(text)}</text><text x="{WIDE / 2}" y="32" text-anchor="middle" '
            f'font-size="10.5" fill="{c["soft"]}" {FONT}>{escape(below)}</text></g>'
        )

    fate = {i: "taken" if i in accepted else "lost" for i in range(len(nodes))} | {0: "root"}
    for i, node in enumerate(nodes):
        if node.get("drawn"):
            colour = c["taken"] if i in accepted else c["line"]
            edge(place[node["drawn"]["parent"]], place[i], colour)
    edge(place[end], place["new"], c["new"])
    for i, node in enumerate(nodes):
        drawn = node.get("drawn")
        if drawn:
            chip(place[i], fate[i], short(drawn["text"]), f'{drawn["draft"]:.2f} → '
                 f'{drawn["target"]:.2f}')
        else:
            chip(place[i], "root", "sequence", "so far")
    last = "correction" if children[end] else "bonus"
    chip(place["new"], "new", short(step["emitted"]["text"]), last)
    out.append(
        f'<text x="8" y="{height - 10:.0f}" font-size="12" fill="{c["soft"]}" {FONT}>'
        f'{len(accepted) + 1} tokens from one target pass. In each box: the draft’s probability '
        '→ the target’s.</text></svg>'
    )
    return "\n".join(out) + "\n"


def terminal(program):
    """What `generate --show-drafts` prints, as an SVG."""
    words = ["generate", "--prompt", PROMPT, "--show-drafts", "--paths", "3", "--depth", "4"]
    words += ["--seed", "4", "-n", "60"]
    command = [program, *words, "--color", "always", "--no-config"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    shown = f"$ polydraft {' '.join(words[:2])} '{PROMPT}' {' '.join(words[3:])}\n"
    text = shown + PROMPT + done.stdout.rstrip() + "\n\n" + done.stderr.strip()
    # White space at the end of the sequence, with its colours.
    text = re.sub(r"\n((\x1b\[[0-9;]*m|\s)*\n){2,}", "\n\n", text)
    colours = {"32": "#3fb950", "31": "#ff7b72", "36": "#39c5cf"}
    colour, lines = "#f0f6fc", [[]]
    for part in re.split(r"(\x1b\[[0-9;]*m|\n)", text):
        if part == "\n":
            lines.append([])
        elif part.startswith("\x1b["):
            codes = part[2:-1].split(";")
            colour = next((colours[x] for x in codes if x in colours), colour)
            colour = "#f0f6fc" if codes == ["0"] else colour
        elif part:
            lines[-1].append((colour, part))
    width, height = 840, 24 + 19 * len(lines)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-label="A terminal: text in the colours of '
        'accepted drafts, corrections and bonus tokens, and a summary">'
        f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>'
    ]
    for i, line in enumerate(lines):
        spans = "".join(f'<tspan fill="{c}">{escape(t)}</tspan>' for c, t in line)
        out.append(
            f'<text x="14" y="{26 + 19 * i}" font-size="13.5" xml:space="preserve" {FONT}>'
            f"{spans}</text>"
        )
    out.append("</svg>")
    return "\n".join(out) + "\n"


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    program = sys.argv[1]
    # A step in which two tokens or more are accepted below a node that branches.
    good = [s for s in steps(program) if len(s["accepted"]) >= 2 and 7 <= len(s["nodes"]) <= 11]
    if not good:
        sys.exit("no step has a tree to show: take another seed")
    step = max(good, key=lambda s: (len(s["accepted"]) == 3, len(s["nodes"])))
    for theme in THEMES:
        (HERE / f"tree-{theme}.svg").write_text(tree(step, theme))
    (HERE / "terminal.svg").write_text(terminal(program))


main()
