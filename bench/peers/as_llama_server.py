#!/usr/bin/env python3
"""Stands in for llama-server in its own tests: takes its command line, starts another server.

Which one is in the environment: PEERS_SERVER=polydraft translates the options and starts
PEERS_PROGRAM, PEERS_SERVER=llama-server starts PEERS_PROGRAM with the options as they are. Either
way the model is PEERS_MODEL, as the tests' own ones are on a hub. An option without a counterpart
is left out: what a test wanted of it, the test will miss.
"""

import json
import os
import sys

# Of llama-server's options, those that say which model: they give way to PEERS_MODEL.
MODELS = {"--model", "--model-url", "--hf-repo", "--hf-file"}
# How they are called by `polydraft serve`.
SAME = {
    "--port": "--port",
    "--temp": "--temperature",
    "--n-predict": "--max-tokens",
    "--parallel": "--parallel",
    "--api-key": "--api-key",
    "--chat-template-file": "--chat-template",
}
# Without a value.
FLAGS = set(
    """
    --offline --cont-batching --embedding --reranking --metrics --kv-unified --swa-full --slots
    --no-slots --context-shift --no-ui --no-models-autoload --jinja --no-jinja --no-mmproj
    --no-cache-idle-slots --ui-mcp-proxy --backend_sampling --verbose
    """.split()
)


def pairs(arguments):
    """Options with their values, or None."""
    rest = list(arguments)
    while rest:
        option = rest.pop(0)
        yield option, None if option in FLAGS else rest.pop(0)


def translated(arguments):
    # As llama-server does: any name of the model, pages from anywhere.
    answer, defaults = ["serve", os.environ["PEERS_MODEL"], "--ignore-published"], {}
    # What llama-server does unless it is told otherwise, and what is an option here.
    answer += ["--chat-template-extras", "--prefill-assistant"]
    if "--metrics" not in arguments:
        answer.append("--no-metrics")
    for option, value in pairs(arguments):
        if option in SAME:
            # There -1 is no limit.
            answer += [SAME[option], "0" if (option, value) == ("--n-predict", "-1") else value]
        elif option == "--alias":
            answer += [part for name in value.split(",") for part in ("--name", name)]
        elif option == "--cors-origins" and ("://" in value or value == "localhost"):
            answer += ["--cors", value]
        elif option == "--host":
            answer += ["--host", value]
        elif option == "--seed" and int(value) >= 0:
            defaults["seed"] = int(value)
        elif option == "--verbose":
            defaults["verbose"] = True
        elif option == "--reasoning":
            # There it is set unless it is off; here templates know of it only if they are told.
            thinking = json.dumps({"enable_thinking": value != "off"})
            answer += ["--chat-template-kwargs", thinking]
        elif option == "--ctx-size":
            # There the slots share it.
            parallel = int(dict(pairs(arguments)).get("--parallel", 1))
            slots = 1 if "--kv-unified" in arguments else parallel
            answer += ["--context", str(int(value) // slots)]
        elif option == "--spec-type" or option == "--model-draft":
            answer += [] if "--draft" in answer else ["--draft", "self"]
    if "--draft" not in answer:
        answer += ["--draft", "ngram"]
    if "--cors-origins" not in arguments:
        answer += ["--cors", "*"]
    return [*answer, "--request-defaults", json.dumps(defaults), "--name", "*"]


def as_they_are(arguments):
    answer = ["--model", os.environ["PEERS_MODEL"]]
    for option, value in pairs(arguments):
        if option == "--model-draft":
            value = os.environ["PEERS_MODEL"]
        if option not in MODELS | {"--offline"}:
            answer += [option] if value is None else [option, value]
    return answer


if __name__ == "__main__":
    arguments = {"polydraft": translated, "llama-server": as_they_are}[os.environ["PEERS_SERVER"]](
        sys.argv[1:]
    )
    os.execv(os.environ["PEERS_PROGRAM"], [os.environ["PEERS_PROGRAM"], *arguments])
