"""Stands in for tests/utils.py of vLLM: its RemoteOpenAIServer starts `polydraft serve`.

Whatever model a test names, it is PEERS_MODEL that is served.
"""

import json
import os

import anthropic
import openai
from peers import harness

ROCM_EXTRA_ARGS, ROCM_ENV_OVERRIDES = [], {}
# Options of `vllm serve` that there are here.
SAME = {
    "--chat-template": "--chat-template",
    "--default-chat-template-kwargs": "--chat-template-kwargs",
    "--root-path": "--root-path",
    "--max-logprobs": "--max-logprobs",
}
# Those that are parameters of requests here.
DEFAULTS = {
    "--return-tokens-as-token-ids": {"return_tokens_as_token_ids": True},
    "--enable-force-include-usage": {
        "stream_options": {"include_usage": True, "continuous_usage_stats": True}
    },
}


def translated(model, arguments):
    """Options of `vllm serve` as `polydraft serve` takes them."""
    answer = ["--name", model, "--name", "*", "--ignore-published", "--draft", "ngram", "-n", "400"]
    rest, defaults = list(arguments), {}
    while rest:
        option = rest.pop(0)
        if option in DEFAULTS:
            defaults |= DEFAULTS[option]
        elif option == "--served-model-name":
            while rest and not rest[0].startswith("--"):
                answer += ["--name", rest.pop(0)]
        elif SAME.get(option):
            value = rest.pop(0)
            answer += [SAME[option], value if isinstance(value, str) else json.dumps(value)]
    answer += ["--request-defaults", json.dumps(defaults)]
    # The models that the tests name know of tools.
    if "--chat-template" not in answer:
        answer += ["--chat-template", os.environ["PEERS_TEMPLATE"]]
    return answer


class RemoteOpenAIServer:
    DUMMY_API_KEY = "token-abc123"

    def __init__(self, model, vllm_serve_args, env_dict=None, **_):
        options = translated(model, vllm_serve_args if isinstance(vllm_serve_args, list) else [])
        if key := (env_dict or {}).get("VLLM_API_KEY"):
            options += ["--api-key", key]
        options = [os.environ["PEERS_MODEL"], *options]
        self.server = harness.serve(os.environ["PEERS_PROGRAM"], options, is_loud=False)
        self.host, self.port = "127.0.0.1", self.server.port

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.stop()

    @property
    def url_root(self):
        return f"http://{self.host}:{self.port}"

    def url_for(self, *parts):
        return f"{self.url_root}/{'/'.join(part.strip('/') for part in parts if part)}"

    def _client(self, kind, url, named):
        named = {"timeout": 20, **named}
        return kind(base_url=url, api_key=self.DUMMY_API_KEY, max_retries=0, **named)

    def _openai(self, kind, named):
        return self._client(kind, self.url_for("v1"), named)

    def _anthropic(self, kind, named):
        return self._client(kind, self.url_for(), named)

    def get_client(self, **named):
        return self._openai(openai.OpenAI, named)

    def get_async_client(self, **named):
        return self._openai(openai.AsyncOpenAI, named)

    def get_client_anthropic(self, **named):
        return self._anthropic(anthropic.Anthropic, named)

    def get_async_client_anthropic(self, **named):
        return self._anthropic(anthropic.AsyncAnthropic, named)
