"""Decoding loop that runs steps for a batch of prompts and reads the emitted tokens, in place of transformers' own loop.

On CUDA the first two steps run eagerly, as a warm-up for libraries, and the third is captured: from then on the host launches one
graph for each step. If a model cannot be captured (because it synchronizes with the host, as the routing of some experts does),
all steps run eagerly. When a sequence outgrows the slots, the cache grows and a new graph is captured.
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

# Increment of the number of slots; attention reads all slots.
SLOT_INCREMENT = 1024
# Number of steps for which uniforms are generated at once.
STEPS = 64


@dataclass
class Decoding:
    """Decoded sequences and statistics.

    Attributes:
        sequences: the prompts followed by the output.
        passes: target passes over the batch.
        calls: target passes counted by sequence.
        accepted: drafted tokens that were accepted, of all sequences.
        captured: whether steps ran as a CUDA graph.
    """

    sequences: list[list[int]]
    passes: int = 0
    calls: int = 0
    accepted: int = 0
    captured: bool = False


class Replayed:
    """A step that is captured in a CUDA graph after two eager runs."""

    def __init__(self, run: Callable[[], None], device: torch.device) -> None:
        self.run, self.device = run, device
        self.left = 2
        self.graph: torch.cuda.CUDAGraph | None = None
        self.can = device.type == "cuda"

    def reset(self) -> None:
        """Discards the graph, after buffers have moved."""
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
        """Captures the step. Computes nothing: the graph's first replay executes the step."""
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self.run()
            self.graph = graph
        except Exception as error:  # noqa: BLE001 a model can fail in any way under capture
            self.can = False
            torch.cuda.synchronize(self.device)
            message = f"polydraft: cannot capture this model in a CUDA graph, steps run eagerly: {error}"
            warnings.warn(message.splitlines()[0], stacklevel=2)


class LoopCache:
    """Cache of a model's last loop, with its buffers and graph, and of its draft head, for the next call with the same settings.

    Stored in an attribute of the model; copies and pickles of the model get an empty cache.
    """

    def __init__(self) -> None:
        self.key: Any = None
        self.loop: Loop | None = None
        self.head_key: Any = None
        self.head: DraftHead | None = None

    @staticmethod
    def from_model(model: PreTrainedModel) -> LoopCache:
        """Returns the cache of a model, created on first use."""
        return model.__dict__.setdefault("_polydraft", LoopCache())

    def __deepcopy__(self, memo: Any) -> LoopCache:
        return LoopCache()

    def __reduce__(self) -> tuple[type[LoopCache], tuple[()]]:
        return LoopCache, ()


def decode(
    model: PreTrainedModel,
    drafting: PreTrainedModel | DraftHead,
    form: Form,
    prompts: Sequence[Sequence[int]],
    seeds: Sequence[int],
    is_done: Callable[[int, list[int]], bool],
) -> Decoding:
    """Continues prompts until `is_done(row, tokens)`, called after each token of each row, returns True.

    Raises:
        ValueError: logits that define no distribution.
    """
    cache = LoopCache.from_model(model)
    models = (model, drafting)
    key = (form.key(), len(prompts), id(drafting), *map(_weight_addresses, models), *map(_settings_hash, models))
    if cache.key != key:
        cache.key = cache.loop = None
        cache.loop = Loop(model, drafting, form, len(prompts))
        cache.key = key
    loop = cache.loop
    assert loop is not None
    try:
        with loop.step.target.reading():
            return loop.run([list(prompt) for prompt in prompts], seeds, is_done)
    except BaseException:
        # The loop's state is undefined after an error, so it is not reused.
        cache.key = cache.loop = None
        raise


def release(model: PreTrainedModel) -> None:
    """Frees a model's KV cache, buffers, CUDA graph and draft head, which are otherwise cached for its next call."""
    model.__dict__.pop("_polydraft", None)


def head_of(draft: Any, model: PreTrainedModel) -> DraftHead:
    """Returns the draft head in a folder, or for `mtp` the model's own MTP layer; read once and cached with the model.

    Raises:
        ValueError: no draft head, or one for another model.
    """
    cache = LoopCache.from_model(model)
    file = None if is_mtp(draft) or draft == MTP else Path(draft) / "model.safetensors"
    changed = file.stat().st_mtime_ns if file is not None and file.exists() else None
    name = id(draft) if is_mtp(draft) else str(draft)
    key = (name, changed, model.dtype, model.device, _weight_addresses(model))
    if cache.head is None or cache.head_key != key:
        if is_mtp(draft):
            cache.head = MtpHead(draft, model)
        else:
            cache.head = EagleHead(Path(draft), model) if file is not None else MtpHead.from_model(model)
        cache.head_key = key
    return cache.head


