"""A causal model of transformers over a cache of slots: passes over trees in which nothing changes its shape.

What a token sees is a table: one row for each token of the pass, one column for everything before the pass, and one for each
slot from its `base` on. Layers that attend in a window get a table of their own.

Which models can do it is tested, not assumed: `takes_static` scores a small tree in two steps and compares.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel

from ..scoring import alike, cache_name, logits_to_keep, ordinary, rows_of, takes_masks
from .attention import Folding
from .heads import LAST
from .slots import SlotCache

# The prompt is read in pieces of so many tokens.
PIECE = 512
FULL, WINDOW = "full_attention", "sliding_attention"


class StaticModel:
    """A model and its cache; `reads` are layers whose inputs are kept of each pass, as draft heads need them."""

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

    def _keeper(self, number: int) -> Any:
        def keep(module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            self.read[number] = given[0] if given else named["hidden_states"]

        return keep

    def _keep_last(self, module: Any, given: Any, found: Any) -> None:
        self.read[LAST] = found[0]

    @contextmanager
    def reading(self) -> Iterator[None]:
        """While this lasts, passes leave `features`; afterwards the model is as it was."""
        hooks = [
            self.model.get_decoder().register_forward_hook(self._keep_last)
            if number == LAST
            else decoder_layers(self.model)[number].register_forward_pre_hook(self._keeper(number), with_kwargs=True)
            for number in self.reads
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def table(self, sees: torch.Tensor) -> torch.Tensor:
        """What `forward` takes as `sees`, from booleans `[tokens, slots from the base on]`."""
        outside = torch.ones(sees.shape[0], 1, dtype=torch.bool, device=sees.device)
        every = torch.cat([outside, sees, ~outside], 1)
        lowest = torch.finfo(self.dtype).min
        return torch.zeros(every.shape, dtype=self.dtype).masked_fill_(~every.cpu(), lowest).to(self.device)

    def forward(
        self, tokens: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor, sees: torch.Tensor, base: torch.Tensor,
        keep: int,
    ) -> torch.Tensor:  # fmt: skip
        """The logits of the last `keep` tokens, `[batch, keep, vocabulary]`.

        Tokens, their slots and positions are `[batch, tokens]`; `sees` is a `table`, whose slots begin at `base`, `[batch]`.
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
                # Everything before the base has its slot as its position.
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

    def pieces(self, tokens: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
        """Reads tokens `[batch, length]` into the slots from 0 on; after each piece gives where it began and what it was.

        Rows may be shorter: what follows them in their row is overwritten before it is seen.
        """
        batch, length = tokens.shape
        # Within a piece, as in a tree, everything lies in the window.
        most = min([PIECE, *(window for window in self.windows.values() if window is not None)])
        for start in range(0, length, most):
            piece = tokens[:, start : start + most]
            many = piece.shape[1]
            sees = self.table(torch.ones(many, many, dtype=torch.bool).tril())
            places = torch.arange(start, start + many, device=self.device).expand(batch, -1)
            self.forward(piece, places, places, sees, places[:, 0], 1)
            yield start, piece


def mask_of(sees: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """What is added to the scores of a pass, `[batch, tokens, slots]`: its table at each slot's distance from the base,
    `[batch, slots]`."""
    return sees[:, (columns + 1).clamp(0, sees.shape[1] - 1)].transpose(0, 1)


def windows_of(model: PreTrainedModel) -> dict[str | None, int | None]:
    """The kinds of attention that a model asks a mask for, and their windows; one kind has no name.

    Raises:
        ValueError: layers that a mask over slots cannot serve.
    """
    config = model.config.get_text_config(decoder=True)
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) is not False else None
    kinds = set(getattr(config, "layer_types", None) or [])
    if kinds - {FULL, WINDOW}:
        raise ValueError(f"static caches: layers of {', '.join(sorted(kinds - {FULL, WINDOW}))}")
    if kinds == {FULL, WINDOW}:
        return {FULL: None, WINDOW: window}
    return {None: None if kinds == {FULL} else window}


def decoder_layers(model: PreTrainedModel) -> Any:
    """The layers of a model's decoder."""
    return model.get_decoder().layers


_tried: WeakKeyDictionary[PreTrainedModel, bool] = WeakKeyDictionary()


def takes_static(model: PreTrainedModel) -> bool:
    """Whether a model scores trees over a cache of slots as it scores each path alone. Found out once."""
    if model not in _tried:
        _tried[model] = takes_masks(model) and _does(model)
    return _tried[model]


@torch.no_grad()
def _does(model: PreTrainedModel) -> bool:
    """Two prompts, a tree of two paths of two tokens; then, after its second path, one more token."""
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    sequences = [ordinary(text, vocabulary) for text in ((1, 2, 3, 5, 4), (2, 1))]
    *tree, last = ordinary((3, 1, 2, 4, 1), vocabulary)
    rows = [text + path for text in sequences for path in (tree[:2], tree[2:] + [last])]
    expected = []
    try:
        for text, row in zip((t for t in sequences for _ in range(2)), rows):
            logits = model(input_ids=torch.tensor([row], device=model.device), use_cache=False).logits[0]
            expected.append(logits[len(text) - 1 :])
        made = StaticModel(model, 2)
        made.cache.resize(24, model.device)
        device = model.device
        context = torch.tensor([len(text) - 1 for text in sequences], device=device)
        before = torch.tensor([(text + [0] * 8)[: max(map(len, sequences)) - 1] for text in sequences], device=device)
        for _ in made.pieces(before):
            pass
        sees = torch.tensor([[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 0, 0, 1, 0], [1, 0, 0, 1, 1]])
        own, depths = torch.arange(5, device=device), torch.tensor([0, 1, 2, 1, 2], device=device)
        nodes = torch.tensor([[text[-1], *tree] for text in sequences], device=device)
        start = context[:, None]
        got = made.forward(nodes, start + own, start + depths, made.table(sees.bool()), context, 5)
        made.cache.move(start + torch.tensor([3, 4], device=device), start + torch.tensor([1, 2], device=device))
        after = torch.full((2, 1), last, device=device)
        place = start + 3
        more = made.forward(after, place, place, made.table(torch.ones(1, 1, dtype=torch.bool)), place[:, 0], 1)
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError, KeyError, NotImplementedError):
        return False
    close = []
    for i in range(2):
        found = torch.cat([got[i, [0, 1, 2]], got[i, [0, 3, 4]], more[i]])
        close.append(alike(found, torch.cat(expected[2 * i : 2 * i + 2])))
    return all(close)
