"""A draft head in EAGLE-3's form as the drafter of a static step.

Problem: a head drafts from the target's hidden states, of which a pass gives one for each accepted node.
Source: Li et al. 2025 (EAGLE-3); the layout of `config.json` and `model.safetensors` is that of its authors, which
`python -m polydraft.train` writes and the program reads.
Method: place i of the head holds the target's state after token i and the embedding of token i + 1. A step's first pass takes
the places that the last one settled, at most L + 1, and says what the last of them leads to. Deeper levels read the head's own
state beside the token drafted; their keys are not kept, because the target's states replace them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch.nn import functional as F
from transformers import PreTrainedModel

from .model import StaticModel, decoder_layers


class EagleHead:
    """The parameters of a head, on the target's device and in its dtype."""

    def __init__(self, folder: str | Path, target: PreTrainedModel) -> None:
        folder = Path(folder)
        try:
            config = json.loads((folder / "config.json").read_text())
        except OSError as error:
            raise ValueError(f"draft head: expected a folder with config.json and model.safetensors, got {folder}") from error
        if "eagle_aux_hidden_state_layer_ids" not in config:
            raise ValueError(f"draft head: expected a head in EAGLE-3's form, which names the layers that it reads, got {folder}")
        self.device, self.dtype = target.device, target.dtype
        self.reads = tuple(config["eagle_aux_hidden_state_layer_ids"])
        self.heads, self.shared = config["num_attention_heads"], config["num_key_value_heads"]
        self.width = config.get("head_dim") or config["hidden_size"] // self.heads
        self.epsilon, self.layers = config["rms_norm_eps"], config.get("num_hidden_layers", 1)
        self.weights = {}
        with safe_open(folder / "model.safetensors", "pt") as file:
            for name in file.keys():
                tensor = file.get_tensor(name)
                self.weights[name] = tensor.to(self.device, self.dtype if tensor.is_floating_point() else None)
        embedding: Any = target.get_input_embeddings()
        self.embedding = embedding.weight
        output: Any = target.get_output_embeddings()
        self.vocabulary = output.weight.shape[0]
        said = self.weights.get("d2t")
        self.says = None if said is None else said + torch.arange(len(said), device=self.device)
        own = self.weights.get("lm_head.weight")
        self.output = own if own is not None else (output.weight if self.says is None else output.weight[self.says])
        hidden, layers = config["hidden_size"], len(decoder_layers(target))
        if self.weights["fc.weight"].shape[1] != len(self.reads) * self.embedding.shape[1]:
            raise ValueError(f"draft head: its states are not as wide as the target's, {self.embedding.shape[1]} numbers")
        if max(self.reads) >= layers or config.get("vocab_size", self.vocabulary) > self.vocabulary:
            raise ValueError(f"draft head: made for another target than this one of {layers} layers")
        half = self.width // 2
        powers = torch.arange(half, dtype=torch.float64) / half
        theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
        self.rates = (theta**-powers).float().to(self.device)
        self.hidden = hidden

    def name(self, layer: int, part: str) -> torch.Tensor:
        """A layer's parameter; a head of one layer has a name of its own for it."""
        return self.weights[("midlayer." if self.layers == 1 else f"layers.{layer}.") + part + ".weight"]

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x.float(), (x.shape[-1],), weight.float(), self.epsilon).to(self.dtype)

    def turned(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Heads `[batch, heads, rows, width]`, halves paired."""
        angles = positions[:, None, :, None] * self.rates
        cos, sin = angles.cos(), angles.sin()
        low, high = x.float().chunk(2, -1)
        return torch.cat([low * cos - high * sin, high * cos + low * sin], -1).to(self.dtype)

    def run(
        self, state: torch.Tensor, tokens: torch.Tensor, positions: torch.Tensor, attend: Any
    ) -> torch.Tensor:  # fmt: skip
        """States `[batch, rows, hidden]` and tokens `[batch, rows]` to the states after them, in f32."""
        words = self.norm(self.embedding[tokens], self.name(0, "input_layernorm"))
        state = state.float()
        for layer in range(self.layers):
            read = self.norm(state, self.name(layer, "hidden_norm" if layer == 0 else "input_layernorm"))
            joined = torch.cat([words, read], -1) if layer == 0 else read
            q, k, v = (
                F.linear(joined, self.name(layer, f"self_attn.{x}_proj")).unflatten(-1, (-1, self.width)).transpose(1, 2)
                for x in "qkv"
            )
            found = attend(layer, self.turned(q, positions), self.turned(k, positions), v)
            state = state + F.linear(found.transpose(1, 2).flatten(2), self.name(layer, "self_attn.o_proj")).float()
            inner = self.norm(state, self.name(layer, "post_attention_layernorm"))
            gated = F.silu(F.linear(inner, self.name(layer, "mlp.gate_proj"))) * F.linear(inner, self.name(layer, "mlp.up_proj"))
            state = state + F.linear(gated, self.name(layer, "mlp.down_proj")).float()
        return state

    def logits(self, state: torch.Tensor) -> torch.Tensor:
        """Over the target's vocabulary; a token that the head does not say has -inf."""
        said = F.linear(self.norm(state, self.weights["norm.weight"]), self.output)
        if self.says is None:
            return said
        every = said.new_full((*said.shape[:-1], self.vocabulary), float("-inf"))
        every[..., self.says] = said
        return every


class HeadDrafter:
    """A head over the states of `target`, K rows a level."""

    def __init__(self, head: EagleHead, target: StaticModel, batch: int, paths: int, length: int) -> None:
        self.head, self.target, self.paths, self.length = head, target, paths, length
        self.batch, self.size = batch, 0
        k, l, device = paths, length, head.device
        self.cache = torch.zeros(head.layers, 2, batch, head.shared, 0, head.width, dtype=head.dtype, device=device)
        width = head.weights["fc.weight"].shape[1]
        # What the last pass settled: states, the tokens after them, how many.
        self.states = torch.zeros(batch, l + 1, width, dtype=head.dtype, device=device)
        self.tokens = torch.zeros(batch, l + 1, dtype=torch.long, device=device)
        self.count = torch.ones(batch, dtype=torch.long, device=device)
        self.tables = [target.table(torch.ones(l + 1, l + 1, dtype=torch.bool).tril())]
        for level in range(1, length):
            # From the context on: places that are not settled yet, then the drafts, level by level.
            sees = torch.zeros(k, l + level * k, dtype=torch.bool)
            for path in range(k):
                sees[path, l + path :: k] = True
            self.tables.append(target.table(sees))
        self.own, self.along = torch.arange(k, device=device), torch.arange(l + 1, device=device)
        self.state = torch.zeros(batch, k, head.hidden, dtype=torch.float32, device=device)

    @property
    def room(self) -> int:
        """Slots from the context on."""
        return self.length + 1 + self.paths * self.length

    def resize(self, size: int) -> None:
        """Room for so many slots."""
        more = self.cache.new_zeros(*self.cache.shape[:4], size, self.cache.shape[5])
        more[..., : self.size, :] = self.cache
        self.cache, self.size = more, size

    def run(
        self, state: torch.Tensor, tokens: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor, sees: torch.Tensor,
        base: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        """The head over rows that are written at slots and see what the table says, from the base on."""
        columns = torch.arange(self.size, device=slots.device) - base[:, None]
        mask = sees[:, (columns + 1).clamp(0, sees.shape[1] - 1)].transpose(0, 1)[:, None]
        group = self.head.heads // self.head.shared

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            both = []
            for home, own in zip(self.cache[layer], (k, v)):
                home.scatter_(2, slots[:, None, :, None].expand(own.shape), own)
                both.append(home.repeat_interleave(group, 1))
            return F.scaled_dot_product_attention(q, both[0], both[1], attn_mask=mask)

        return self.head.run(state, tokens, positions, attend)

    def prefill(self, tokens: torch.Tensor, start: int, features: torch.Tensor) -> None:
        """A piece of the prompts whose tokens begin at `start`: `tokens` are those after each, `[batch, length]`."""
        many = tokens.shape[1]
        places = torch.arange(start, start + many, device=tokens.device).expand(self.batch, -1)
        sees = self.target.table(torch.ones(many, many, dtype=torch.bool).tril())
        state = F.linear(features, self.head.weights["fc.weight"])
        self.run(state, tokens, places, places, sees, places[:, 0])

    def level(self, level: int, given: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        """Logits `[batch, rows, vocabulary]`: of one row at the first level, then of K."""
        if level == 0:
            state = F.linear(self.states, self.head.weights["fc.weight"])
            places = (context - self.count)[:, None] + self.along
            slots = torch.where(places < 0, self.size - 1, places)
            found = self.run(state, self.tokens, slots, places.clamp_min(0), self.tables[0], context - self.count)
            where = (self.count - 1)[:, None, None].expand(-1, 1, found.shape[2])
            self.state = found.gather(1, where)
            rows, self.state = self.state, self.state.expand(-1, self.paths, -1)
        else:
            start = context[:, None]
            slots = start + self.length + (level - 1) * self.paths + self.own
            places = (start + level - 1).expand(-1, self.paths)
            rows = self.state = self.run(self.state, given, slots, places, self.tables[level], context)
        return self.head.logits(rows)

    def commit(self, tokens: torch.Tensor, path: torch.Tensor, kept: torch.Tensor, context: torch.Tensor) -> None:
        """Takes the states of the accepted nodes, and the tokens after them."""
        assert self.target.features is not None
        features = self.target.features
        nodes = (1 + path[:, None] * self.length + self.along - 1).where(self.along > 0, 0)
        self.states.copy_(features.gather(1, nodes[..., None].expand(-1, -1, features.shape[2])))
        self.tokens.copy_(tokens)
        self.count.copy_(kept + 1)
