"""A model's own multi-token prediction (MTP) layer, as exposed by transformers, as a draft head.

Source: DeepSeek-AI 2024 (DeepSeek-V3), section 2.2; transformers' `MtpModel`, which supports the layers of several families.
Deviations: (1) the first layer drafts every level, from its own state after the first level, where transformers uses one layer
for each level: most models have only one; (2) drafts are sampled from its full distribution, so that paths differ.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel

from ..scoring import cache_name
from .attention import Folding
from .heads import LAST, DraftHead
from .slots import SlotCache

try:
    from transformers.modeling_layers import MtpModel
except ImportError:
    MtpModel = None

# Name of the model's own layers as a draft.
MTP = "mtp"


def is_mtp(model: Any) -> bool:
    """Whether `model` is a transformers `MtpModel`."""
    return MtpModel is not None and isinstance(model, MtpModel)


def brings_mtp(model: PreTrainedModel) -> bool:
    """Whether a model's configuration has MTP layers that this version of transformers can read."""
    return MtpModel is not None and getattr(model.config.get_text_config(decoder=True), "num_mtp_layers", None) not in (None, 0)


class MtpHead(DraftHead):
    """A model's first MTP layer."""

    reads = (LAST,)

    def __init__(self, layers: Any, target: PreTrainedModel) -> None:
        self.layers = layers
        config = layers.config
        kinds = getattr(config, "layer_types", None) or ["full_attention"]
        if kinds[0] != "full_attention":
            raise ValueError(f"mtp: expected a layer with full attention, got {kinds[0]}")
        self.device, self.dtype = target.device, target.dtype
        self.hidden = self.width = config.hidden_size

    @classmethod
    def from_model(cls, model: PreTrainedModel) -> MtpHead:
        """Reads the layer from the model's own files.

        Raises:
            ValueError: a model without MTP layers, or a version of transformers that cannot read them.
        """
        if MtpModel is None:
            raise ValueError("mtp: expected a version of transformers with MtpModel (5.19 has it)")
        if not brings_mtp(model):
            raise ValueError(f"mtp: {type(model).__name__} of this configuration has no MTP layer")
        return cls(MtpModel.from_pretrained(model, device_map={"": model.device}).eval(), model)

    def with_cache(self, batch: int) -> MtpPass:
        return MtpPass(self, batch)

    def weight_addresses(self) -> tuple[int, ...]:
        return tuple(weight.data_ptr() for weight in self.layers.parameters())


class MtpPass:
    """An MTP layer with its cache of slots."""

    def __init__(self, head: MtpHead, batch: int) -> None:
        self.head, self.cache, self.folding = head, SlotCache(batch), Folding(head.layers)
        self.named = str(cache_name(head.layers.layers[0]))
        one = torch.zeros(batch, 1, dtype=torch.long, device=head.device)
        state = torch.zeros(batch, 1, head.hidden, dtype=head.dtype, device=head.device)
        self.forward(state, one, None, one, torch.zeros(batch, 1, 1, 1, dtype=head.dtype, device=head.device))

    def resize(self, size: int) -> None:
        self.cache.resize(size, self.head.device)

    def first(self, features: torch.Tensor) -> torch.Tensor:
        return features

    def forward(
        self, state: torch.Tensor, tokens: torch.Tensor, slots: torch.Tensor | None, positions: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        layers = self.head.layers
        self.cache.written = slots
        embedded = layers.embed_tokens(tokens)
        # Positions are those of the tokens, one after those of the states.
        positions = positions + 1
        rotations = None if layers.rotary_emb is None else layers.rotary_emb(embedded, position_ids=positions)
        with self.folding:
            state = layers.layers[0](
                embedded, state.to(embedded.dtype), position_embeddings=rotations, attention_mask=mask, position_ids=positions,
                **{self.named: self.cache},
            )  # fmt: skip
        return layers.shared_post_norm(state) if layers.use_shared_post_norm else state

    def logits(self, state: torch.Tensor) -> torch.Tensor:
        return self.head.layers._project_to_logits(state.to(self.head.dtype))
