"""The training run: estimate, samples, training, export. Each part resumes from an earlier run."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file

from . import device, estimate
from .export import export
from .forms import new
from .head import Learned
from .learning import Learner, Plan
from .losses import Figures
from .text import Folder
from .writing import Order, Writer

# Number of shards before training begins; the first contains the validation samples.
FIRST = 2
# Default number of tokens to generate: a hundredth of the training data of published heads.
TOKENS = 20_000_000


class Refused(Exception):
    """User error, with advice."""


def run(args: argparse.Namespace) -> int:
    """Runs the command and returns its exit code."""
    device.keep_memory()
    work: Path = args.work or args.out / "work"
    if args.target is None and args.only not in ("learn", "export"):
        raise Refused("--target: expected the model to draft for")
    writer = None
    try:
        if args.only not in ("learn", "export"):
            share(args.threads, args.only)
            order = order_of(args, work)
            if args.only == "estimate" or (args.only is None and not (work / "estimate.json").exists()):
                # This writer only describes the target, so that nothing else runs during the measurement.
                describe = Writer(order)
                describe.stopped = True
                describe.run()
                failed(describe)
                print_estimate(args, work)
            if args.only == "estimate":
                return 0
            writer = Writer(order)
            writer.start()
        if args.only == "write":
            return write(writer)
        wait(work, writer)
        return learn(args, work, writer)
    except KeyboardInterrupt:
        print("\nstopped: run the same command to continue", file=sys.stderr)
        return 130
    finally:
        if writer is not None:
            writer.stop()


def order_of(args: argparse.Namespace, work: Path) -> Order:
    size = (args.shard, args.together, args.longest)
    return Order(args.target, work, tokens(args), args.dtype, args.layers, *size, args.temperatures, args.text)


def tokens(args: argparse.Namespace) -> int:
    """Returns the number of tokens to generate."""
    return args.tokens if args.tokens is not None else TOKENS


def share(threads: int, only: str | None) -> None:
    """Splits the cores between generation and training."""
    from polydraft import use_threads

    use_threads(threads if only else max(threads // 2, 1))


def write(writer: Writer | None) -> int:
    assert writer is not None
    start, begun = time.monotonic(), None
    while writer.is_alive():
        writer.join(5)
        now = writer.stored + writer.open
        begun = now if begun is None else begun
        speed = (now - begun) / (time.monotonic() - start)
        left = (writer.order.tokens - now) / speed / 3600 if speed > 0 else float("nan")
        print(f"{now:,} tokens generated, {speed:.0f}/s, {left:.1f} hours left", file=sys.stderr)
    failed(writer)
    return 0


def failed(writer: Writer | None) -> None:
    if writer is not None and writer.problem is not None:
        raise Refused(str(writer.problem)) from writer.problem


def wait(work: Path, writer: Writer | None) -> None:
    """Waits until there are enough samples to begin training, or no more will follow."""
    while not (work / f"shard-{FIRST - 1:04}.safetensors").exists():
        failed(writer)
        if writer is None or not writer.is_alive():
            failed(writer)
            if (work / "shard-0000.safetensors").exists():
                return
            raise Refused(f"{work}: expected samples, found none; first run without --only or with --only write")
        writer.join(0.2)


def print_estimate(args: argparse.Namespace, work: Path) -> None:
    model = json.loads((work / "model.json").read_text())
    tokens = torch.arange(min(args.draft_vocabulary, model["tokens"]))
    with tempfile.TemporaryDirectory() as folder:
        head = new(args.form, model, args.head_layers, args.unroll, torch.float32, None, None)
        export(head, tokens, None, model, Path(folder))
        try:
            costs = estimate.measure(args.target, Path(folder), args.dtype, None)
        except RuntimeError as problem:
            print(f"no estimate: {problem}", file=sys.stderr)
            return
    print(estimate.table(costs), file=sys.stderr)
    (work / "estimate.json").write_text(json.dumps({"target": costs.target, "head": costs.head, "first": costs.first}) + "\n")


def learn(args: argparse.Namespace, work: Path, writer: Writer | None) -> int:
    torch.set_num_threads(args.threads if writer is None else max(args.threads - args.threads // 2, 1))
    where = device.device(args.device)
    folder = Folder(work)
    if len(folder.samples) <= len(folder.held_out()):
        raise Refused(f"{work}: all of its {len(folder.samples)} samples are used for validation; generate more")
    planned = max(0 if args.text or (writer is None and args.tokens is None) else tokens(args), folder.tokens()) * args.passes
    plan = Plan(
        planned, args.draft_vocabulary, args.unroll, args.drafts, args.likeness, args.rate, args.decay, args.batch,
        layers=args.head_layers, form=args.form,
    )
    learner = Learner(folder, plan, where, device.dtype(args.precision, where))
    checkpoint = work / "checkpoint.pt"
    if checkpoint.exists():
        resume(learner, checkpoint)
    elif args.begin_with is not None:
        begin_with(learner.head, args.begin_with)
    elif args.only == "export":
        raise Refused(f"{work}: expected a checkpoint from training, found none")
    if args.only != "export":
        learning(args, work, writer, learner)
    finish(args, learner)
    return 0


def resume(learner: Learner, checkpoint: Path) -> None:
    try:
        learner.load(checkpoint)
    except RuntimeError as problem:
        plan = learner.plan
        expected = f"{checkpoint}: expected a head of the form {plan.form} and {plan.layers} decoder layers"
        raise Refused(f"{expected}; use the --form and --head-layers of the first run, or another --work") from problem


def begin_with(head: Learned, folder: Path) -> None:
    """Copies the weights of an existing head."""
    stored = load_file(folder / "model.safetensors")
    for name, weight in head.named().items():
        found = stored.get(name)
        if found is None or found.shape != weight.shape:
            shape = None if found is None else list(found.shape)
            expected = f"{folder}: {name}: expected the shape {list(weight.shape)}, got {shape}"
            raise Refused(f"{expected}; it depends on --form, --layers, --head-layers and the target")
        weight.data.copy_(found)


def finish(args: argparse.Namespace, learner: Learner) -> None:
    tokens, covered = learner.folder.frequent(learner.plan.vocabulary)
    rows = learner.output.matrix if args.with_output else None
    export(learner.head, tokens, rows, learner.folder.model, args.out)
    share = f"{100 * covered:.1f} % of the generated tokens"
    print(f"{args.out}: a head with a vocabulary of {len(tokens)} tokens, {share}", file=sys.stderr)


def learning(args: argparse.Namespace, work: Path, writer: Writer | None, learner: Learner) -> None:
    plan, folder = learner.plan, learner.folder
    costs = None
    if (work / "estimate.json").exists():
        stored = json.loads((work / "estimate.json").read_text())
        costs = estimate.Costs(tuple(stored["target"]), stored["head"], stored.get("first", 0.0))
    checked, start, begun = learner.tokens // args.check, time.monotonic(), learner.tokens
    try:
        while learner.tokens < plan.tokens:
            failed(writer)
            if learner.tokens >= args.passes * folder.tokens():
                # All available samples were used often enough.
                folder.refresh()
                if learner.tokens >= args.passes * folder.tokens():
                    if writer is not None and not writer.is_alive():
                        break
                    # Without a writer here, another process is generating the remaining samples.
                    time.sleep(1)
                continue
            learner.step()
            if learner.tokens // args.check > checked:
                checked = learner.tokens // args.check
                folder.refresh()
                learner.set_vocabulary(folder.frequent(plan.vocabulary)[0])
                learner.save(work / "checkpoint.pt")
                speed = (learner.tokens - begun) / (time.monotonic() - start)
                check(args, work, learner, speed, costs)
                finish(args, learner)
        check(args, work, learner, (learner.tokens - begun) / max(time.monotonic() - start, 1e-9), costs)
    finally:
        learner.save(work / "checkpoint.pt")


def check(args: argparse.Namespace, work: Path, learner: Learner, speed: float, costs: estimate.Costs | None) -> None:
    """Validates the head and appends a point to the learning curve in `curve.jsonl`."""
    figures: Figures = learner.check()
    means = figures.means()
    point = {
        "tokens": learner.tokens,
        "steps": learner.steps,
        "written": learner.folder.tokens(),
        "per_second": round(speed, 1),
        "rate": learner.rate(),
        "loss": learner.stage(),
        **{name: [round(x, 4) for x in values] for name, values in means.items()},
    }
    with open(work / "curve.jsonl", "a") as curve:
        curve.write(json.dumps(point) + "\n")
    if args.json:
        print(json.dumps(point), flush=True)
    left = max(learner.plan.tokens - learner.tokens, 0) / max(speed, 1e-9) / 3600
    shown = " ".join(f"{x:.3f}" for x in means["acceptance"]), " ".join(f"{x:.3f}" for x in means["greedy"])
    gain = f"; estimated {costs.gain(means['acceptance'])[0]:.2f} times plain decoding" if costs else ""
    print(
        f"{learner.tokens:,} of {learner.plan.tokens:,.0f} tokens trained, {learner.folder.tokens():,} generated, {speed:.0f}/s, "
        f"{left:.1f} hours left; validation: accepted at T = 1 {shown[0]}, at T = 0 {shown[1]}{gain}",
        file=sys.stderr,
        flush=True,
    )
