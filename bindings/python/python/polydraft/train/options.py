"""The command line of `python -m polydraft.train`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

ABOUT = """\
Trains a draft head (EAGLE-3, or DFlash) for a model of yours.

The model writes text itself (both sides of conversations from its own template, code, prose, lists), with its hidden states,
by polydraft's own engine; a head learns from that with PyTorch. First it is measured what passes cost on this machine: a
table says what a head will give by its acceptance, and how long training will take is said as it goes. Everything on the way
lies in the work folder. The same command goes on where it was stopped, and more --tokens or --passes prolong it; the head in
--out is that of the last check, so it can be tried meanwhile:

  python -m polydraft.train --target model.gguf --out head
  polydraft generate --target model.gguf --draft head --prompt 'Once upon a time'
"""


def at_least(least: float, kind: Callable[[str], float] = float) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = kind(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"expected at least {least:g}, got {text}")
        return value

    read.__name__ = "number"
    return read


def count(text: str) -> int:
    """300000, 300k, 20M."""
    factor = {"k": 1_000, "M": 1_000_000}.get(text[-1:], 1)
    return round(float(text[:-1] if factor > 1 else text) * factor)


def several(kind: Callable[[str], float]) -> Callable[[str], list[float]]:
    def read(text: str) -> list[float]:
        return [kind(part) for part in text.split(",")]

    read.__name__ = "list of numbers"
    return read


def whole(text: str) -> int:
    return at_least(1, count)(text)  # type: ignore[return-value]


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser("python -m polydraft.train", description=ABOUT, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--target", type=Path, metavar="MODEL", help="the model: a directory or a GGUF file")
    p.add_argument("--out", type=Path, metavar="DIR", required=True, help="where the head goes")
    p.add_argument("--work", type=Path, metavar="DIR", help="where text and checkpoints go [default: work in --out]")
    p.add_argument(
        "--only",
        choices=["estimate", "write", "learn", "export"],
        help="one part of it: write on one machine, learn on another\n(learn and export need no --target)",
    )
    text = p.add_argument_group("text")
    text.add_argument("--tokens", type=whole, metavar="N", help="tokens to write [default: 20M; with --only learn what there is]")
    text.add_argument("--text", type=Path, nargs="+", default=[], metavar="FILE", help="files to learn from instead")
    text.add_argument("--dtype", metavar="TYPE", help="how the target's weights are stored, as it will be run")
    layers, temperatures = several(int), several(at_least(0))
    text.add_argument("--layers", type=layers, metavar="2,15,27", help="whose inputs the head reads [default: 2, L/2, L-3]")
    text.add_argument(
        "--temperatures", type=temperatures, default="0.7,1", metavar="T,..", help="each sample takes one [default: 0.7,1]"
    )
    text.add_argument("--longest", type=whole, default=512, metavar="N", help="tokens of a text at most [default: 512]")
    text.add_argument("--together", type=whole, default=64, metavar="N", help="samples written at once [default: 64]")
    text.add_argument(
        "--shard", type=whole, default=100_000, metavar="N", help="tokens that an interruption can cost [default: 100k]"
    )
    head = p.add_argument_group("learning")
    head.add_argument("--passes", type=at_least(0), default=2.0, metavar="N", help="times each token is learned [default: 2]")
    head.add_argument(
        "--draft-vocabulary", type=whole, default=8192, metavar="N", help="tokens the head can say [default: 8192]"
    )
    head.add_argument(
        "--head-layers",
        type=whole,
        default=1,
        metavar="N",
        help="decoder layers of the head: accepted more, and slower [default: 1]",
    )
    head.add_argument(
        "--form",
        choices=["eagle3", "block"],
        default="eagle3",
        help="eagle3: a pass for each token of a path; block: one for a whole block, however\nmany paths are drawn (DFlash) "
        "[default: eagle3]",
    )
    head.add_argument(
        "--unroll", type=whole, default=4, metavar="N", help="steps of a draft that are unrolled; tokens of a block [default: 4]"
    )
    head.add_argument("--begin-with", type=Path, metavar="HEAD", help="go on from a head of this shape, such as a published one")
    head.add_argument("--drafts", type=whole, default=1, metavar="K", help="drafts whose joint acceptance is taught [default: 1]")
    head.add_argument(
        "--likeness",
        type=at_least(0),
        default=0.6,
        metavar="PART",
        help="of the learning, before acceptance itself is taught [default: 0.6]",
    )
    head.add_argument("--rate", type=at_least(0), default=0.002, metavar="R", help="on the plateau [default: 0.002]")
    head.add_argument("--decay", type=at_least(1e-6), default=0.3, metavar="PART", help="over which it falls [default: 0.3]")
    head.add_argument("--batch", type=whole, default=8, metavar="N", help="samples in a step [default: 8]")
    head.add_argument("--check", type=whole, default=200_000, metavar="N", help="tokens between checks [default: 200k]")
    head.add_argument("--with-output", action="store_true", help="write the target's output rows with the head")
    machine = p.add_argument_group("machine")
    machine.add_argument("--threads", type=whole, default=os.cpu_count() or 1, metavar="N", help="[default: one per core]")
    machine.add_argument("--device", default="auto", metavar="NAME", help="cpu, cuda [default: a GPU if there is one]")
    machine.add_argument("--precision", choices=["auto", "bf16", "f32"], default="auto", help="of products [default: auto]")
    machine.add_argument("--json", action="store_true", help="one JSON object for each check, on standard output")
    return p
