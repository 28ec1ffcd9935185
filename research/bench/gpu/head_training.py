"""A GPU job: a small model writes 20 million tokens, from which heads of one and two layers learn.

    python research/bench/gpu/first_words.py WORK TOKENIZER.json WORDS.json
    python research/bench/gpu/head_training.py --model MODEL.gguf --words WORDS.json \\
        --out OUT --record RECORD.json [--small]

Writing comes first, in batches, by `small_model.py`; then the heads learn side by side from the
same batches, with the trainer of `polydraft.train`; the target's states are computed anew for each
batch. The rate follows the time that is left.
"""

import argparse
import dataclasses
import importlib
import json
import sys
import time
import types
import zlib
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

HERE = Path(__file__).resolve()
TRAIN = HERE.parents[3] / "bindings/python/python/polydraft"
# `polydraft.train` needs no compiled library here.
package = types.ModuleType("polydraft")
package.__path__ = [str(TRAIN)]
sys.modules["polydraft"] = package
attention = importlib.import_module("polydraft.train.attention")
learning = importlib.import_module("polydraft.train.learning")
text_format = importlib.import_module("polydraft.train.text")
export = importlib.import_module("polydraft.train.export").export
losses = importlib.import_module("polydraft.train.losses")

sys.path.insert(0, str(HERE.parent))
from small_model import Small, Writer  # noqa: E402

RUN, KEPT, SHORTEST = 12, 4, 64


class Said:
    """Runs of tokens that were said, as `polydraft-lessons` keeps them.

    More than half of a text must be new.
    """

    def __init__(self):
        self.runs = set()

    def is_new(self, tokens):
        if len(tokens) < SHORTEST:
            return False
        windows = np.lib.stride_tricks.sliding_window_view(tokens.astype(np.uint64), RUN)
        with np.errstate(over="ignore"):
            hashes = np.full(len(windows), 0xCBF29CE484222325, np.uint64)
            for i in range(RUN):
                hashes = (hashes ^ windows[:, i]) * np.uint64(0x100000001B3)
            hashes ^= hashes >> np.uint64(32)
        runs = hashes[hashes % np.uint64(KEPT) == 0].tolist()
        own = set(runs)
        old = len(runs) - len(own - self.runs)
        if 2 * old > len(runs):
            return False
        self.runs |= own
        return True


class Texts:
    """Texts on the device, in the place of the trainer's folder."""

    def __init__(self, model, held_out):
        self.small, self.model, self.device = model, model.about, model.device
        self.tokens_, self.taught, self.sums, self.lengths = [], [], [], []
        self.counts = np.zeros(model.about["tokens"], np.int64)
        self.kept = len(held_out)
        self.flat, self.summed = None, True
        for tokens, taught in held_out:
            self.add(tokens, taught, np.zeros(len(tokens)))

    def add(self, tokens, taught, sums):
        self.tokens_.append(tokens.astype(np.uint16))
        self.taught.append(taught.astype(bool))
        self.sums.append(sums.astype(np.float32))
        self.lengths.append(len(tokens))
        if len(self.lengths) > self.kept:
            self.counts += np.bincount(
                tokens[taught.astype(bool)].astype(np.int64), minlength=len(self.counts)
            )

    def settle(self):
        """All is written: to the device, and orders for learning."""
        self.samples = self.lengths
        device = self.device
        self.flat = [
            torch.from_numpy(np.concatenate(self.tokens_).astype(np.int32)).to(device),
            torch.from_numpy(np.concatenate(self.taught)).to(device),
            torch.from_numpy(np.concatenate(self.sums)).to(device),
        ]
        self.begins = torch.tensor(np.cumsum([0, *self.lengths])[:-1], device=device)
        self.long = torch.tensor(self.lengths, device=device)

    def tokens(self):
        return sum(self.lengths[self.kept :])

    def held_out(self):
        return list(range(self.kept))

    def matrix(self, name):
        names = {"embedding": "token_embd.weight", "norm": "output_norm.weight"}
        return self.small.weights[names[name]].float().cpu() if name in names else None

    frequent = text_format.Folder.frequent

    def epoch(self, size, seed):
        """Batches of texts of like length, in a random order."""
        rng = np.random.default_rng(seed)
        lengths = np.array(self.lengths[self.kept :])
        order = np.argsort(lengths + rng.random(len(lengths)) * 24) + self.kept
        batches = [order[i : i + size] for i in range(0, len(order) - size + 1, size)]
        rng.shuffle(batches)
        return batches

    def batch(self, texts, device, dtype):
        texts = torch.as_tensor(np.asarray(texts), device=device)
        long = self.long[texts]
        places = torch.arange(int(long.max()), device=device)
        within = places < long[:, None]
        index = (self.begins[texts][:, None] + places).clamp(max=len(self.flat[0]) - 1)
        tokens = self.flat[0][index].long().masked_fill(~within, 0)
        taught = self.flat[1][index] & within & (places >= 2)
        states, last = self.small.states(tokens)
        learned = taught.flatten().nonzero()[:, 0]
        log_sums = self.flat[2][index].flatten()[learned]
        if int(texts[0]) < self.kept or not self.summed:
            log_sums = self.small.log_sums(last.flatten(0, 1)[learned - 1])
        return text_format.Batch(tokens, states, last, learned, log_sums, int(long.sum()))


