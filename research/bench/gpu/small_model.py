"""A small Llama on one device: weights from a GGUF file, its pass, texts in large batches.

No script of its own; `head_training.py` uses it. Weights of any type are made bf16 on a GPU.
"""

from __future__ import annotations

import math

import gguf
import numpy as np
import torch
import torch.nn.functional as F


def halves(data, heads):
    """Rows of queries or keys from GGUF's order, by pairs, to that of the two halves."""
    rows = data.reshape(heads, -1, 2, data.shape[1])
    return rows.transpose(0, 2, 1, 3).reshape(data.shape)


class Small:
    """The model: `weights` by GGUF's names; `about` is `model.json` of the trainer's folder."""

    def __init__(self, path, about, device, dtype) -> None:
        self.device, self.dtype = device, dtype
        self.weights, self.about = {}, about
        reader = gguf.GGUFReader(path)
        for t in reader.tensors:
            made = gguf.quants.dequantize(t.data, t.tensor_type)
            for part, heads in (("q", "num_attention_heads"), ("k", "num_key_value_heads")):
                if f".attn_{part}." in t.name:
                    made = halves(made, about[heads])
            made = torch.from_numpy(np.ascontiguousarray(made, dtype=np.float32))
            self.weights[t.name] = made.to(device, torch.float32 if made.dim() == 1 else dtype)
        self.layers = int(reader.fields["llama.block_count"].contents())
        self.heads, self.kv = about["num_attention_heads"], about["num_key_value_heads"]
        self.width, self.eps = about["head_dim"], about["rms_norm_eps"]
        powers = torch.arange(self.width // 2, dtype=torch.float64) / (self.width // 2)
        angles = torch.arange(1024, dtype=torch.float64)[:, None] * about["rope_theta"] ** -powers
        self.cos, self.sin = angles.cos().float().to(device), angles.sin().float().to(device)
        # One product for queries, keys and values, one for gate and up.
        for i in range(self.layers):
            names = [f"blk.{i}.attn_{x}.weight" for x in "qkv"]
            self.weights[f"{i}.qkv"] = torch.cat([self.weights.pop(name) for name in names])
            names = [f"blk.{i}.ffn_{x}.weight" for x in ("gate", "up")]
            self.weights[f"{i}.up"] = torch.cat([self.weights.pop(name) for name in names])

    @property
    def embedding(self):
        return self.weights["token_embd.weight"]

    def norm(self, x, name):
        return F.rms_norm(x.float(), (x.shape[-1],), self.weights[name], self.eps).to(self.dtype)

    def turned(self, x, cos, sin):
        """Halves paired: the packed rows are in Hugging Face's order."""
        low, high = x.float().chunk(2, -1)
        return torch.cat([low * cos - high * sin, high * cos + low * sin], -1).to(self.dtype)

    def layer(self, i, x, cos, sin, attend):
        """x [.., hidden]; cos, sin [.., 1, half]."""
        w = self.weights
        y = F.linear(self.norm(x, f"blk.{i}.attn_norm.weight"), w[f"{i}.qkv"])
        y = y.unflatten(-1, (self.heads + 2 * self.kv, self.width))
        qk, v = y.split([self.heads + self.kv, self.kv], -2)
        q, k = self.turned(qk, cos, sin).split([self.heads, self.kv], -2)
        x = x + F.linear(attend(i, q, k, v).flatten(-2), w[f"blk.{i}.attn_output.weight"]).float()
        gate, up = F.linear(self.norm(x, f"blk.{i}.ffn_norm.weight"), w[f"{i}.up"]).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, w[f"blk.{i}.ffn_down.weight"]).float()

    @torch.no_grad()
    def states(self, tokens):
        """States that a head reads of tokens [samples, places], and the last, normed."""
        places = tokens.shape[1]
        cos, sin = self.cos[:places, None], self.sin[:places, None]

        def attend(_, q, k, v):
            group = self.heads // self.kv
            k, v = (y.repeat_interleave(group, -2).transpose(1, 2) for y in (k, v))
            return F.scaled_dot_product_attention(
                q.transpose(1, 2), k, v, is_causal=True
            ).transpose(1, 2)

        x, found = self.embedding[tokens].float(), []
        for i in range(self.layers):
            if i in self.about["layers"]:
                found.append(x.to(self.dtype))
            x = self.layer(i, x, cos, sin, attend)
        return torch.cat(found, -1), self.norm(x, "output_norm.weight")

    @torch.no_grad()
    def log_sums(self, last):
        """The logarithm of the sum over the whole vocabulary, of normed states [rows, hidden]."""
        return torch.cat(
            [torch.logsumexp(F.linear(x, self.embedding).float(), 1) for x in last.split(4096)]
        )


