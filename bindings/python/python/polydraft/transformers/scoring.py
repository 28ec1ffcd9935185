"""Scoring of trees by a causal model of transformers: in one pass with a four-dimensional mask, or with a row for each path.

The tree mask lets each node attend to the sequence and its ancestors; a node's position follows from its depth. After the pass
the cache holds all nodes and is cut back to the accepted ones. Models without support for such masks or positions (recurrent
models, ALiBi, sliding windows, flash attention) get each path as a row of a batch, without a cache: slow, but exact for every
causal model.

Support is tested, not assumed: `takes_trees` scores a small tree by both methods.
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

# Longer pending sequences are prefilled before the tree's pass.
_MAX_PENDING = 16

# Names of the KV cache argument of a model's forward: the first from transformers 5.24 on, the second before.
CACHE_NAMES = ("cache", "past_key_values")


class Trees:
    """Scores trees in one pass. The cache holds `cached` tokens of the sequence, then the nodes of `slots`."""

    def __init__(self, model: PreTrainedModel, sequence: Sequence[int], cache: DynamicCache | None = None) -> None:
        self.model, self.sequence = model, list(sequence)
        self.rows = rows_of(model)
        self.cache = _new_cache(model) if cache is None else cache
        self.cached = self.cache.get_seq_length()
        self.slots: list[int] = []

    def logits(self, draft: Draft, nodes: Sequence[int]) -> torch.Tensor:
        """Scores nodes that were not scored since the last commit. Returns the logits after them, `[nodes, vocabulary]`.

        Parents come before children, in this call or an earlier one; the first node of the first call is the root.
        """
        pending = self.sequence[self.cached :]
        if len(pending) > _MAX_PENDING:
            self._run(pending[:-1], None, self.cached + np.arange(len(pending) - 1), 1)
            self.cached += len(pending) - 1
            pending = pending[-1:]
        new = [node for node in nodes if node != 0]
        tokens, depths, sees = draft.tokens, draft.depths, draft.mask()
        known, rows = len(self.sequence), len(pending) + len(new)
        visible = np.zeros((rows, known + len(self.slots) + len(new)), dtype=bool)
        for row in range(len(pending)):
            visible[row, : self.cached + row + 1] = True
        slots = self.slots + new
        for row, node in enumerate(new, start=len(pending)):
            visible[row, :known] = True
            visible[row, known:] = sees[node, slots]
        positions = np.concatenate([np.arange(self.cached, known), known - 1 + depths[new]])
        feed = pending + tokens[new].tolist()
        logits = self._run(feed, visible, positions, len(nodes))
        self.cached, self.slots = known, slots
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
        """Cuts the cache back to the accepted nodes and appends the emitted tokens."""
        accepted = [self.slots.index(node) for node in outcome.accepted if node in self.slots]
        if accepted != list(range(len(accepted))):
            for layer in self.cache.layers:
                for states in (layer.keys, layer.values):
                    moved = torch.tensor([self.cached + slot for slot in accepted], device=states.device)
                    states[..., self.cached : self.cached + len(accepted), :] = states.index_select(-2, moved)
        if rest := len(self.slots) - len(accepted):
            # A negative length, the number of tokens to drop, works in all versions.
            self.cache.crop(-rest)
        self.cached, self.slots = self.cached + len(accepted), []
        self.sequence += outcome.tokens


class Rows:
    """Scores each path as a row of a batch, together with the full sequence."""

    def __init__(self, model: PreTrainedModel, sequence: Sequence[int]) -> None:
        self.model, self.sequence = model, list(sequence)
        self.rows = rows_of(model)

    def logits(self, draft: Draft, nodes: Sequence[int]) -> torch.Tensor:
        """Returns the logits after these nodes, `[nodes, vocabulary]`."""
        tokens, depths = draft.tokens, draft.depths
        paths = {node: draft.path(node) for node in nodes}
        within = {step for path in paths.values() for step in path[:-1]}
        ends = [node for node in nodes if node not in within and (node != 0 or len(nodes) == 1)]
        longest = max(int(depths[node]) for node in ends)
        # Padding follows the path, so causal attention never reads it.
        rows = [self.sequence + tokens[paths[end]].tolist() + [0] * (longest - int(depths[end])) for end in ends]
        row_of = {step: row for row, end in enumerate(ends) for step in paths[end]} | {0: 0}
        options = logits_to_keep(self.model, longest + 1)
        inputs = torch.tensor(rows, device=self.model.device).clamp(max=self.rows - 1)
        output = self.model(input_ids=inputs, use_cache=False, **options).logits[:, -(longest + 1) :]
        return output[[row_of[node] for node in nodes], [int(depths[node]) for node in nodes]]

    def commit(self, draft: Draft, outcome: Outcome) -> None:
        """Appends the emitted tokens."""
        self.sequence += outcome.tokens


def scorer(model: PreTrainedModel, sequence: Sequence[int], cache: Any = None) -> Trees | Rows:
    """Returns a scorer of trees after a sequence; reuses a cache with part of the sequence where possible."""
    if not takes_trees(model):
        return Rows(model, sequence)
    usable = isinstance(cache, DynamicCache) and _is_plain(cache) and cache.get_seq_length() < len(sequence)
    return Trees(model, sequence, cache if usable else None)


def rows_of(model: PreTrainedModel) -> int:
    """Returns the number of rows of a model's embedding. For larger tokens a draft reads its last row."""
    return int(model.get_input_embeddings().num_embeddings)  # type: ignore[arg-type]


