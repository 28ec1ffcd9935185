"""A plugin for pytest that runs llama-server's tests on another model, and notes what they ask for.

Texts and token counts of the tests' own model (of 260,000 weights) are not those of ours: a text
that a test compares with a pattern must only be there, and where a test's parameters say how many
tokens a prompt has, any number is taken.
"""

import requests
import utils
from noted import asked

pytest_plugins = ["noted"]


class AnyCount(int):
    """Equal to every positive number."""

    def __eq__(self, other):
        return isinstance(other, int) and other > 0

    __hash__ = int.__hash__


ANY = {"n_prompt": AnyCount(), "re_content": ""}


def noting(method):
    def ask(self, verb, path, *rest, **named):
        asked.append(f"{verb} {path.split('?')[0]}")
        answer = method(self, verb, path, *rest, **named)
        if isinstance(getattr(answer, "headers", None), dict):
            # Names of headers have no case.
            answer.headers = requests.structures.CaseInsensitiveDict(answer.headers)
        return answer

    return ask


utils.ServerPreset.load_all = staticmethod(lambda: None)
utils.match_regex = lambda regex, text: isinstance(text, str)
for name in ("make_request", "make_stream_request"):
    setattr(utils.ServerProcess, name, noting(getattr(utils.ServerProcess, name)))


def pytest_collection_modifyitems(items):
    for item in items:
        parameters = getattr(item, "callspec", None)
        for name in ANY.keys() & (parameters.params.keys() if parameters else set()):
            parameters.params[name] = ANY[name]