def _weight_addresses(drafting: PreTrainedModel | DraftHead) -> tuple[int, ...]:
    """Returns the addresses of the weights, which a graph contains."""
    if isinstance(drafting, DraftHead):
        return drafting.weight_addresses()
    return tuple(weight.data_ptr() for weight in drafting.parameters())


def _settings_hash(drafting: PreTrainedModel | DraftHead) -> int:
    """Hashes the settings of all modules, such as enabled adapters: a captured graph does not follow changes to them."""
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
    """Host side of decoding for batches of one size."""

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
        self, sequences: list[list[int]], seeds: Sequence[int], is_done: Callable[[int, list[int]], bool]
    ) -> Decoding:  # fmt: skip
        """Continues the sequences in place."""
        step, self.out = self.step, Decoding(sequences)
        self.generators = [torch.Generator(self.device).manual_seed(seed) for seed in seeds]
        self.alive = [True] * len(sequences)
        self.contexts = [len(tokens) - 1 for tokens in sequences]
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
                *tokens, accepted, status = packed
                if status:
                    raise ValueError("polydraft: a row of logits defines no distribution (NaN, infinite, or all -inf)")
                self.out.calls += 1
                self.out.accepted += accepted
                self.contexts[row] += accepted + 1
                for token in tokens[: accepted + 1]:
                    sequences[row].append(token)
                    if is_done(row, sequences[row]):
                        self.alive[row], changed = False, True
                        break
            if changed:
                step.alive.copy_(torch.tensor(self.alive, dtype=torch.long))
        self.out.captured = self.replayed.graph is not None
        return self.out

    def prefill(self) -> None:
        """Processes the prompts except for their last tokens."""
        step, sequences = self.step, self.out.sequences
        longest = max(map(len, sequences))
        device = self.device
        padded = torch.tensor([tokens + [0] * (longest - len(tokens)) for tokens in sequences], device=device)
        step.context.copy_(torch.tensor(self.contexts))
        before = [tokens[max(len(tokens) - 2, 0)] for tokens in sequences]
        step.last.copy_(torch.tensor([[one, tokens[-1]] for one, tokens in zip(before, sequences)]))
        drafter = step.drafter
        if isinstance(drafter, ModelDrafter):
            for tokens, static in ((padded[:, :-1], step.target), (padded[:, :-1], drafter.static)):
                for _ in static.prefill_chunks(tokens):
                    pass
            return
        drafter.tokens[:, 0] = step.last[:, 1]
        drafter.count.fill_(1)
        for start, chunk in step.target.prefill_chunks(padded[:, :-1]):
            features = step.target.features
            assert features is not None
            length = chunk.shape[1]
            drafter.prefill(padded[:, start + 1 : start + 1 + length], start, features)
            for row, context in enumerate(self.contexts):
                # The first step processes the last position before the root.
                if start < context <= start + length:
                    drafter.states[row, 0] = features[row, context - 1 - start]

    def fit(self) -> None:
        """Grows the caches to fit the longest sequence and its tree."""
        step = self.step
        paths, length = step.form.paths, step.form.length
        needed = max(self.contexts) + max(1 + paths * length, step.drafter.slots_needed) + 1
        if needed <= self.size:
            return
        self.size = -(-needed // SLOT_INCREMENT) * SLOT_INCREMENT
        step.target.cache.resize(self.size, self.device)
        step.drafter.resize(self.size)
        self.replayed.reset()

    def uniforms(self) -> None:
        """Generates uniforms for each sequence, independently of the rest of the batch."""
        at = self.out.passes % STEPS
        if at == 0:
            buffer = self.step.uniforms
            made = [
                torch.rand(STEPS, buffer.shape[1], generator=generator, dtype=buffer.dtype, device=self.device)
                for generator in self.generators
            ]
            self.made = torch.stack(made, 1)
        self.step.uniforms.copy_(self.made[at])
