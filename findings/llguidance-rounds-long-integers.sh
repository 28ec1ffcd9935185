#!/usr/bin/env bash
# llguidance 1.9.1: integers of a JSON schema beyond 2^53 are rounded to 64-bit floating point before the grammar is built, without
# an error or a warning. A grammar for const 9007199254740993 (2^53 + 1) refuses that text and takes 9007199254740992 instead; enum
# and minimum do the same. Ids of databases and of messages are as long, and are a string's worth of JSON to most validators.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check llguidance==1.9.1
"$folder/venv/bin/python" - <<'PYTHON'
import json
from importlib.metadata import version

from llguidance import LLMatcher, LLTokenizer

tokenizer = LLTokenizer("byte")
print("llguidance", version("llguidance"))


def accepts(schema, text):
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(json.dumps(schema)))
    assert not matcher.is_error(), matcher.get_error()
    tokens = tokenizer.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


asked, rounded = 2**53 + 1, 2**53
schemas = [{"const": asked}, {"enum": [asked]}, {"type": "integer", "minimum": asked}]
for schema in schemas:
    found = {number: accepts(schema, str(number)) for number in (asked, rounded)}
    print(json.dumps(schema), "takes", found)
    assert found[rounded], schema
assert not accepts(schemas[0], str(asked)) and not accepts(schemas[1], str(asked))
# 64 bits of floating point hold these.
assert accepts({"const": rounded}, str(rounded)) and not accepts({"const": rounded}, str(asked))
PYTHON
# Seen on 2026-11-30:
# llguidance 1.9.1
# {"const": 9007199254740993} takes {9007199254740993: False, 9007199254740992: True}
# {"enum": [9007199254740993]} takes {9007199254740993: False, 9007199254740992: True}
# {"type": "integer", "minimum": 9007199254740993} takes {9007199254740993: True, 9007199254740992: True}
