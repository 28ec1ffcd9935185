"""A causal model of transformers that scores trees: in one pass with a mask of four dimensions, or one row for each path.

A mask with the tree's shape says which tokens each node sees: the sequence, and the nodes above it. Its position is that of its
depth. Afterwards the cache holds all nodes, and is cut back to the accepted ones. Models that take no such mask or positions
(recurrent ones, ALiBi, attention in a sliding window, flash attention) are given each path as a row of a batch, without a cache:
slow, and exact for whatever is causal.

Which of the two a model can do is tested, not assumed: `takes_trees` scores a small tree by both methods.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from .._native import Draft, Outcome

# More tokens than these are read as they are in plain decoding, before the tree.
_TOGETHER = 16

# What a model's forward calls the KV cache: the first from transformers 5.24 on, the second before.
CACHE_NAMES = ("cache", "past_key_values")


class Trees:
    """Scores trees in one pass. The cache holds `cached` tokens of the sequence, then the nodes of `slots`."""

    def __init__(self, model: PreTrainedModel, text: Sequence[int], cache: DynamicCache | None = None) -> None:
        self.model, self.text = model, list(text)
        self.rows = rows_of(model)
        self.cache = _new_cache(model) if cache is None else cache
        self.cached = self.cache.get_seq_length()
        self.slots: list[int] = []

    def logits(self, draft: Draft, nodes: Sequence[int]) -> torch.Tensor:
        """The logits after these nodes, none of which was scored since the last commit: `[nodes, vocabulary]`.

        Parents come before children, in one call or in calls before; the first call's first node is the root.
        """
        pending = self.text[self.cached :]
        if len(pending) > _TOGETHER:
            self._run(pending[:-1], None, self.cached + np.arange(len(pending) - 1), 1)
            self.cached += len(pending) - 1
            pending = pending[-1:]
        new = [node for node in nodes if node != 0]
        tokens, depths, sees = draft.tokens, draft.depths, draft.mask()
        known, rows = len(self.text), len(pending) + len(new)
        visible = np.zeros((rows, known + len(self.slots) + len(new)), dtype=bool)
        for row in range(len(pending)):
            visible[row, : self.cached + row + 1] = True
        behind = self.slots + new
        for row, node in enumerate(new, start=len(pending)):
            visible[row, :known] = True
            visible[row, known:] = sees[node, behind]
        positions = np.concatenate([np.arange(self.cached, known), known - 1 + depths[new]])
        feed = pending + tokens[new].tolist()
        logits = self._run(feed, visible, positions, len(nodes))
        self.cached, self.slots = known, behind
        return logits

    def _run(self, tokens: list[int], visible: Any, positions: Any, keep: int) -> torch.Tensor:
        model, options = self.model, logits_to_keep(self.model, keep)
        if visible is not None:
            mask = torch.zeros(visible.shape, dtype=model.dtype)
            mask.masked_fill_(~torch.from_numpy(visible), torch.finfo(model.dtype).min)
            options["attention_mask"] = mask[None, None].to(model.device)
        output = model(
            input_ids=torch.tensor([tokens], device=model.device).clamp(max=self.rows - 1),
            position_ids=torch.from_numpy(np.asarray(positions, dtype=np.int64))[None].to(model.device),
            use_cache=True,
            **{str(cache_name(model)): self.cache},
            **options,
        )
        return output.logits[0, -keep:]

    def commit(self, draft: Draft, outcome: Outcome) -> None:
        """Keeps of the cache what the accepted nodes need, and takes the emitted tokens."""
        kept = [self.slots.index(node) for node in outcome.accepted if node in self.slots]
        if kept != list(range(len(kept))):
            for layer in self.cache.layers:
                for states in (layer.keys, layer.values):
                    moved = torch.tensor([self.cached + slot for slot in kept], device=states.device)
                    states[..., self.cached : self.cached + len(kept), :] = states.index_select(-2, moved)
        if rest := len(self.slots) - len(kept):
            # The one form that all versions understand: so many less.
            self.cache.crop(-rest)
        self.cached, self.slots = self.cached + len(kept), []
        self.text += outcome.tokens


class Rows:
    """Scores each path as a row of its own, the whole sequence with it."""

    def __init__(self, model: PreTrainedModel, text: Sequence[int]) -> None:
        self.model, self.text = model, list(text)
        self.rows = rows_of(model)

    def logits(self, draft: Draft, nodes: Sequence[int]) -> torch.Tensor:
        """The logits after these nodes: `[nodes, vocabulary]`."""
        tokens, depths = draft.tokens, draft.depths
        paths = {node: draft.path(node) for node in nodes}
        within = {step for path in paths.values() for step in path[:-1]}
        ends = [node for node in nodes if node not in within and (node != 0 or len(nodes) == 1)]
        longest = max(int(depths[node]) for node in ends)
        # What follows a path's end is never seen from before it.
        rows = [self.text + tokens[paths[end]].tolist() + [0] * (longest - int(depths[end])) for end in ends]
        row_of = {step: row for row, end in enumerate(ends) for step in paths[end]} | {0: 0}
        options = logits_to_keep(self.model, longest + 1)
        inputs = torch.tensor(rows, device=self.model.device).clamp(max=self.rows - 1)
        output = self.model(input_ids=inputs, use_cache=False, **options).logits[:, -(longest + 1) :]
        return output[[row_of[node] for node in nodes], [int(depths[node]) for node in nodes]]

    def commit(self, draft: Draft, outcome: Outcome) -> None:
        """Takes the emitted tokens."""
        self.text += outcome.tokens


def scorer(model: PreTrainedModel, text: Sequence[int], cache: Any = None) -> Trees | Rows:
    """The scorer of trees after a sequence with this model; with a cache that has some of it already, if that can be used."""
    if not takes_trees(model):
        return Rows(model, text)
    usable = isinstance(cache, DynamicCache) and _is_plain(cache) and cache.get_seq_length() < len(text)
    return Trees(model, text, cache if usable else None)


def rows_of(model: PreTrainedModel) -> int:
    """Tokens that a model can read. A draft may have fewer than its target; what it has none for it reads as its last one."""
    return int(model.get_input_embeddings().num_embeddings)  # type: ignore[arg-type]


_tried: WeakKeyDictionary[PreTrainedModel, bool] = WeakKeyDictionary()


def takes_trees(model: PreTrainedModel) -> bool:
    """Whether a model scores a tree in one pass as it scores each path alone. Found out once, on a tree of four tokens."""
    if model not in _tried:
        _tried[model] = takes_masks(model) and _does(model)
    return _tried[model]


def takes_masks(model: PreTrainedModel) -> bool:
    """Whether a model has what either form of trees needs: masks of four dimensions, positions, a cache."""
    taken = inspect.signature(model.forward).parameters
    attention = getattr(model.config, "_attn_implementation", None)
    return (
        not model.config.is_encoder_decoder
        and {"input_ids", "attention_mask", "position_ids"} <= set(taken)
        and cache_name(model) is not None
        and attention in ("eager", "sdpa")
    )


@torch.no_grad()
def _does(model: PreTrainedModel) -> bool:
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    text = ordinary((1, 2, 3), vocabulary)
    tokens = ordinary((3, 1, 2, 0, 1), vocabulary)
    flat = np.zeros((4, vocabulary), dtype=np.float32)
    draft = Draft.given(tokens, [-1, 0, 0, 1, 2], flat, counts=[0, 1, 1, 1, 1])
    if len(set(tokens[1:3])) < 2:
        return False
    trees, rows = Trees(model, text), Rows(model, text)
    nodes = list(range(len(draft)))
    try:
        # In two calls, as drafts are; then again after a path that was accepted.
        one = torch.cat([trees.logits(draft, nodes[:3]), trees.logits(draft, nodes[3:])])
        plain = _is_plain(trees.cache)
        accepted = _Accepted([2, 4], [tokens[2], tokens[4], tokens[1]])
        other = rows.logits(draft, nodes)
        trees.commit(draft, accepted)  # type: ignore[arg-type]
        rows.commit(draft, accepted)  # type: ignore[arg-type]
        one, other = torch.cat([one, trees.logits(draft, nodes)]), torch.cat([other, rows.logits(draft, nodes)])
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError, NotImplementedError):
        return False
    return plain and alike(one, other)


def ordinary(numbers: Sequence[int], vocabulary: int) -> list[int]:
    """A token for each number, from all over the vocabulary: the first ones are special, and real models answer a series of
    those with states that rounding alone changes beyond recognition."""
    if vocabulary < 64:
        return [number % vocabulary for number in numbers]
    return [((number + 1) * 2654435761 % 2**32) * vocabulary >> 32 for number in numbers]


def alike(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether rows of logits differ by rounding alone.

    A token seen that should not be, or a position off by one, moves a row by about as much as the rows lie apart from each other:
    0.26 to 2 of that in what was tried, rounding 1e-5 in f32 and 0.02 to 0.13 in bf16.
    """
    most = 1e-2 if found.dtype == torch.float32 else 0.25
    found, expected = found.float(), expected.float()
    apart = (expected - expected.mean(0)).norm(dim=-1).mean()
    return bool((found - expected).norm(dim=-1).max() <= most * apart)


class _Accepted:
    """What a verifier might have decided."""

    def __init__(self, accepted: list[int], tokens: list[int]) -> None:
        self.accepted, self.tokens = accepted, tokens


def _new_cache(model: PreTrainedModel) -> DynamicCache:
    return DynamicCache(config=model.config.get_text_config(decoder=True))


def _is_plain(cache: DynamicCache) -> bool:
    """Whether every layer keeps every token's keys and values."""
    return all(type(layer) is DynamicLayer for layer in cache.layers)


def cache_name(model: Any) -> str | None:
    """What the forward pass of a model, or of a layer, calls the KV cache."""
    taken = inspect.signature(model.forward).parameters
    return next((name for name in CACHE_NAMES if name in taken), None)


def logits_to_keep(model: PreTrainedModel, count: int) -> dict[str, Any]:
    """How a model is asked for its last logits alone; nothing where it cannot be."""
    named = "logits_to_keep" in inspect.signature(model.forward).parameters
    return {"logits_to_keep": count} if named else {}
