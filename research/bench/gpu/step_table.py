#!/usr/bin/env python3
"""The table of `step.py`: tokens per second relative to plain decoding.

  step_table.py RECORD     prints it again from a record
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def answers(data) -> list[dict]:
    """Steps (measured) times tokens a step (emulated acceptance), relative to plain decoding."""
    plain = {(r["target"], r["batch"]): r["plain_ms"] for r in data.get("plain", [])}
    rows = []
    for step in data.get("steps", []):
        base = plain.get((step["target"], step["batch"]))
        for tokens in data.get("tokens", []):
            same = all(step[key] == tokens[key] for key in ("paths", "length", "method"))
            if not same or base is None:
                continue
            row = {key: step[key] for key in ("target", "draft", "batch", "paths", "length")}
            row |= {key: tokens[key] for key in ("kind", "acceptance", "mean_tokens")}
            row["relative"] = round(tokens["mean_tokens"] * base / step["ms"], 3)
            rows.append(row)
    return rows


def checks(data) -> None:
    """Prints how many hold, and which do not."""
    bad = [r for r in data.get("tokens", []) if not r["ok"]]
    bad += [r for r in data.get("steps", []) if not r["graph_is_eager"]]
    bad += [r for r in data.get("trees", []) if not r["ok"]]
    many = sum(len(data.get(key, [])) for key in ("tokens", "steps", "trees"))
    print(f"{many - len(bad)} of {many} checks hold; {len(data.get('failed', []))} failures; "
          f"{len(data.get('left_out', []))} sections left out")
    for row in bad:
        print("  DIFFERS", row)
    for row in data.get("failed", []):
        print("  FAILED", row["section"], row["error"][:300])


def table(data) -> None:
    """Everything that answers the question."""
    print()
    if data["gpu"] == "cpu":
        print("Interpreted on a CPU, in tiny shapes: times mean nothing")
    checks(data)
    for r in data.get("plain", []):
        print(f"plain {r['target']} batch {r['batch']}: {r['plain_ms']:.3f} ms ({r['attention']}, "
              f"{r.get('of_copy', '-')} of a copy's speed)")
    print("\nMeasured: ms of a step and of its parts as graphs of their own")
    print(f"{'draft':14} {'batch':>5} K L {'step':>8} {'draft':>8} {'target':>8} {'verify':>8} "
          f"{'other':>8} {'gather':>8} {'draws':>8} {'copies':>8}")
    print("  (other: verification by walk:priority, of one path by token; draws are in draft; "
          "copies are emulation's, in draft and target)")
    parts = {(p["target"], p["batch"], p["paths"], p["length"]): p for p in data.get("parts", [])}
    for r in data.get("steps", []):
        p = parts.get((r["target"], r["batch"], r["paths"], r["length"]), {})
        kinds = ("target", "verify", "other_verify", "gather", "draws", "copies")
        cells = [r["ms"], r["draft_ms"], *(p.get(f"{kind}_ms") for kind in kinds)]
        line = " ".join(f"{'-' if c is None else format(c, '.3f'):>8}" for c in cells)
        name = r["draft"] if r["target"] == "llama-3.1-8b" else f"{r['target']}*"
        print(f"{name:14} {r['batch']:5} {r['paths']} {r['length']} {line}")
    print("\nTokens a step of the verification, acceptance emulated")
    for r in data.get("tokens", []):
        print(f"{r['kind']:8} {r['acceptance']:5} K {r['paths']} L {r['length']} "
              f"{r['method']:16} {r['mean_tokens']:.3f} ± {r['error']:.3f}")
    rows = answers(data)
    shapes = sorted({(r["length"], r["paths"]) for r in rows})
    print("\nTokens per second relative to plain decoding, by K x L")
    print(f"{'draft':14} {'batch':>5} {'kind':8} {'acc':>5} "
          + " ".join(f"{f'{k}x{l}':>6}" for l, k in shapes) + "  best one path, best of several")
    if any(r["target"] != "llama-3.1-8b" for r in rows):
        print("*: this target with qwen3-0.6b as its draft; else llama-3.1-8b")
    groups = {}
    for r in rows:
        draft = r["draft"] if r["target"] == "llama-3.1-8b" else f"{r['target']}*"
        key = draft, r["batch"], r["kind"], r["acceptance"]
        groups.setdefault(key, {})[r["length"], r["paths"]] = r["relative"]
    for key in sorted(groups):
        found = groups[key]
        cells = " ".join(f"{format(found[s], '.2f') if s in found else '-':>6}" for s in shapes)
        one = max((v for (_, k), v in found.items() if k == 1), default=0.0)
        several = max((v for (_, k), v in found.items() if k > 1), default=0.0)
        pays = "several pay" if several > max(one, 1.0) else (
            "one path" if one > 1.0 else "plain decoding")
        print(f"{key[0]:14} {key[1]:5} {key[2]:8} {key[3]:5} {cells}  {one:.2f} {several:.2f} "
              f"{pays}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path, help="of step.py")
    table(json.loads(parser.parse_args().record.read_text()))