_tested: WeakKeyDictionary[PreTrainedModel, bool] = WeakKeyDictionary()


def takes_trees(model: PreTrainedModel) -> bool:
    """Whether a model scores a tree in one pass as it scores each path alone. Tested once, on a tree of four tokens."""
    if model not in _tested:
        _tested[model] = takes_masks(model) and _scores_trees(model)
    return _tested[model]


def takes_masks(model: PreTrainedModel) -> bool:
    """Whether a model supports four-dimensional masks, positions and a cache, which both forms of tree scoring need."""
    taken = inspect.signature(model.forward).parameters
    attention = getattr(model.config, "_attn_implementation", None)
    return (
        not model.config.is_encoder_decoder
        and {"input_ids", "attention_mask", "position_ids"} <= set(taken)
        and cache_name(model) is not None
        and attention in ("eager", "sdpa")
    )


@torch.no_grad()
def _scores_trees(model: PreTrainedModel) -> bool:
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    sequence = spread_tokens((1, 2, 3), vocabulary)
    tokens = spread_tokens((3, 1, 2, 0, 1), vocabulary)
    flat = np.zeros((4, vocabulary), dtype=np.float32)
    draft = Draft.given(tokens, [-1, 0, 0, 1, 2], flat, counts=[0, 1, 1, 1, 1])
    if len(set(tokens[1:3])) < 2:
        return False
    trees, rows = Trees(model, sequence), Rows(model, sequence)
    nodes = list(range(len(draft)))
    try:
        # In two calls, like a draft model's levels; then again after an accepted path.
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


def spread_tokens(numbers: Sequence[int], vocabulary: int) -> list[int]:
    """Spreads numbers over the vocabulary. The first tokens are special ones, and on a series of those the states of real
    models are so ill-conditioned that rounding alone changes them completely."""
    if vocabulary < 64:
        return [number % vocabulary for number in numbers]
    return [((number + 1) * 2654435761 % 2**32) * vocabulary >> 32 for number in numbers]


def alike(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether rows of logits differ only by rounding.

    A token wrongly attended to, or a position off by one, moves a row by about the mean distance between rows: 0.26 to 2 of it in
    experiments. Rounding moves a row by 1e-5 of it in f32 and 0.02 to 0.13 in bf16.
    """
    most = 1e-2 if found.dtype == torch.float32 else 0.25
    found, expected = found.float(), expected.float()
    apart = (expected - expected.mean(0)).norm(dim=-1).mean()
    return bool((found - expected).norm(dim=-1).max() <= most * apart)


class _Accepted:
    """Outcome of a verifier, made by hand."""

    def __init__(self, accepted: list[int], tokens: list[int]) -> None:
        self.accepted, self.tokens = accepted, tokens


def _new_cache(model: PreTrainedModel) -> DynamicCache:
    return DynamicCache(config=model.config.get_text_config(decoder=True))


def _is_plain(cache: DynamicCache) -> bool:
    """Whether every layer stores the keys and values of all tokens."""
    return all(type(layer) is DynamicLayer for layer in cache.layers)


def cache_name(model: Any) -> str | None:
    """Returns the name of the KV cache argument of a model's or layer's forward, or None."""
    taken = inspect.signature(model.forward).parameters
    return next((name for name in CACHE_NAMES if name in taken), None)


def logits_to_keep(model: PreTrainedModel, count: int) -> dict[str, Any]:
    """Returns the argument that limits a model to its last `count` logits, or nothing if it has none."""
    named = "logits_to_keep" in inspect.signature(model.forward).parameters
    return {"logits_to_keep": count} if named else {}
