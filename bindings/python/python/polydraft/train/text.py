"""The folder of text that the target wrote, as `polydraft-lessons` leaves it; see `crates/polydraft-lessons/src/shard.rs`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

# The first shard's first samples are only looked at, never learned from.
HELD_OUT = 48


@dataclass(frozen=True)
class Place:
    """Where a text lies."""

    shard: int
    begin: int
    length: int
    kind: int


@dataclass
class Batch:
    """Samples of one length, the shorter ones padded."""

    tokens: Tensor
    states: Tensor
    last: Tensor
    # Indices of tokens that are learned, in the flattened batch, and the log sums of the target's logits before them.
    taught: Tensor
    log_sums: Tensor
    count: int


class Folder:
    """All samples of a folder. `refresh` finds what was written since."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.model: dict[str, Any] = json.loads((path / "model.json").read_text())
        self.places: list[Place] = []
        self.files: list[Any] = []
        self.counts = np.zeros(self.model["tokens"], np.int64)
        self.refresh()

    def refresh(self) -> None:
        while (path := self.path / f"shard-{len(self.files):04}.safetensors").exists():
            file = safe_open(path, "pt")
            lengths, kinds = file.get_tensor("lengths").tolist(), file.get_tensor("kinds").tolist()
            taught = file.get_tensor("tokens")[file.get_tensor("taught").bool()].numpy()
            self.counts += np.bincount(taught, minlength=len(self.counts))
            begin = 0
            for length, kind in zip(lengths, kinds):
                self.places.append(Place(len(self.files), begin, length, kind))
                begin += length
            self.files.append(file)

    def tokens(self) -> int:
        """Of all samples."""
        return sum(place.length for place in self.places)

    def held_out(self) -> list[int]:
        return [i for i, place in enumerate(self.places) if place.shard == 0][:HELD_OUT]

    def matrix(self, name: str) -> Tensor | None:
        """`embedding`, `output` or `norm` of the target."""
        with safe_open(self.path / "model.safetensors", "pt") as file:
            return file.get_tensor(name) if name in file.keys() else None

    def frequent(self, count: int) -> tuple[Tensor, float]:
        """The tokens that were taught most often, so many, the end tokens first of all; ascending. And their share."""
        order = np.lexsort((np.arange(len(self.counts)), -self.counts))
        ends = np.array(self.model["end_tokens"], np.int64)
        order = np.concatenate([ends, order[~np.isin(order, ends)]])[:count]
        order.sort()
        return torch.from_numpy(order), float(self.counts[order].sum() / max(self.counts.sum(), 1))

    def batch(self, sequences: list[int], device: torch.device, dtype: torch.dtype) -> Batch:
        places = [self.places[text] for text in sequences]
        longest = max(place.length for place in places)
        width = self.files[0].get_slice("states").get_shape()[1]
        hidden, group = self.model["hidden_size"], self.model["group"]
        tokens = torch.zeros(len(sequences), longest, dtype=torch.long)
        states = torch.zeros(len(sequences), longest, width, dtype=dtype)
        taught = torch.zeros(len(sequences), longest, dtype=torch.bool)
        log_sums = torch.zeros(len(sequences), longest)
        for row, place in enumerate(places):
            file, own = self.files[place.shard], slice(place.begin, place.begin + place.length)
            tokens[row, : place.length] = file.get_slice("tokens")[own]
            taught[row, : place.length] = file.get_slice("taught")[own].bool()
            log_sums[row, : place.length] = file.get_slice("log_sums")[own]
            scales = file.get_slice("scales")[own].float()
            rounded = file.get_slice("states")[own].float().unflatten(1, (-1, group))
            states[row, : place.length] = (rounded * scales[..., None]).flatten(1).to(dtype)
        # Drafts begin after the second token of a text.
        taught[:, :2] = False
        learned = taught.flatten().nonzero()[:, 0]
        return Batch(
            tokens.to(device),
            states[..., : width - hidden].to(device),
            states[..., width - hidden :].to(device),
            learned.to(device),
            log_sums.flatten()[learned].to(device),
            sum(place.length for place in places),
        )