def attention_holds(device):
    """Checks that the flash form gives what scores written out give, and its gradients."""
    made = [
        torch.randn(2, 9, 77, 64, device=device, dtype=torch.bfloat16).requires_grad_()
        for _ in range(7)
    ]
    query, keys, values = made[0], made[1:4], made[4:7]
    by = torch.randn(2, 9, 77, 64, device=device, dtype=torch.bfloat16)
    worst = 0.0
    expected, found = (
        attention.materialized(query, keys, values),
        attention.Joined.apply(query, *keys, *values),
    )
    pairs = [(expected, found)]
    wanted = torch.autograd.grad((expected.float() * by).sum(), made)
    pairs += zip(wanted, torch.autograd.grad((found.float() * by).sum(), made))
    for want, got in pairs:
        worst = max(worst, ((want - got).abs().max() / want.abs().max()).item())
    return worst


def answered(tokens, answer, end):
    """Text of an answer, or without turns: after the words that begin an answer, until it ends."""
    if tokens[0] != answer[1]:
        return np.arange(len(tokens)) > 0
    taught = np.zeros(len(tokens), bool)
    windows = np.lib.stride_tricks.sliding_window_view(tokens, len(answer))
    for at in np.flatnonzero((windows == answer).all(1)):
        begin = at + len(answer)
        ends = np.flatnonzero(tokens[begin:] == end)
        taught[begin : begin + int(ends[0]) + 1 if len(ends) else len(tokens)] = True
    return taught


