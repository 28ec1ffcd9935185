"""Tiny random models made by transformers: a target, and a draft of its first layer."""

import torch
import transformers


def llama(vocabulary=8, layers=2, width=32, seed=0, scale=0.3, **settings):
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, initializer_range=scale,
        bos_token_id=None, eos_token_id=None, pad_token_id=None, **settings,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def first_layers(model, layers=1):
    """The same model cut off behind its first layers: a draft that often agrees."""
    config = type(model.config)(**{**model.config.to_dict(), "num_hidden_layers": layers})
    draft = type(model)(config).eval()
    weights = model.state_dict()
    draft.load_state_dict({name: weights[name] for name in draft.state_dict()})
    return draft
