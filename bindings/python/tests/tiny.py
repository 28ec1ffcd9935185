"""Tiny random transformers models: a target, and a draft made of its first layer."""

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
    """Returns a copy truncated after its first layers: a draft that often agrees."""
    config = type(model.config)(**{**model.config.to_dict(), "num_hidden_layers": layers})
    draft = type(model)(config).eval()
    weights = model.state_dict()
    draft.load_state_dict({name: weights[name] for name in draft.state_dict()})
    return draft


class Streamer:
    """Records its tokens."""

    def __init__(self):
        self.put_, self.ended = [], 0

    def put(self, tokens):
        self.put_ += tokens.flatten().tolist()

    def end(self):
        self.ended += 1


class Stop(transformers.StoppingCriteria):
    """Stops at a token that is a multiple of seven."""

    def __call__(self, input_ids, scores, **kwargs):
        return torch.tensor([input_ids.shape[1] >= 4 and int(input_ids[0, -1]) % 7 == 0])
