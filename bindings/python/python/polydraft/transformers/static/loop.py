"""Runs steps for a batch of prompts and reads what they emit, in the place of transformers' own loop.

On CUDA the first two steps run as they are, for libraries to settle, and the third is captured: from then on a step is one launch
by the host. Where a model cannot be captured (it asks the host what it computed, as some experts' routing does) all steps run as
they are. When a sequence outgrows the slots there is more room, and a new graph.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from .eagle import EagleHead
from .head_drafter import HeadDrafter
from .heads import DraftHead
from .model import StaticModel
from .model_drafter import ModelDrafter
from .mtp import MTP, MtpHead, is_mtp
from .step import Form, Step

# Slots come in so many at once; attention reads all of them.
ROOM = 1024
# Uniforms are made for so many steps at once.
STEPS = 64


@dataclass
class Decoding:
    """What was written, and what it took.

    Attributes:
        texts: the prompts with what follows them.
        passes: target passes, of the whole batch.
        calls: target passes counted by sequence.
        accepted: drafted tokens that were accepted, of all sequences.
        captured: whether steps ran as a CUDA graph.
    """

    token_lists: list[list[int]]
    passes: int = 0
    calls: int = 0
    accepted: int = 0
    captured: bool = False


class Replayed:
    """A step that becomes a CUDA graph once it has run twice."""

    def __init__(self, run: Callable[[], None], device: torch.device) -> None:
        self.run, self.device = run, device
        self.left = 2
        self.graph: torch.cuda.CUDAGraph | None = None
        self.can = device.type == "cuda"

    def again(self) -> None:
        """Buffers have other places: the graph is of no use any more."""
        self.graph, self.left = None, 2

    def __call__(self) -> None:
        if self.graph is None and self.can and self.left == 0:
            self.capture()
        if self.graph is not None:
            self.graph.replay()
            return
        self.left = max(self.left - 1, 0)
        if not self.can:
            self.run()
            return
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            self.run()
        torch.cuda.current_stream(self.device).wait_stream(stream)

    def capture(self) -> None:
        """Nothing is computed here: the graph's first replay does the step."""
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self.run()
            self.graph = graph
        except Exception as error:  # noqa: BLE001 what a model does under capture is its own affair
            self.can = False
            torch.cuda.synchronize(self.device)
            message = f"polydraft: this model cannot be captured in a CUDA graph, its steps run one launch at a time: {error}"
            warnings.warn(message.splitlines()[0], stacklevel=2)


class Kept:
    """The last loop of a model, with its buffers and its graph, for the next call that asks the same of it.

    It lies with the model, whose copies and files have none.
    """

    def __init__(self) -> None:
        self.key: Any = None
        self.loop: Loop | None = None
        self.head_key: Any = None
        self.head: DraftHead | None = None

    @staticmethod
    def of(model: PreTrainedModel) -> Kept:
        """What is kept with a model."""
        return model.__dict__.setdefault("_polydraft", Kept())

    def __deepcopy__(self, memo: Any) -> Kept:
        return Kept()

    def __reduce__(self) -> tuple[type[Kept], tuple[()]]:
        return Kept, ()


def decode(
    model: PreTrainedModel,
    drafting: PreTrainedModel | DraftHead,
    form: Form,
    prompts: Sequence[Sequence[int]],
    seeds: Sequence[int],
    is_done: Callable[[int, list[int]], bool],
) -> Decoding:
    """Continues prompts until `is_done(row, text)`, which is asked after each token of each row.

    Raises:
        ValueError: logits that are no distribution.
    """
    kept = Kept.of(model)
    models = (model, drafting)
    key = (form.key(), len(prompts), id(drafting), *map(_places, models), *map(_switches, models))
    if kept.key != key:
        kept.key = kept.loop = None
        kept.loop = Loop(model, drafting, form, len(prompts))
        kept.key = key
    loop = kept.loop
    assert loop is not None
    try:
        with loop.step.target.reading():
            return loop.run([list(prompt) for prompt in prompts], seeds, is_done)
    except BaseException:
        # Whatever state it is in, nobody else should find it.
        kept.key = kept.loop = None
        raise


def release(model: PreTrainedModel) -> None:
    """Forgets a model's KV cache, buffers, CUDA graph and draft head, which are kept for its next call."""
    model.__dict__.pop("_polydraft", None)


def head_of(draft: Any, model: PreTrainedModel) -> DraftHead:
    """The head in a folder, or with `mtp` the model's own layer for predicting several tokens; read once for a model.

    Raises:
        ValueError: no head, or one for another model.
    """
    kept = Kept.of(model)
    file = None if is_mtp(draft) or draft == MTP else Path(draft) / "model.safetensors"
    changed = file.stat().st_mtime_ns if file is not None and file.exists() else None
    name = id(draft) if is_mtp(draft) else str(draft)
    key = (name, changed, model.dtype, model.device, _places(model))
    if kept.head is None or kept.head_key != key:
        if is_mtp(draft):
            kept.head = MtpHead(draft, model)
        else:
            kept.head = EagleHead(Path(draft), model) if file is not None else MtpHead.of(model)
        kept.head_key = key
    return kept.head


