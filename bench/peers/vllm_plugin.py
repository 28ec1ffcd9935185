"""A plugin for pytest that runs vLLM's tests of its server without vLLM, and notes what each of them asked for.

Modules of vLLM are empty: what a test takes from them is a mock, but for the tokenizer. Tests of such modules fail without having
asked a server for anything, and are counted apart.
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

pytest_plugins = ["noted"]


def get_tokenizer(*_, **__):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(os.environ["PEERS_TOKENIZER"])


# torch is for pictures and embeddings, which are not here.
EMPTY = {"vllm", "torch"}


class Empty(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in EMPTY:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        known = {"get_tokenizer": get_tokenizer, "__version__": "0"}

        def attribute(name):
            if name.startswith("__") and name not in known:
                raise AttributeError(name)
            return known.get(name) or (type(name, (Exception,), {}) if name.endswith("Error") else mock.MagicMock(name=name))

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


noting(requests.Session, "request", lambda rest, named: (rest + tuple(named.get(w) for w in ("method", "url")))[:2])
# What the clients of openai and anthropic send with: the name depends on their version.
for library in filter(importlib.util.find_spec, ("httpx", "httpx2")):
    clients = importlib.import_module(library)
    for kind in (clients.Client, clients.AsyncClient):
        noting(kind, "send", lambda rest, named: (rest[0].method, rest[0].url))
