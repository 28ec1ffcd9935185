"""The command line of `python -m polydraft.train`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

ABOUT = """\
Trains a draft head (EAGLE-3 or DFlash) for your model.

The model generates its own training samples with polydraft's engine (both sides of conversations in its chat template, code,
prose, lists) and their hidden states; a head is trained on them with PyTorch. First the command measures pass costs on this
machine and prints a table of the speedup by acceptance; progress messages estimate the remaining time. Intermediate files are
in the work folder. The same command resumes a stopped run, and larger --tokens or --passes extend it. The head in --out is
that of the last check, so it can be tried during training:

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
    """Parses a number such as 300000, 300k or 20M."""
    factor = {"k": 1_000, "M": 1_000_000}.get(text[-1:], 1)
    return round(float(text[:-1] if factor > 1 else text) * factor)


def several(kind: Callable[[str], float]) -> Callable[[str], list[float]]:
    def read(text: str) -> list[float]:
        return [kind(part) for part in text.split(",")]

    read.__name__ = "list of numbers"
    return read


def positive(text: str) -> int:
    return at_least(1, count)(text)  # type: ignore[return-value]


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser("python -m polydraft.train", description=ABOUT, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--target", type=Path, metavar="MODEL", help="the model: a directory or a GGUF file")
    p.add_argument("--out", type=Path, metavar="DIR", required=True, help="output folder of the head")
    p.add_argument("--work", type=Path, metavar="DIR", help="folder of samples and checkpoints [default: work in --out]")
    p.add_argument(
        "--only",
        choices=["estimate", "write", "learn", "export"],
        help="run one part: write on one machine, learn on another\n(learn and export need no --target)",
    )
    samples = p.add_argument_group("samples")
    samples.add_argument("--tokens", type=positive, metavar="N", help="tokens to generate [default: 20M; all with --only learn]")
    samples.add_argument("--text", type=Path, nargs="+", default=[], metavar="FILE", help="train on these files instead")
    samples.add_argument("--dtype", metavar="TYPE", help="weight type of the target, as for inference")
    layers, temperatures = several(int), several(at_least(0))
    samples.add_argument(
        "--layers", type=layers, metavar="2,15,27", help="target layers that the head reads [default: 2, L/2, L-3]"
    )
    samples.add_argument(
        "--temperatures", type=temperatures, default="0.7,1", metavar="T,..",
        help="each sample uses one of these [default: 0.7,1]"
    )
    samples.add_argument("--longest", type=positive, default=512, metavar="N", help="maximum tokens of a sample [default: 512]")
    samples.add_argument("--together", type=positive, default=64, metavar="N", help="samples generated in parallel [default: 64]")
    samples.add_argument(
        "--shard", type=positive, default=100_000, metavar="N",
        help="tokens of a file, the most an interruption loses [default: 100k]"
    )
    head = p.add_argument_group("training")
    head.add_argument("--passes", type=at_least(0), default=2.0, metavar="N", help="times each token is used [default: 2]")
    head.add_argument(
        "--draft-vocabulary", type=positive, default=8192, metavar="N", help="vocabulary of the head [default: 8192]"
    )
    head.add_argument(
        "--head-layers",
        type=positive,
        default=1,
        metavar="N",
        help="decoder layers of the head [default: 1]",
    )
    head.add_argument(
        "--form",
        choices=["eagle3", "block"],
        default="eagle3",
        help="eagle3: one pass for each token of a path; block: one pass for all tokens of\nall paths (DFlash) "
        "[default: eagle3]",
    )
    head.add_argument(
        "--unroll", type=positive, default=4, metavar="N", help="unrolled draft steps, or tokens of a block [default: 4]"
    )
    head.add_argument("--begin-with", type=Path, metavar="HEAD", help="start from an existing head of the same shape")
    head.add_argument(
        "--drafts", type=positive, default=1, metavar="K", help="number of drafts whose acceptance is maximized [default: 1]"
    )
    head.add_argument(
        "--likeness",
        type=at_least(0),
        default=0.6,
        metavar="PART",
        help="fraction of the training with the likeness loss [default: 0.6]",
    )
    head.add_argument(
        "--rate", type=at_least(0), default=0.002, metavar="R", help="learning rate on the plateau [default: 0.002]"
    )
    head.add_argument(
        "--decay", type=at_least(1e-6), default=0.3, metavar="PART", help="fraction with a decaying rate [default: 0.3]"
    )
    head.add_argument("--batch", type=positive, default=8, metavar="N", help="samples in a step [default: 8]")
    head.add_argument("--check", type=positive, default=200_000, metavar="N", help="tokens between checks [default: 200k]")
    head.add_argument("--with-output", action="store_true", help="include the target's output rows in the head")
    machine = p.add_argument_group("machine")
    machine.add_argument("--threads", type=positive, default=os.cpu_count() or 1, metavar="N", help="[default: one per core]")
    machine.add_argument("--device", default="auto", metavar="NAME", help="cpu, cuda [default: a GPU if there is one]")
    machine.add_argument(
        "--precision", choices=["auto", "bf16", "f32"], default="auto", help="precision of matrix products [default: auto]"
    )
    machine.add_argument("--json", action="store_true", help="print a JSON object for each check on standard output")
    return p