def _places(drafting: PreTrainedModel | DraftHead) -> tuple[int, ...]:
    """Where the weights are: a graph reads them there."""
    if isinstance(drafting, DraftHead):
        return drafting.places()
    return tuple(weight.data_ptr() for weight in drafting.parameters())


def _switches(drafting: PreTrainedModel | DraftHead) -> int:
    """What its modules are set to, adapters that are on or off among it: a graph repeats what it saw when it was captured."""
    if isinstance(drafting, DraftHead):
        return 0
    found: list[Any] = [getattr(drafting.config, "_attn_implementation", None)]
    for module in drafting.modules():
        for name, value in vars(module).items():
            if value is None or isinstance(value, (bool, int, float, str)):
                found.append((name, value))
            elif isinstance(value, (list, tuple)):
                found.append((name, tuple(map(str, value))))
        found += [len(module._forward_hooks), len(module._forward_pre_hooks)]
    return hash(tuple(found))


class Loop:
    """The host's side of batches of one size."""

    def __init__(self, model: PreTrainedModel, drafting: PreTrainedModel | DraftHead, form: Form, batch: int) -> None:
        target = StaticModel(model, batch, drafting.reads if isinstance(drafting, DraftHead) else ())
        if isinstance(drafting, DraftHead):
            drafter: HeadDrafter | ModelDrafter = HeadDrafter(drafting, target, batch, form.paths, form.length)
        else:
            drafter = ModelDrafter(drafting, batch, form.paths, form.length)
        vocabulary = model.config.get_text_config(decoder=True).vocab_size
        self.step = Step(form, target, drafter, batch, vocabulary)
        self.device = target.device
        self.replayed = Replayed(self.step.run, self.device)
        self.size = 0

    def run(
        self, token_lists: list[list[int]], seeds: Sequence[int], is_done: Callable[[int, list[int]], bool]
    ) -> Decoding:  # fmt: skip
        """Continues the texts, which are changed."""
        step, self.out = self.step, Decoding(token_lists)
        self.generators = [torch.Generator(self.device).manual_seed(seed) for seed in seeds]
        self.alive = [True] * len(token_lists)
        self.contexts = [len(text) - 1 for text in token_lists]
        step.alive.fill_(1)
        self.fit()
        self.prefill()
        pinned = torch.zeros(step.packed.shape, dtype=torch.long, pin_memory=self.device.type == "cuda")
        while any(self.alive):
            self.fit()
            self.uniforms()
            self.replayed()
            pinned.copy_(step.packed)
            self.out.passes += 1
            changed = False
            for row, packed in enumerate(pinned.tolist()):
                if not self.alive[row]:
                    continue
                *tokens, kept, status = packed
                if status:
                    raise ValueError("polydraft: a row of logits is no distribution (NaN, infinite, or nothing but -inf)")
                self.out.calls += 1
                self.out.accepted += kept
                self.contexts[row] += kept + 1
                for token in tokens[: kept + 1]:
                    token_lists[row].append(token)
                    if is_done(row, token_lists[row]):
                        self.alive[row], changed = False, True
                        break
            if changed:
                step.alive.copy_(torch.tensor(self.alive, dtype=torch.long))
        self.out.captured = self.replayed.graph is not None
        return self.out

    def prefill(self) -> None:
        """The prompts but for their last tokens."""
        step, token_lists = self.step, self.out.token_lists
        longest = max(map(len, token_lists))
        device = self.device
        padded = torch.tensor([text + [0] * (longest - len(text)) for text in token_lists], device=device)
        step.context.copy_(torch.tensor(self.contexts))
        before = [text[max(len(text) - 2, 0)] for text in token_lists]
        step.last.copy_(torch.tensor([[one, text[-1]] for one, text in zip(before, token_lists)]))
        drafter = step.drafter
        if isinstance(drafter, ModelDrafter):
            for tokens, static in ((padded[:, :-1], step.target), (padded[:, :-1], drafter.static)):
                for _ in static.pieces(tokens):
                    pass
            return
        drafter.tokens[:, 0] = step.last[:, 1]
        drafter.count.fill_(1)
        for start, piece in step.target.pieces(padded[:, :-1]):
            features = step.target.features
            assert features is not None
            many = piece.shape[1]
            drafter.prefill(padded[:, start + 1 : start + 1 + many], start, features)
            for row, context in enumerate(self.contexts):
                # The last place before the root is the one that the first step takes.
                if start < context <= start + many:
                    drafter.states[row, 0] = features[row, context - 1 - start]

    def fit(self) -> None:
        """Slots for the longest sequence, and the tree after it."""
        step = self.step
        paths, length = step.form.paths, step.form.length
        needed = max(self.contexts) + max(1 + paths * length, step.drafter.room) + 1
        if needed <= self.size:
            return
        self.size = -(-needed // ROOM) * ROOM
        step.target.cache.resize(self.size, self.device)
        step.drafter.resize(self.size)
        self.replayed.again()

    def uniforms(self) -> None:
        """Each sequence has its own, whatever is decoded beside it."""
        at = self.out.passes % STEPS
        if at == 0:
            own = self.step.uniforms
            made = [
                torch.rand(STEPS, own.shape[1], generator=generator, dtype=own.dtype, device=self.device)
                for generator in self.generators
            ]
            self.made = torch.stack(made, 1)
        self.step.uniforms.copy_(self.made[at])
