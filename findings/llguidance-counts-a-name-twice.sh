#!/usr/bin/env bash
# llguidance 1.9.1: minProperties and maxProperties of a JSON schema count the members that are written, not the names. For an object
# whose members are not listed, {"a": 1, "a": 2} satisfies minProperties 2 and is refused by maxProperties 1, though it has one
# property once it is read, so that the validator jsonschema says the opposite of both.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check llguidance==1.9.1 jsonschema==4.26.0
"$folder/venv/bin/python" - <<'PYTHON'
import json
from importlib.metadata import version

import jsonschema
from llguidance import LLMatcher, LLTokenizer

tokenizer = LLTokenizer("byte")
print("llguidance", version("llguidance"), "jsonschema", version("jsonschema"))


def accepts(schema, text):
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(json.dumps(schema)))
    assert not matcher.is_error(), matcher.get_error()
    tokens = tokenizer.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


text = '{"a":1,"a":2}'
for limit, counted in (({"minProperties": 2}, True), ({"maxProperties": 1}, False)):
    schema = {"type": "object", **limit}
    found = accepts(schema, text)
    valid = jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))
    print(json.dumps(limit), "llguidance takes it:", found, "- jsonschema takes what is read:", valid)
    assert found is counted and valid is not counted, limit
# A name that the schema lists is refused the second time.
assert not accepts({"type": "object", "properties": {"a": {}}}, text)
PYTHON
# Seen on 2026-11-30:
# llguidance 1.9.1 jsonschema 4.26.0
# {"minProperties": 2} llguidance takes it: True - jsonschema takes what is read: False
# {"maxProperties": 1} llguidance takes it: False - jsonschema takes what is read: True
