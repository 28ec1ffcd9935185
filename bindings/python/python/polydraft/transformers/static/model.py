"""A causal model of transformers over a cache of slots: passes over trees with fixed shapes.

A table gives the attention mask: one row for each token of the pass, one column for everything before the pass, and one column
for each slot from its `base` on. Layers with a sliding window get their own mask.

Support is tested, not assumed: `takes_static` scores a small tree in two steps and compares.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel

from ..scoring import alike, cache_name, logits_to_keep, rows_of, spread_tokens, takes_masks
from .attention import Folding
from .heads import LAST
from .slots import SlotCache

# Maximum number of prompt tokens in one prefill pass.
PREFILL_CHUNK = 512
FULL, WINDOW = "full_attention", "sliding_attention"


class StaticModel:
    """A model and its cache. Each pass records the inputs of the layers `reads`, which draft heads need."""

    def __init__(self, model: PreTrainedModel, batch: int, reads: Sequence[int] = ()) -> None:
        self.model, self.device, self.dtype = model, model.device, model.dtype
        self.rows = rows_of(model)
        self.cache = SlotCache(batch)
        self.named = str(cache_name(model))
        self.windows, self.folding = windows_of(model), Folding(model)
        self.features: torch.Tensor | None = None
        self.reads, self.read = tuple(reads), dict[int, torch.Tensor]()
        one = torch.zeros(batch, 1, dtype=torch.long, device=self.device)
        with self.reading():
            self._call(one, one, torch.zeros(1, 2, dtype=self.dtype, device=self.device), one[:, 0], 1, 1)

    def _recorder(self, number: int) -> Any:
        def record(module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            self.read[number] = given[0] if given else named["hidden_states"]

        return record

    def _record_last(self, module: Any, given: Any, found: Any) -> None:
        self.read[LAST] = found[0]

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Context in which passes record `features`; restores the model afterwards."""
        hooks = [
            self.model.get_decoder().register_forward_hook(self._record_last)
            if number == LAST
            else decoder_layers(self.model)[number].register_forward_pre_hook(self._recorder(number), with_kwargs=True)
            for number in self.reads
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def table(self, sees: torch.Tensor) -> torch.Tensor:
        """Converts booleans `[tokens, slots from the base on]` to the argument `sees` of `forward`."""
        outside = torch.ones(sees.shape[0], 1, dtype=torch.bool, device=sees.device)
        every = torch.cat([outside, sees, ~outside], 1)
        lowest = torch.finfo(self.dtype).min
        return torch.zeros(every.shape, dtype=self.dtype).masked_fill_(~every.cpu(), lowest).to(self.device)

    def forward(
        self, tokens: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor, sees: torch.Tensor, base: torch.Tensor,
        keep: int,
    ) -> torch.Tensor:  # fmt: skip
        """Computes the logits of the last `keep` tokens, `[batch, keep, vocabulary]`.

        Tokens, slots and positions are `[batch, tokens]`; `sees` is a `table` whose slots begin at `base`, `[batch]`.
        """
        self.cache.written = slots
        return self._call(tokens, positions, sees, base, self.cache.size, keep)

    def _call(
        self, tokens: torch.Tensor, positions: torch.Tensor, sees: torch.Tensor, base: torch.Tensor, size: int, keep: int
    ) -> torch.Tensor:
        columns = torch.arange(size, device=self.device) - base[:, None]
        mask = mask_of(sees, columns)
        masks: dict[str | None, torch.Tensor] = {}
        for name, window in self.windows.items():
            masks[name] = mask[:, None]
            if window is not None:
                # Before the base, positions equal slots.
                far = (columns < 0)[:, None] & (columns[:, None] + (base[:, None] - positions)[..., None] <= -window)
                masks[name] = mask.masked_fill(far, torch.finfo(self.dtype).min)[:, None]
        given: Any = masks if None not in masks else masks[None]
        with self.folding:
            output = self.model(
                input_ids=tokens.clamp(0, self.rows - 1), attention_mask=given, position_ids=positions, use_cache=True,
                **{self.named: self.cache}, **logits_to_keep(self.model, keep),
            )  # fmt: skip
        if self.reads:
            self.features = torch.cat([self.read[number] for number in self.reads], -1)
        return output.logits[:, -keep:]

    def prefill_chunks(self, tokens: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
        """Processes tokens `[batch, length]` into slots 0, 1, ..; after each chunk yields its start and its tokens.

        Rows may be padded at the end: padding is overwritten before any token attends to it.
        """
        batch, length = tokens.shape
        # A chunk, like a tree, must fit the window.
        most = min([PREFILL_CHUNK, *(window for window in self.windows.values() if window is not None)])
        for start in range(0, length, most):
            chunk = tokens[:, start : start + most]
            size = chunk.shape[1]
            sees = self.table(torch.ones(size, size, dtype=torch.bool).tril())
            slots = torch.arange(start, start + size, device=self.device).expand(batch, -1)
            self.forward(chunk, slots, slots, sees, slots[:, 0], 1)
            yield start, chunk


def mask_of(sees: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Builds the additive attention mask of a pass, `[batch, tokens, slots]`, from its table and each slot's distance from the
    base, `[batch, slots]`."""
    return sees[:, (columns + 1).clamp(0, sees.shape[1] - 1)].transpose(0, 1)


def windows_of(model: PreTrainedModel) -> dict[str | None, int | None]:
    """Returns the model's attention types and their windows; the name is None if there is only one type.

    Raises:
        ValueError: layers that do not work with a mask over slots.
    """
    config = model.config.get_text_config(decoder=True)
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) is not False else None
    kinds = set(getattr(config, "layer_types", None) or [])
    if kinds - {FULL, WINDOW}:
        raise ValueError(f"static caches: unsupported layer types {', '.join(sorted(kinds - {FULL, WINDOW}))}")
    if kinds == {FULL, WINDOW}:
        return {FULL: None, WINDOW: window}
    return {None: None if kinds == {FULL} else window}


def decoder_layers(model: PreTrainedModel) -> Any:
    """Returns the layers of a model's decoder."""
    return model.get_decoder().layers


_tested: WeakKeyDictionary[PreTrainedModel, bool] = WeakKeyDictionary()


def takes_static(model: PreTrainedModel) -> bool:
    """Whether a model scores trees over a cache of slots as it scores each path alone. Tested once."""
    if model not in _tested:
        _tested[model] = takes_masks(model) and _scores_trees(model)
    return _tested[model]


@torch.no_grad()
def _scores_trees(model: PreTrainedModel) -> bool:
    """Tests two prompts with a tree of two paths of two tokens, then one more token after its second path."""
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    sequences = [spread_tokens(sequence, vocabulary) for sequence in ((1, 2, 3, 5, 4), (2, 1))]
    *tree, last = spread_tokens((3, 1, 2, 4, 1), vocabulary)
    rows = [sequence + path for sequence in sequences for path in (tree[:2], tree[2:] + [last])]
    expected = []
    try:
        for sequence, row in zip((s for s in sequences for _ in range(2)), rows):
            logits = model(input_ids=torch.tensor([row], device=model.device), use_cache=False).logits[0]
            expected.append(logits[len(sequence) - 1 :])
        made = StaticModel(model, 2)
        made.cache.resize(24, model.device)
        device = model.device
        context = torch.tensor([len(sequence) - 1 for sequence in sequences], device=device)
        before = torch.tensor([(sequence + [0] * 8)[: max(map(len, sequences)) - 1] for sequence in sequences], device=device)
        for _ in made.prefill_chunks(before):
            pass
        sees = torch.tensor([[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 0, 0, 1, 0], [1, 0, 0, 1, 1]])
        index, depths = torch.arange(5, device=device), torch.tensor([0, 1, 2, 1, 2], device=device)
        nodes = torch.tensor([[sequence[-1], *tree] for sequence in sequences], device=device)
        start = context[:, None]
        got = made.forward(nodes, start + index, start + depths, made.table(sees.bool()), context, 5)
        made.cache.move(start + torch.tensor([3, 4], device=device), start + torch.tensor([1, 2], device=device))
        after = torch.full((2, 1), last, device=device)
        slot = start + 3
        more = made.forward(after, slot, slot, made.table(torch.ones(1, 1, dtype=torch.bool)), slot[:, 0], 1)
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError, KeyError, NotImplementedError):
        return False
    close = []
    for i in range(2):
        found = torch.cat([got[i, [0, 1, 2]], got[i, [0, 3, 4]], more[i]])
        close.append(alike(found, torch.cat(expected[2 * i : 2 * i + 2])))
    return all(close)
