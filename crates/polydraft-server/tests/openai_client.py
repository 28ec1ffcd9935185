"""OpenAI's client, unmodified, against `polydraft serve` with the demo pair, and with tools in its target's chat template.

python3 openai_client.py path/to/polydraft [outputs of a schema, default 20]
"""

import contextlib
import json
import pathlib
import sys
import tempfile
import threading

import openai
from serving import serving

DEMO = pathlib.Path(__file__).resolve().parents[3] / "demo"

PROMPT = "impl Iterator for"
STRUCTURED_OUTPUTS = int(sys.argv[2]) if len(sys.argv) > 2 else 20
MESSAGES = [{"role": "user", "content": "Returns the sum of two numbers."}]


def completions(client):
    plain = client.completions.create(model="target", prompt=PROMPT, max_tokens=24, seed=1)
    assert plain.choices[0].text and plain.usage.completion_tokens <= 24
    assert plain.usage.speculation["target_calls"] <= plain.usage.completion_tokens
    again = client.completions.create(model="target", prompt=PROMPT, max_tokens=24, seed=1, echo=True)
    assert again.choices[0].text == PROMPT + plain.choices[0].text
    batch = client.completions.create(model="target", prompt=[PROMPT, "fn"], n=2, max_tokens=8, seed=1)
    assert [choice.index for choice in batch.choices] == [0, 1, 2, 3]
    scored = client.completions.create(model="target", prompt=PROMPT, max_tokens=8, temperature=0, logprobs=3)
    logprobs = scored.choices[0].logprobs
    for token, logprob, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs):
        # At temperature 0 the likeliest token is sampled.
        assert logprob <= 0 and abs(max(top.values()) - logprob) < 1e-9, (token, logprob, top)
    stopped = client.completions.create(model="target", prompt=PROMPT, max_tokens=200, seed=1, stop=["\n"])
    assert "\n" not in stopped.choices[0].text
    cached = client.completions.create(model="target", prompt=PROMPT, max_tokens=4, seed=3)
    assert cached.usage.prompt_tokens_details.cached_tokens >= cached.usage.prompt_tokens - 1 > 0, cached.usage
    # A prompt's tokens have the same probabilities as in an output.
    known = client.completions.create(model="target", prompt=PROMPT, max_tokens=6, temperature=0, logprobs=0)
    full = PROMPT + known.choices[0].text
    echoed = client.completions.create(model="target", prompt=full, max_tokens=0, echo=True, logprobs=1)
    logprobs = echoed.choices[0].logprobs
    assert logprobs.token_logprobs[0] is None and "".join(logprobs.tokens) == full, logprobs
    assert logprobs.text_offset == [len("".join(logprobs.tokens[:n])) for n in range(len(logprobs.tokens))]
    last = len(known.choices[0].logprobs.tokens)
    if logprobs.tokens[-last:] == known.choices[0].logprobs.tokens:
        for a, b in zip(logprobs.token_logprobs[-last:], known.choices[0].logprobs.token_logprobs):
            assert abs(a - b) < 1e-3, (a, b)


