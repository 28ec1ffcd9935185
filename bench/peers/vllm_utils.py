"""Stands in for tests/utils.py of vLLM: its tests' RemoteOpenAIServer starts `polydraft serve`, whatever model they name."""

import json
import os

import anthropic
import openai
import peers

ROCM_EXTRA_ARGS, ROCM_ENV_OVERRIDES = [], {}
# Options of `vllm serve` that there are here.
SAME = {
    "--chat-template": "--chat-template", "--default-chat-template-kwargs": "--chat-template-kwargs", "--root-path": "--root-path",
    "--max-logprobs": "--max-logprobs",
}
# Those that are parameters of requests here.
DEFAULTS = {
    "--return-tokens-as-token-ids": {"return_tokens_as_token_ids": True},
    "--enable-force-include-usage": {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
}


def translated(model, arguments):
    answer, rest = ["--name", model, "--name", "*", "--ignore-published", "--draft", "ngram", "-n", "400"], list(arguments)
    defaults = {}
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
    return answer if "--chat-template" in answer else [*answer, "--chat-template", os.environ["PEERS_TEMPLATE"]]


class RemoteOpenAIServer:
    DUMMY_API_KEY = "token-abc123"

    def __init__(self, model, vllm_serve_args, env_dict=None, **_):
        self.host, self.port = "127.0.0.1", peers.free_port()
        options = translated(model, vllm_serve_args if isinstance(vllm_serve_args, list) else [])
        if key := (env_dict or {}).get("VLLM_API_KEY"):
            options += ["--api-key", key]
        self.server = peers.start(os.environ["PEERS_PROGRAM"], os.environ["PEERS_MODEL"], self.port, *options)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        peers.stop(self.server)

    @property
    def url_root(self):
        return f"http://{self.host}:{self.port}"

    def url_for(self, *parts):
        return f"{self.url_root}/{'/'.join(part.strip('/') for part in parts if part)}"

    def _openai(self, kind, named):
        return kind(base_url=self.url_for("v1"), api_key=self.DUMMY_API_KEY, max_retries=0, **{"timeout": 20, **named})

    def _anthropic(self, kind, named):
        return kind(base_url=self.url_for(), api_key=self.DUMMY_API_KEY, max_retries=0, **{"timeout": 20, **named})

    def get_client(self, **named):
        return self._openai(openai.OpenAI, named)

    def get_async_client(self, **named):
        return self._openai(openai.AsyncOpenAI, named)

    def get_client_anthropic(self, **named):
        return self._anthropic(anthropic.Anthropic, named)

    def get_async_client_anthropic(self, **named):
        return self._anthropic(anthropic.AsyncAnthropic, named)
