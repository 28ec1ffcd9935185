"""KV cache of numbered slots for a transformers model: written at any slot, always read completely.

A pass gives a slot for each of its tokens, and a mask of the slots that each token attends to. Shapes do not depend on how much
has been decoded, so passes can be captured in a CUDA graph, and slots of rejected nodes are simply overwritten. Layers whose
keys or values have the same shape share one tensor, so moving the accepted path takes two launches for all of them.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache


class SlotCache(Cache):
    """Keys and values, `[layers, batch, heads, slots, width]`, grouped by shape.

    The last slot is a dummy for tokens that must be written but never attended to.
    """

    def __init__(self, batch: int) -> None:
        super().__init__(layers=[])
        self.batch, self.size = batch, 0
        self.groups: list[torch.Tensor] = []
        # For each layer, the group and row of its keys, then of its values.
        self.homes: dict[int, list[tuple[int, int]]] = {}
        self.shapes: dict[int, list[tuple[tuple[int, ...], torch.dtype]]] = {}
        self.written: torch.Tensor | None = None

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        """Writes to the slots `written`, `[batch, tokens]`, and returns all slots of the layer. Called by transformers."""
        if self.written is None:
            # The first pass only records the shapes.
            self.shapes[layer_idx] = [((x.shape[1], x.shape[3]), x.dtype) for x in (key_states, value_states)]
            return key_states, value_states
        found = []
        for states, (group, row) in zip((key_states, value_states), self.homes[layer_idx]):
            home = self.groups[group][row]
            where = self.written[:, None, :, None].expand(states.shape)
            home.scatter_(2, where, states)
            found.append(home)
        return tuple(found)

    def get_seq_length(self, *args: Any, **kwargs: Any) -> int:
        """Returns 0: passes supply their own positions and masks."""
        return 0

    def resize(self, size: int, device: torch.device) -> None:
        """Grows the cache to `size` slots and preserves their contents."""
        if not self.homes:
            members: dict[Any, int] = {}
            order = list(dict.fromkeys(shape for shapes in self.shapes.values() for shape in shapes))
            for layer, shapes in self.shapes.items():
                self.homes[layer] = []
                for shape in shapes:
                    row = members.get(shape, 0)
                    self.homes[layer].append((order.index(shape), row))
                    members[shape] = row + 1
            for shape in order:
                (heads, width), dtype = shape
                self.groups.append(torch.zeros(members[shape], self.batch, heads, 0, width, dtype=dtype, device=device))
        for number, group in enumerate(self.groups):
            larger = group.new_zeros(*group.shape[:3], size, group.shape[4])
            # The dummy slot moves to the end.
            larger[..., : max(self.size - 1, 0), :] = group[..., : max(self.size - 1, 0), :]
            self.groups[number] = larger
        self.size = size

    def move(self, origins: torch.Tensor, destinations: torch.Tensor) -> None:
        """Copies slots `origins`, `[batch, count]`, to slots `destinations`, `[batch, count]`."""
        for group in self.groups:
            layers, batch, heads, _, width = group.shape
            shape = (layers, batch, heads, origins.shape[1], width)
            found = group.gather(3, origins[None, :, None, :, None].expand(shape))
            group.scatter_(3, destinations[None, :, None, :, None].expand(shape), found)