def chats(client):
    params = dict(model="target", messages=MESSAGES, max_completion_tokens=40, seed=2)
    answer = client.chat.completions.create(**params, logprobs=True, top_logprobs=2)
    content = answer.choices[0].message.content
    assert content and answer.choices[0].finish_reason in ("stop", "length")
    assert len(answer.choices[0].logprobs.content) == answer.usage.completion_tokens
    assert all(len(token.top_logprobs) == 2 for token in answer.choices[0].logprobs.content)
    chunks = list(client.chat.completions.create(**params, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == content
    assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens
    plain = client.chat.completions.create(**params, extra_body={"speculation": "none"})
    assert plain.usage.speculation["draft_tokens"] == 0
    block = client.chat.completions.create(**params, extra_body={"speculation": {"verifier": "block", "tree": "paths:1,4"}})
    assert block.usage.speculation["draft_tokens"] > 0
    penalised = client.chat.completions.create(
        **params, frequency_penalty=1.5, presence_penalty=0.5, logit_bias={"5": -100}, top_p=0.9
    )
    assert penalised.choices[0].message.content


def responses(client):
    params = dict(model="target", input="Returns the sum of two numbers.", max_output_tokens=40, extra_body={"seed": 2})
    answer = client.responses.create(**params)
    assert answer.status in ("completed", "incomplete") and answer.output_text
    events = list(client.responses.create(**params, stream=True))
    assert events[0].type == "response.created" and events[-1].response.output_text == answer.output_text
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == answer.output_text
    chat = client.chat.completions.create(model="target", messages=MESSAGES, max_completion_tokens=40, seed=2)
    assert chat.choices[0].message.content == answer.output_text


def structured_outputs(client):
    """JSON of a schema with speculation. The Rust tests compare its distribution with plain decoding."""
    schema = {
        "type": "object",
        "properties": {
            "kind": {"enum": ["struct", "enum", "trait"]},
            "public": {"type": "boolean"},
            "fields": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
        },
        "required": ["kind", "public", "fields"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "item", "schema": schema}}
    for first in range(0, STRUCTURED_OUTPUTS, 10):
        answer = client.chat.completions.create(
            model="target", messages=MESSAGES, n=10, seed=first, max_completion_tokens=400, response_format=form,
            frequency_penalty=0.2 if first % 20 else 0,
        )
        for choice in answer.choices:
            item = json.loads(choice.message.content)
            assert choice.finish_reason == "stop", choice
            assert set(item) == {"kind", "public", "fields"} and item["kind"] in ("struct", "enum", "trait"), item
            assert isinstance(item["public"], bool) and len(item["fields"]) <= 3, item
        assert answer.usage.speculation["target_calls"] < answer.usage.completion_tokens
    params = dict(model="target", prompt="{", max_tokens=30, seed=1, temperature=0, extra_body={"response_format": {"type": "json_object"}})
    text = client.completions.create(**params).choices[0].text
    assert text.lstrip().startswith("{"), text
    params["extra_body"]["speculation"] = "none"
    assert client.completions.create(**params).choices[0].text == text


TOOLS = {
    "weather": {
        "type": "object",
        "properties": {
            "city": {"enum": ["Paris", "Oslo"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
            "hours": {"type": "array", "items": {"$ref": "#/$defs/hour"}, "maxItems": 2},
        },
        "required": ["city", "days", "hours"],
        "additionalProperties": False,
        "$defs": {"hour": {"type": "integer", "minimum": 0, "maximum": 23}},
    },
    "ask": {
        "type": "object",
        "properties": {"sure": {"type": "boolean"}},
        "required": ["sure"],
        "additionalProperties": False,
    },
}
LISTED = [
    {"type": "function", "function": {"name": name, "description": "Does it.", "parameters": schema, "strict": True}}
    for name, schema in TOOLS.items()
]


def check_call(name, arguments):
    """Checks a call against its schema."""
    arguments = json.loads(arguments)
    assert set(arguments) == set(TOOLS[name]["required"]), arguments
    if name == "ask":
        assert isinstance(arguments["sure"], bool), arguments
        return
    assert arguments["city"] in ("Paris", "Oslo") and 1 <= arguments["days"] <= 9, arguments
    assert len(arguments["hours"]) <= 2 and all(0 <= hour <= 23 for hour in arguments["hours"]), arguments


def tools(client):
    """Required and named calls, full and streamed, with speculation: all match their schemas."""
    params = dict(model="tools", messages=MESSAGES, tools=LISTED, max_completion_tokens=200)
    names, forced, passes, generated = set(), 0, 0, 0
    for seed in range(0, STRUCTURED_OUTPUTS, 5):
        answer = client.chat.completions.create(**params, tool_choice="required", parallel_tool_calls=False, n=5, seed=seed)
        for choice in answer.choices:
            [call] = choice.message.tool_calls
            assert choice.finish_reason == "tool_calls" and choice.message.content is None, choice
            assert call.type == "function" and call.id, call
            check_call(call.function.name, call.function.arguments)
            names.add(call.function.name)
        speculation = answer.usage.speculation
        forced, passes = forced + speculation["forced_tokens"], passes + speculation["target_calls"]
        generated += answer.usage.completion_tokens
    assert names == set(TOOLS) and forced > generated / 3 and passes < generated / 2, (names, forced, passes, generated)
    print(f"calls: {generated} tokens in {passes} passes, {forced} of them forced", file=sys.stderr)
    for name in TOOLS:
        choice = {"type": "function", "function": {"name": name}}
        answer = client.chat.completions.create(**params, tool_choice=choice, parallel_tool_calls=False, seed=1)
        [call] = answer.choices[0].message.tool_calls
        assert call.function.name == name
        # The same seed gives the same call when streamed. At temperature 0 plain decoding gives the
        # same call too.
        chunks = client.chat.completions.create(**params, tool_choice=choice, parallel_tool_calls=False, seed=1, stream=True)
        deltas = [delta for chunk in chunks for delta in chunk.choices[0].delta.tool_calls or []]
        # A short call may be decided in a single step, and is sent as a single chunk.
        assert deltas[0].function.name == name and deltas[0].id and len(deltas) > (name == "weather"), deltas
        assert "".join(delta.function.arguments for delta in deltas) == call.function.arguments
        greedy = dict(params, tool_choice=choice, parallel_tool_calls=False, temperature=0)
        plain = client.chat.completions.create(**greedy, extra_body={"speculation": "none"}).choices[0].message
        drafted = client.chat.completions.create(**greedy).choices[0].message
        assert plain.tool_calls[0].function == drafted.tool_calls[0].function, (plain, drafted)
    # The call and its result are sent back as the client has them.
    history = [*MESSAGES, answer.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "yes"}]
    answer = client.chat.completions.create(**dict(params, messages=history), seed=3, max_tokens=200)
    assert answer.choices[0].message.content or answer.choices[0].message.tool_calls
    # Optional calls match their schemas too.
    for seed in range(3):
        message = client.chat.completions.create(**params, seed=seed).choices[0].message
        for call in message.tool_calls or []:
            check_call(call.function.name, call.function.arguments)
    # With a form the answer is a call or has the form.
    shaped = {"type": "json_schema", "json_schema": {"name": "f", "schema": {"const": "no"}}}
    for seed in range(3):
        message = client.chat.completions.create(**params, response_format=shaped, seed=seed).choices[0].message
        assert message.tool_calls or '"no"'.startswith(message.content) or message.content == '"no"', message
    # A named tool is called once.
    named = {"type": "function", "function": {"name": LISTED[0]["function"]["name"]}}
    for seed in range(3):
        message = client.chat.completions.create(**{**params, "tool_choice": named, "max_completion_tokens": 400}, seed=seed)
        assert len(message.choices[0].message.tool_calls) == 1, message
    # Of the described tools only some may be called.
    for name in TOOLS:
        fields = {"mode": "required", "tools": [{"type": "function", "function": {"name": name}}]}
        some = {"type": "allowed_tools", "allowed_tools": fields}
        for seed in range(3):
            answer = client.chat.completions.create(**{**params, "max_completion_tokens": 400}, tool_choice=some, seed=seed,
                                                    parallel_tool_calls=False)
            [call] = answer.choices[0].message.tool_calls
            assert call.function.name == name, call
    no_tools = client.chat.completions.create(**params, tool_choice="none", seed=1)
    without_tools = client.chat.completions.create(model="tools", messages=MESSAGES, max_completion_tokens=200, seed=1)
    assert no_tools.choices[0].message.content == without_tools.choices[0].message.content
    assert no_tools.usage.prompt_tokens < answer.usage.prompt_tokens
    for param, changes in [
        ("tool_choice", dict(tool_choice={"type": "function", "function": {"name": "other"}})),
        ("tools[1].function.name", dict(tools=[LISTED[0], LISTED[0]])),
        ("response_format", dict(response_format={"type": "xml"})),
    ]:
        assert_rejected(lambda: client.chat.completions.create(**{**params, **changes}), param)


def tools_in_responses(client):
    listed = [{"type": "function", "name": name, "parameters": schema} for name, schema in TOOLS.items()]
    params = dict(model="tools", input="Returns the sum of two numbers.", tools=listed, tool_choice="required", max_output_tokens=200,
                 parallel_tool_calls=False, extra_body={"seed": 2})
    answer = client.responses.create(**params)
    [call] = answer.output
    assert call.type == "function_call" and answer.status == "completed"
    check_call(call.name, call.arguments)
    for name in TOOLS:
        some = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": name}]}
        assert client.responses.create(**{**params, "tool_choice": some}).output[0].name == name
    events = list(client.responses.create(**params, stream=True))
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(deltas) == call.arguments and events[-1].response.output[0].arguments == call.arguments
    history = [{"role": "user", "content": "Returns the sum."}, call,
               {"type": "function_call_output", "call_id": call.call_id, "output": "yes"}]
    again = client.responses.create(model="tools", input=history, max_output_tokens=20, extra_body={"seed": 4, "min_tokens": 4})
    assert again.output_text
    scored = dict(model="tools", input="Returns the sum.", max_output_tokens=12, include=["message.output_text.logprobs"], top_logprobs=2,
                  extra_body={"seed": 4})
    full = client.responses.create(**scored).output[0].content[0].logprobs
    events = client.responses.create(**scored, stream=True)
    streamed = [token for event in events if event.type == "response.output_text.delta" for token in event.logprobs]
    assert len(full) == 12 and all(len(token.top_logprobs) == 2 for token in full)
    assert [token.token for token in streamed] == [token.token for token in full[: len(streamed)]] and streamed


def assert_rejected(request, param):
    try:
        request()
    except openai.BadRequestError as error:
        assert error.param == param, (param, error.body)
    else:
        raise AssertionError(f"{param} was not rejected")


def concurrent_streams(client):
    """A seed gives the same output alone and among other streams, half of which disconnect."""
    params = dict(model="target", prompt=PROMPT, max_tokens=48, seed=3)
    single = client.completions.create(**params).choices[0].text
    outputs = []

    def read():
        outputs.append("".join(chunk.choices[0].text for chunk in client.completions.create(**params, stream=True)))

    def disconnect():
        stream = client.completions.create(model="target", prompt="pub fn", max_tokens=400, stream=True)
        next(iter(stream))
        stream.close()

    threads = [threading.Thread(target=target) for target in [read, disconnect] * 4]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert outputs == [single] * 4, (single, outputs)


def errors(client, base_url):
    def rejected(kind, param, **params):
        try:
            client.completions.create(**{"model": "target", "prompt": PROMPT, **params})
        except kind as error:
            assert error.param == param, (param, error.body)
        else:
            raise AssertionError(f"{param} was not rejected")

    rejected(openai.BadRequestError, "temperature", temperature=-1)
    rejected(openai.BadRequestError, "suffix", suffix="}")
    rejected(openai.NotFoundError, "model", model="gpt")
    misspelt = {"model": "target", "prompt": PROMPT, "max_tokens": 1, "extra_body": {"temprature": 1}}
    answer = client.completions.with_raw_response.create(**misspelt)
    assert answer.headers["x-polydraft-ignored"] == "temprature", answer.headers
    try:
        openai.OpenAI(base_url=base_url, api_key="wrong", max_retries=0).models.list()
    except openai.AuthenticationError as error:
        assert error.code == "invalid_api_key"
    else:
        raise AssertionError("an invalid key was accepted")


@contextlib.contextmanager
def served(*arguments):
    """Yields a client of a server with these arguments, and its address."""
    with serving(sys.argv[1], *arguments) as base_url:
        yield openai.OpenAI(base_url=base_url, api_key="secret", max_retries=0, timeout=60), base_url


def main():
    with served() as (client, base_url):
        assert [model.id for model in client.models.list()] == ["target"]
        assert client.models.retrieve("target").object == "model"
        completions(client)
        chats(client)
        responses(client)
        structured_outputs(client)
        concurrent_streams(client)
        errors(client, base_url)
        assert_rejected(lambda: client.chat.completions.create(model="target", messages=MESSAGES, tools=LISTED), "tools")
    with tempfile.TemporaryDirectory() as folder:
        target = pathlib.Path(folder) / "tools"
        target.mkdir()
        for file in (DEMO / "target").iterdir():
            (target / file.name).symlink_to(file)
        (target / "chat_template.jinja").symlink_to(pathlib.Path(__file__).with_name("tools.jinja"))
        with served("--target", str(target), "--draft", str(DEMO / "draft")) as (client, _):
            tools(client)
            tools_in_responses(client)
    print(f"openai {openai.__version__}: passed")


main()
