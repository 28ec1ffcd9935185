"""A plugin for pytest that runs vLLM's tests without vLLM, and notes what they ask for.

Modules of vLLM are empty: what a test takes from them is a mock, but for facts of the server that
runs, its version and its model's tokenizer and vocabulary, and vLLM's switches, which are off.
Tests of such modules fail without having asked a server for anything, and are counted apart.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from unittest import mock
from urllib.parse import urlsplit

import requests
from noted import asked
from peers import harness

pytest_plugins = ["noted"]


def get_tokenizer(*_, **__):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(os.environ["PEERS_TOKENIZER"])


class ModelConfig:
    """The model that is served, whatever model a test names."""

    def __init__(self, *_, **__):
        pass

    def get_vocab_size(self):
        return len(get_tokenizer())


def version():
    """As the program says it: `polydraft 1.2.3 (..)`."""
    return harness.said(os.environ["PEERS_PROGRAM"], "--version").split()[1]


# torch is for pictures and embeddings, which are not here.
EMPTY = {"vllm", "torch"}


class Empty(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in EMPTY:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        known = {"get_tokenizer": get_tokenizer, "ModelConfig": ModelConfig}

        def attribute(name):
            if name == "__version__":
                return version()
            if name.startswith("__"):
                raise AttributeError(name)
            if name == "envs":
                return importlib.import_module("vllm.envs")
            if name.startswith("VLLM_USE_"):
                return False
            if name.endswith("Error"):
                return type(name, (Exception,), {})
            return known.get(name) or mock.MagicMock(name=name)

        module.__getattr__ = attribute
        return module

    def exec_module(self, module):
        module.__path__ = []


sys.meta_path.insert(0, Empty())


def note(method, url):
    asked.append(f"{str(method).upper()} {urlsplit(str(url)).path}")


def noting(kind, name, of):
    real = getattr(kind, name)

    def noted(self, *rest, **named):
        note(*of(rest, named))
        return real(self, *rest, **named)

    setattr(kind, name, noted)


def of_request(rest, named):
    return (*rest, *(named.get(word) for word in ("method", "url")))[:2]


noting(requests.Session, "request", of_request)
# What the clients of openai and anthropic send with: the name depends on their version.
for library in filter(importlib.util.find_spec, ("httpx", "httpx2")):
    clients = importlib.import_module(library)
    for kind in (clients.Client, clients.AsyncClient):
        noting(kind, "send", lambda rest, named: (rest[0].method, rest[0].url))
