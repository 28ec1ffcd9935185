"""Decoding of a `generate` call on the models' device, and the conditions for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.generation import logits_process as processes
from transformers.generation import stopping_criteria as stops

from .. import gpu
from .._native import Rng, Sampling
from .static import Decoding, decode, takes_static
from .static.heads import DraftHead
from .static.step import Form

# Processors that depend on the logits alone and run on the device.
_OF_LOGITS_ALONE = tuple(
    getattr(processes, name)
    for name in (
        "TemperatureLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper", "MinPLogitsWarper", "TypicalLogitsWarper",
        "EpsilonLogitsWarper", "SuppressTokensLogitsProcessor",
    )
    if hasattr(processes, name)
)  # fmt: skip


def why_not(
    model: PreTrainedModel, drafting: PreTrainedModel | DraftHead, verifier: Any, tree: Any, processors: Any, seed: Any, cache: Any
) -> str | None:  # fmt: skip
    """Returns why a call cannot be decoded on the device, or None if it can."""
    shape = paths_of(tree)
    if shape is None:
        return f"the tree is {tree!r}, and the kernels verify independent paths only (paths:K,L)"
    if not isinstance(verifier, str) or verifier not in gpu.METHODS:
        return f"the verifier is none of {', '.join(gpu.METHODS)}"
    if verifier in ("token", "block") and shape[0] != 1:
        return f"{verifier} verifies one path"
    if isinstance(seed, Rng):
        return "an Rng works in CPU memory only"
    for processor in processors or ():
        if type(processor) not in _OF_LOGITS_ALONE:
            return f"{type(processor).__name__} depends on previous tokens"
    if isinstance(cache, DynamicCache) and cache.get_seq_length() > 0:
        return "the given KV cache is not empty"
    models = [model] if isinstance(drafting, DraftHead) else [model, drafting]
    if len({parameter.device for one in models for parameter in one.parameters()}) > 1:
        return "the models are on several devices"
    for one in models:
        if not takes_static(one):
            return f"{type(one).__name__} does not score a tree over a cache of slots as it scores single paths"
    return None


def paths_of(tree: Any) -> tuple[int, int] | None:
    """Returns K and L of `paths:K,L`, or None for other trees."""
    found = re.fullmatch(r"paths:(\d+),(\d+)", tree) if isinstance(tree, str) else None
    shape = (int(found[1]), int(found[2])) if found else (0, 0)
    return shape if min(shape) > 0 else None


def form_of(verifier: str, tree: str, processors: Any, do_sample: bool, draft_sampling: Sampling | None) -> Form:
    """Returns the configuration of each step."""
    shape = paths_of(tree)
    assert shape is not None
    processors = list(processors or ())
    sampling = gpu.Sampling() if do_sample else gpu.Sampling(temperature=0.0)
    filters = draft_filters = _all_of(processors)
    drafted = sampling if draft_sampling is None else _converted(draft_sampling)
    if do_sample and len(processors) == 1 and isinstance(processors[0], processes.TemperatureLogitsWarper):
        # The temperature replaces the processor, so that logits stay as the models compute them.
        sampling, filters = gpu.Sampling(temperature=processors[0].temperature), None
        if draft_sampling is None:
            drafted, draft_filters = sampling, None
    named = repr([(type(processor).__name__, sorted(vars(processor).items())) for processor in processors])
    return Form(verifier, *shape, sampling, drafted, filters, draft_filters, named)


def _all_of(processors: list[Any]) -> Callable[[torch.Tensor], torch.Tensor] | None:
    def apply(logits: torch.Tensor) -> torch.Tensor:
        for processor in processors:
            logits = processor(None, logits)
        return logits.contiguous()

    return apply if processors else None


def _converted(sampling: Sampling) -> gpu.Sampling:
    return gpu.Sampling(sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)


def stopper(criteria: Any, device: torch.device) -> Callable[[int, list[int]], bool]:
    """Returns a function that decides from the padding and the tokens whether a sequence is complete."""
    most, ends, others = None, set[int](), []
    for criterion in criteria or ():
        if type(criterion) is stops.MaxLengthCriteria:
            most = criterion.max_length if most is None else min(most, criterion.max_length)
        elif type(criterion) is stops.EosTokenCriteria:
            ends |= set(criterion.eos_token_id.flatten().tolist())
        else:
            others.append(criterion)

    def is_done(padding: int, sequence: list[int]) -> bool:
        if sequence[-1] in ends or (most is not None and len(sequence) + padding >= most):
            return True
        row = torch.tensor([sequence], device=device) if others else None
        return any(bool(torch.as_tensor(criterion(row, None)).all()) for criterion in others)

    return is_done


def run(
    model: PreTrainedModel, drafting: PreTrainedModel | DraftHead, form: Form, rows: Sequence[torch.Tensor],
    masks: Sequence[torch.Tensor | None], criteria: Any, seeds: Sequence[int], put: Callable[[int], None] | None,
) -> tuple[list[torch.Tensor], Decoding]:  # fmt: skip
    """Continues rows `[length]`, whose masks are False on padding. Returns the rows with their padding and new tokens."""
    prompts = [(row if mask is None else row[mask.bool()]).tolist() for row, mask in zip(rows, masks)]
    paddings = [len(row) - len(prompt) for row, prompt in zip(rows, prompts)]
    ended = stopper(criteria, model.device)

    def is_done(row: int, sequence: list[int]) -> bool:
        if put is not None:
            put(sequence[-1])
        return ended(paddings[row], sequence)

    found = decode(model, drafting, form, prompts, seeds, is_done)
    sequences = [
        torch.cat([row, row.new_tensor(tokens[len(prompt) :])]) for row, tokens, prompt in zip(rows, found.sequences, prompts)
    ]  # fmt: skip
    return sequences, found
