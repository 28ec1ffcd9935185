"""Anthropic's and Ollama's clients, unmodified, against `polydraft serve` with the demo pair, with
tools in its target's chat template.

python3 peer_clients.py path/to/polydraft
"""

import json
import pathlib
import sys
import tempfile

import anthropic
import ollama
from serving import serving

DEMO = pathlib.Path(__file__).resolve().parents[3] / "demo"
MESSAGES = [{"role": "user", "content": "Returns the sum of two numbers."}]
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"],
          "additionalProperties": False}


def use_anthropic(url):
    client = anthropic.Anthropic(base_url=url, api_key="secret", max_retries=0, timeout=60)
    assert client.models.list().data[0].id == "tools"
    params = dict(model="tools", max_tokens=24, messages=MESSAGES, system="Write Rust.", extra_body={"seed": 1})
    answer = client.messages.create(**params)
    assert answer.content[0].text and answer.usage.output_tokens <= 24
    assert answer.stop_reason in ("end_turn", "max_tokens")
    with client.messages.stream(**params) as stream:
        text = "".join(stream.text_stream)
        assert text == answer.content[0].text
        assert stream.get_final_message().usage.output_tokens == answer.usage.output_tokens
    counted = client.messages.count_tokens(model="tools", messages=MESSAGES, system="Write Rust.")
    usage = answer.usage
    parts = (usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens)
    assert counted.input_tokens == sum(parts), (counted, usage)
    tool = {"name": "weather", "description": "The weather of a city.", "input_schema": SCHEMA}
    called = client.messages.create(
        model="tools", max_tokens=60, messages=MESSAGES, tools=[tool],
        tool_choice={"type": "tool", "name": "weather"},
    )
    call = next(block for block in called.content if block.type == "tool_use")
    assert called.stop_reason == "tool_use" and call.input["city"] in ("Oslo", "Rome"), called
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "rain"}
    messages = MESSAGES + [{"role": "assistant", "content": called.content}, {"role": "user", "content": [result]}]
    assert client.messages.create(model="tools", max_tokens=8, messages=messages, tools=[tool]).content
    prefilled = MESSAGES + [{"role": "assistant", "content": "pub fn add("}]
    assert client.messages.create(model="tools", max_tokens=8, messages=prefilled).content
    try:
        client.messages.create(model="gpt", max_tokens=1, messages=MESSAGES)
        raise AssertionError("another model was served")
    except anthropic.NotFoundError:
        pass


def use_ollama(url):
    client = ollama.Client(host=url, headers={"Authorization": "Bearer secret"})
    assert client.list().models[0].model == "tools"
    options = {"num_predict": 24, "seed": 1, "temperature": 0.8}
    answer = client.chat(model="tools", messages=MESSAGES, options=options)
    assert answer.message.content and answer.done and answer.eval_count <= 24
    streamed = client.chat(model="tools:latest", messages=MESSAGES, options=options, stream=True)
    assert "".join(part.message.content for part in streamed) == answer.message.content
    assert client.generate(model="tools", prompt="fn main", options=options, raw=True).response
    shaped = client.chat(model="tools", messages=MESSAGES, format=SCHEMA, options={"num_predict": 400, "seed": 1})
    assert json.loads(shaped.message.content)["city"] in ("Oslo", "Rome"), shaped
    assert "tools" in client.show("tools").capabilities
    assert client.ps().models[0].model == "tools"
    assert client.generate(model="tools", keep_alive=0).done_reason == "unload"
    assert not client.ps().models
    assert client.generate(model="tools").done_reason == "load" and client.ps().models
    try:
        client.chat(model="gpt", messages=MESSAGES)
        raise AssertionError("another model was served")
    except ollama.ResponseError as error:
        assert error.status_code == 404, error


def main():
    with tempfile.TemporaryDirectory() as folder:
        target = pathlib.Path(folder) / "tools"
        target.mkdir()
        for file in (DEMO / "target").iterdir():
            (target / file.name).symlink_to(file)
        (target / "chat_template.jinja").symlink_to(pathlib.Path(__file__).with_name("tools.jinja"))
        with serving(sys.argv[1], "--target", str(target), "--draft", str(DEMO / "draft")) as url:
            url = url.removesuffix("/v1")
            use_anthropic(url)
            use_ollama(url)
    print(f"anthropic {anthropic.__version__}, ollama: passed")


main()