class Job:
    def __init__(self, args):
        self.args, self.begun = args, time.monotonic()
        cuda = torch.cuda.is_available()
        self.device = torch.device("cuda" if cuda else "cpu")
        self.dtype = torch.bfloat16 if cuda else torch.float32
        self.record = {
            "what": "head-training",
            "gpu": torch.cuda.get_device_name() if cuda else "none",
            "torch": torch.__version__,
            "command": " ".join(["research/bench/gpu/head_training.py", *sys.argv[1:]]),
            "curve": [],
        }
        self.words = json.loads(args.words.read_text())
        self.model = Small(args.model, self.words["model"], self.device, self.dtype)
        held, begin = [], 0
        tokens, taught = (np.array(self.words["held_out"][x]) for x in ("tokens", "taught"))
        for length in self.words["held_out"]["lengths"]:
            held.append((tokens[begin : begin + length], taught[begin : begin + length]))
            begin += length
        self.texts, self.said = Texts(self.model, held), Said()
        for tokens, _ in held:
            self.said.is_new(tokens)

    def clock(self):
        return time.monotonic() - self.begun

    def say(self, *words):
        print(f"[{self.clock():6.1f}]", *words, flush=True)

    def write(self):
        args = self.args
        writer = Writer(
            self.model,
            self.words["forced"],
            self.words["openings"],
            512,
            args.slots,
            args.wave,
            args.seed,
        )
        start, all_, drawn = self.clock(), 0, 0
        while self.texts.tokens() < args.tokens and self.clock() < start + args.write:
            begin = self.clock()
            for text in writer.wave():
                tokens = text[:, 0].astype(np.int64)
                all_ += 1
                drawn += len(tokens)
                if self.said.is_new(tokens):
                    self.texts.add(tokens, text[:, 1], text[:, 2])
            spent = self.clock() - begin
            speed = args.wave * args.slots / spent
            self.say(
                f"{self.texts.tokens():,} tokens in {len(self.texts.lengths):,} texts of"
                f" {all_:,}; {speed:,.0f} tokens/s"
            )
        wave = sum(map(len, self.texts.tokens_[-50:])) / 50
        self.record["writing"] = {
            "tokens": self.texts.tokens(),
            "drawn": drawn,
            "texts": len(self.texts.lengths),
            "drawn_texts": all_,
            "seconds": self.clock() - start,
            "slots": args.slots,
            "mean_length": wave,
        }
        del writer
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self.texts.settle()
        for size in (2048, 4096, 8192, 16384):
            self.record["writing"][f"said_by_{size}"] = self.texts.frequent(size)[1]
        self.say(self.record["writing"])

    def read(self):
        """Reads what an earlier run wrote. Which tokens are taught is seen from the turns again."""
        forced = self.words["forced"]
        answer, end = forced["rows"][forced["answer"]], forced["ends"][-1]
        for path in self.args.text:
            raw = np.frombuffer(zlib.decompress(path.read_bytes()), np.uint8).reshape(2, -1)
            numbers, at = raw.T.copy().view(np.uint16).ravel(), 0
            while at < len(numbers):
                length = int(numbers[at])
                tokens = numbers[at + 1 : at + 1 + length].astype(np.int64)
                at += 1 + length
                self.texts.add(tokens, answered(tokens, answer, end), np.zeros(len(tokens)))
        self.texts.summed = False
        self.texts.settle()
        self.say(f"{self.texts.tokens():,} tokens in {len(self.texts.lengths):,} texts")

    def learners(self):
        plan = learning.Plan(
            1e12,
            vocabulary=self.args.vocabulary,
            batch=self.args.batch,
            rate=self.args.rate,
            likeness=self.args.likeness,
            decay=self.args.decay,
        )
        found = {}
        for layers in self.args.layers:
            own = dataclasses.replace(plan, layers=layers)
            found[layers] = learning.Learner(self.texts, own, self.device, self.dtype)
            if self.args.begin_with is not None:
                self.take(found[layers], self.args.begin_with)
        return found

    @staticmethod
    def take(learner, head):
        """The weights of a head, and what it says."""
        stored = load_file(head / "model.safetensors")
        for name, weight in learner.head.named().items():
            weight.data.copy_(stored[name])
        learner.set_vocabulary(stored["d2t"] + torch.arange(len(stored["d2t"])))

    def check(self, learners):
        point = {"seconds": round(self.clock(), 1)}
        for layers, learner in learners.items():
            learner.plan = dataclasses.replace(learner.plan, pass_samples=16)
            means = learner.check().means()
            point |= {
                "tokens": learner.tokens,
                "steps": learner.steps,
                "rate": learner.rate(),
                "loss": learner.stage(),
            }
            point[f"layers_{layers}"] = {
                name: [round(x, 4) for x in values] for name, values in means.items()
            }
        self.record["curve"].append(point)
        self.say(json.dumps(point))
        self.save(learners)

    def judge_old(self, learners):
        """The head that was shipped before, on the same held-out samples."""
        learner = learning.Learner(
            self.texts, learning.Plan(1.0, pass_samples=16), self.device, self.dtype
        )
        self.take(learner, self.args.old)
        self.record["old"] = {
            name: [round(x, 4) for x in v] for name, v in learner.check().means().items()
        }
        self.say("the old head", self.record["old"])

    def learn(self):
        learners = self.learners()
        if self.args.old is not None:
            self.judge_old(learners)
        end = self.args.minutes * 60
        start, checked, seed = self.clock(), self.clock(), 0
        while self.clock() < end:
            for ids in self.texts.epoch(self.args.batch, seed):
                batch = self.texts.batch(ids, self.device, self.dtype)
                for learner in learners.values():
                    learner.accumulate(batch, learner.loss())
                    learner.update(len(batch.taught), batch.count)
                if learner.steps % 10 == 0:
                    # The clock is the GPU's: the host runs ahead.
                    batch.log_sums.sum().item()
                    speed = learner.tokens / (self.clock() - start)
                    planned = learner.tokens + max(speed * (end - self.clock()), 1)
                    for each in learners.values():
                        each.plan = dataclasses.replace(each.plan, tokens=planned)
                if self.clock() > checked + self.args.check:
                    self.say(
                        f"epoch {seed}, {learner.tokens / (self.clock() - start):,.0f} tokens/s"
                    )
                    self.check(learners)
                    checked = self.clock()
                if self.clock() >= end:
                    break
            seed += 1
        self.record["learning"] = {
            "seconds": self.clock() - start,
            "tokens": learner.tokens,
            "passes": seed,
            "batch": self.args.batch,
        }
        if self.device.type == "cuda":
            self.record["memory_gib"] = torch.cuda.max_memory_allocated() / 2**30
        self.check(learners)

    def save(self, learners):
        """Files of at most 16 MiB."""
        out = self.args.out
        for layers, learner in learners.items():
            tokens, covered = learner.folder.frequent(learner.plan.vocabulary)
            self.record["covered"] = covered
            folder = Path("/tmp/heads") / str(layers)
            export(learner.head, tokens, None, self.texts.model, folder)
            data = (folder / "model.safetensors").read_bytes()
            size = 15 << 20
            for i in range(0, len(data), size):
                (out / f"head-{layers}-{i // size}.bin").write_bytes(data[i : i + size])
            self.record[f"config_{layers}"] = json.loads((folder / "config.json").read_text())
        self.args.record.write_text(json.dumps(self.record, indent=1) + "\n")

    def keep_text(self):
        """Text that was written, compressed: a length, then the tokens, 16 bits each."""
        texts = self.texts
        parts = np.array_split(np.arange(texts.kept, len(texts.lengths)), 3)
        for i, part in enumerate(parts):
            numbers = np.concatenate(
                [np.concatenate([[len(texts.tokens_[j])], texts.tokens_[j]]) for j in part]
            ).astype(np.uint16)
            raw = numbers.view(np.uint8).reshape(-1, 2).T.tobytes()
            packed = zlib.compress(raw, 6)
            self.say("text", i, len(raw), len(packed))
            if len(packed) < 15 << 20:
                (self.args.out / f"text-{i}.bin").write_bytes(packed)


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--model", type=Path, required=True)
    p.add_argument("--words", type=Path, required=True, help="what first_words.py wrote")
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--record", type=Path, required=True)
    p.add_argument("--old", type=Path, help="a head to judge beside")
    p.add_argument("--begin-with", type=Path, help="a head to go on from")
    p.add_argument(
        "--text", type=Path, nargs="+", help="what an earlier run wrote, in place of writing"
    )
    p.add_argument("--likeness", type=float, default=0.5)
    p.add_argument("--decay", type=float, default=0.3)
    p.add_argument("--minutes", type=float, default=7.0, help="writing and learning")
    p.add_argument("--write", type=float, default=170.0, help="seconds of writing at most")
    p.add_argument("--tokens", type=float, default=20e6)
    p.add_argument("--slots", type=int, default=1024)
    p.add_argument("--wave", type=int, default=256)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--rate", type=float, default=0.002)
    p.add_argument("--check", type=float, default=20.0)
    p.add_argument("--vocabulary", type=int, default=8192)
    p.add_argument("--layers", type=int, nargs="+", default=[1, 2])
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--small", action="store_true", help="a trial on a CPU")
    args = p.parse_args()
    if args.small:
        args.slots, args.wave, args.batch, args.write, args.minutes, args.check = (
            16,
            120,
            4,
            40,
            2.5,
            20,
        )
    args.out.mkdir(parents=True, exist_ok=True)
    job = Job(args)
    job.say(job.record["gpu"], "model ready")
    if job.device.type == "cuda":
        try:
            worst = attention_holds(job.device)
        except Exception as problem:  # noqa: BLE001
            worst = str(problem)
        job.say("flash attention's distance from scores written out", worst)
        if not isinstance(worst, float) or worst > 0.05:
            attention.HALF = ()
        job.record["attention_error"] = worst
    if args.text:
        job.read()
    else:
        job.write()
    try:
        job.learn()
    finally:
        job.args.record.write_text(json.dumps(job.record, indent=1) + "\n")
        if not args.text:
            job.keep_text()


if __name__ == "__main__":
    main()