class Writer:
    """Texts of many slots at once: one captured step, the state of each slot on the device.

    A slot's turn is 0 while a question is written, 1 in an answer, 2 in a text without turns. What
    must be said next (an opening, the words between turns) is a row of `forced`; else a token is
    drawn. A slot whose text ended begins another. Everything is recorded by step and slot.
    """

    QUESTION, GOES_ON = 120, 0.3

    def __init__(self, model, forced, openings, longest, slots, record, seed) -> None:
        self.model, self.longest, self.slots, self.record = model, longest, slots, record
        device = model.device
        torch.manual_seed(seed)
        rows = forced["rows"]
        width = max(len(row) for row in rows)
        self.table = torch.zeros(len(rows), width, dtype=torch.long, device=device)
        for i, row in enumerate(rows):
            self.table[i, : len(row)] = torch.tensor(row)
        self.lengths = torch.tensor([len(row) for row in rows], device=device)
        self.between = forced["answer"], forced["ask"], forced["cut"]
        self.ends = torch.tensor(forced["ends"], device=device)
        # Openings: rows of the table and the turn that they begin, each as likely as it is often
        # there.
        self.openings = torch.tensor(openings, device=device)
        integer = dict(dtype=torch.long, device=device)
        self.token, self.place = torch.zeros(slots, **integer), torch.zeros(slots, **integer)
        self.row, self.at, self.turn = (torch.zeros(slots, **integer) for _ in range(3))
        self.written = torch.zeros(slots, **integer)
        self.temperature = torch.ones(slots, device=device)
        shape = (model.layers, 2, slots, model.kv, longest, model.width)
        self.cache = torch.zeros(shape, dtype=model.dtype, device=device)
        self.number, self.each = torch.zeros((), **integer), torch.arange(slots, device=device)
        self.out = torch.zeros(record, slots, 3, dtype=torch.int32, device=device)
        self.sums = torch.zeros(record, slots, device=device)
        self.graph = None
        self.restart()

    def restart(self):
        """A new text in every slot."""
        self.begin(torch.ones(self.slots, dtype=torch.bool, device=self.place.device))
        self.token.copy_(self.table[self.row, 0])
        self.at.fill_(1)
        self.place.zero_()
        self.number.zero_()
        self.open = [[np.array([[token, 0, 0]])] for token in self.token.tolist()]

    def begin(self, where):
        """A new text in the slots `where`; its first token is the row's first."""
        drawn = self.openings[
            torch.randint(len(self.openings), (self.slots,), device=self.place.device)
        ]
        hot = torch.rand(self.slots, device=self.place.device) < 0.5
        self.row.copy_(torch.where(where, drawn[:, 0], self.row))
        self.turn.copy_(torch.where(where, drawn[:, 1], self.turn))
        self.at.masked_fill_(where, 0)
        self.temperature.copy_(torch.where(where, 0.7 + 0.3 * hot, self.temperature))
        self.written.masked_fill_(where, 0)

    def attend(self, i, q, k, v):
        slots, model = self.slots, self.model
        keys, values = self.cache[i]
        keys[self.each, :, self.place] = k
        values[self.each, :, self.place] = v
        q = q.view(slots, model.kv, -1, model.width)
        scores = (q * model.width**-0.5) @ keys.transpose(-1, -2)
        scores = scores + self.unseen
        return (torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype) @ values).view(
            slots, model.heads, model.width
        )

    @torch.no_grad()
    def step(self):
        """Each slot's token through the model, the next token, what becomes of the text."""
        model, token, place = self.model, self.token, self.place
        cos, sin = model.cos[place][:, None], model.sin[place][:, None]
        later = torch.arange(self.longest, device=place.device)[None] > place[:, None]
        self.unseen = torch.zeros(later.shape, dtype=model.dtype, device=place.device)
        self.unseen = self.unseen.masked_fill(later, -math.inf)[:, None, None]
        x = model.embedding[token].float()
        for i in range(model.layers):
            x = model.layer(i, x, cos, sin, self.attend)
        logits = F.linear(model.norm(x, "output_norm.weight"), model.embedding).float()
        # Of the next token's distribution at temperature 1.
        sums = torch.logsumexp(logits, 1)
        # A question at temperature 1 is drawn a little tamer than an answer, whose distribution is
        # what is learned.
        tame = torch.where(self.turn == 0, self.temperature.clamp(max=0.85), self.temperature)
        race = torch.empty_like(logits).exponential_().log_()
        drawn = (logits / tame[:, None] - race).argmax(1)
        must = self.at < self.lengths[self.row]
        following = torch.where(
            must, self.table[self.row, self.at.clamp(max=self.table.shape[1] - 1)], drawn
        )
        taught = ~must & (self.turn != 0)
        # What is recorded is the next token, and whether it begins a text.
        ended = ~must & (drawn[:, None] == self.ends).any(1)
        written = torch.where(must, self.written, self.written + 1)
        answer, ask, cut = self.between
        talk = self.turn != 2
        more = (self.turn == 0) | (torch.rand(self.slots, device=place.device) < self.GOES_ON)
        goes_on = ended & talk & more & (written > 1) & (following == self.ends[-1])
        long = ~must & ~ended & (self.turn == 0) & (written >= self.QUESTION)
        over = (ended & ~goes_on) | (place + 2 >= self.longest)
        other = ask + (answer - ask) * (self.turn == 0)
        row = torch.where(goes_on, other, self.row.masked_fill(long, cut))
        turned = goes_on | long
        self.turn.copy_(torch.where(turned, 1 - self.turn, self.turn))
        self.row.copy_(row)
        self.at.copy_((self.at + must.long()).masked_fill(turned, 0))
        self.written.copy_(written.masked_fill(turned, 0))
        self.begin(over)
        first = self.table[self.row, 0]
        self.token.copy_(torch.where(over, first, following))
        self.at.masked_fill_(over, 1)
        self.place.copy_((place + 1).masked_fill(over, 0))
        found = torch.stack([following, taught + 2 * over, first], 1).int()
        number = self.number.view(1)
        self.out.index_copy_(0, number, found[None])
        self.sums.index_copy_(0, number, sums[None])
        self.number.copy_((self.number + 1) % self.record)

    def capture(self):
        """A step as a CUDA graph."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.step()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.step()
        self.restart()

    def wave(self):
        """Another `record` steps: the texts that ended, each an array [tokens, 3].

        Of token, taught, log sum before it.
        """
        if self.graph is None and self.model.device.type == "cuda":
            self.capture()
        for _ in range(self.record):
            self.step() if self.graph is None else self.graph.replay()
        out, sums = self.out.cpu().numpy(), self.sums.cpu().numpy()
        found = []
        for slot in range(self.slots):
            begin = 0
            for end in np.flatnonzero(out[:, slot, 1] & 2):
                text = np.concatenate(
                    [*self.open[slot], self.recorded(out, sums, slot, begin, end + 1)]
                )
                self.open[slot] = [np.array([[out[end, slot, 2], 0, 0]])]
                found.append(text)
                begin = end + 1
            self.open[slot].append(self.recorded(out, sums, slot, begin, len(out)))
        return found

    @staticmethod
    def recorded(out, sums, slot, begin, end):
        some = out[begin:end, slot]
        return np.stack([some[:, 0], some[:, 1] & 1, sums[begin:end, slot]], 1)
