"""A KV cache of numbered slots for a model of transformers: written wherever a pass says, read whole.

A pass names a slot for each of its tokens, and a mask says which slots each token sees. Nothing about the shapes depends on how
much has been decoded, so that passes can be captured in a CUDA graph, and a tree's rejected nodes are left to be overwritten.
Layers whose keys or values have one shape share one tensor: moving the accepted path is two launches for all of them.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache


class SlotCache(Cache):
    """Keys and values `[layers, batch, heads, slots, width]`, by their shapes.

    The last slot is nobody's: what must be written but never seen goes there.
    """

    def __init__(self, batch: int) -> None:
        super().__init__(layers=[])
        self.batch, self.size = batch, 0
        self.groups: list[torch.Tensor] = []
        # Of each layer, the group and the row there of its keys, then of its values.
        self.homes: dict[int, list[tuple[int, int]]] = {}
        self.shapes: dict[int, list[tuple[tuple[int, ...], torch.dtype]]] = {}
        self.written: torch.Tensor | None = None

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        """Writes at the slots of `written`, `[batch, tokens]`, and gives all slots of the layer. What transformers calls."""
        if self.written is None:
            # The first pass is there to learn the shapes.
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
        """Nothing that a model could make positions or masks from: passes bring their own."""
        return 0

    def resize(self, size: int, device: torch.device) -> None:
        """Room for so many slots; what the slots hold stays."""
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
            more = group.new_zeros(*group.shape[:3], size, group.shape[4])
            # The slot that is nobody's moves to the end.
            more[..., : max(self.size - 1, 0), :] = group[..., : max(self.size - 1, 0), :]
            self.groups[number] = more
        self.size = size

    def move(self, origins: torch.Tensor, places: torch.Tensor) -> None:
        """Slots `[batch, many]` to other slots `[batch, many]`."""
        for group in self.groups:
            layers, batch, heads, _, width = group.shape
            shape = (layers, batch, heads, origins.shape[1], width)
            found = group.gather(3, origins[None, :, None, :, None].expand(shape))
            group.scatter_(3, places[None, :, None, :, None].expand(shape), found)
