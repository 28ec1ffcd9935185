"""The official client, unmodified, against `polydraft serve` with the demo pair, and with its target told of tools.

python3 openai_client.py path/to/polydraft [texts of a schema, default 20]
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
FORMS = int(sys.argv[2]) if len(sys.argv) > 2 else 20
MESSAGES = [{"role": "user", "content": "Returns the sum of two numbers."}]


def completions(client):
    plain = client.completions.create(model="target", prompt=PROMPT, max_tokens=24, seed=1)
    assert plain.choices[0].text and plain.usage.completion_tokens <= 24
    assert plain.usage.speculation["target_calls"] <= plain.usage.completion_tokens
    again = client.completions.create(model="target", prompt=PROMPT, max_tokens=24, seed=1, echo=True)
    assert again.choices[0].text == PROMPT + plain.choices[0].text
    several = client.completions.create(model="target", prompt=[PROMPT, "fn"], n=2, max_tokens=8, seed=1)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    scored = client.completions.create(model="target", prompt=PROMPT, max_tokens=8, temperature=0, logprobs=3)
    logprobs = scored.choices[0].logprobs
    for token, own, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs):
        # At temperature 0 the likeliest is taken.
        assert own <= 0 and abs(max(top.values()) - own) < 1e-9, (token, own, top)
    stopped = client.completions.create(model="target", prompt=PROMPT, max_tokens=200, seed=1, stop=["\n"])
    assert "\n" not in stopped.choices[0].text
    cached = client.completions.create(model="target", prompt=PROMPT, max_tokens=4, seed=3)
    assert cached.usage.prompt_tokens_details.cached_tokens >= cached.usage.prompt_tokens - 1 > 0, cached.usage
    # A prompt's tokens have the probabilities that they have as a continuation.
    known = client.completions.create(model="target", prompt=PROMPT, max_tokens=6, temperature=0, logprobs=0)
    whole = PROMPT + known.choices[0].text
    echoed = client.completions.create(model="target", prompt=whole, max_tokens=0, echo=True, logprobs=1)
    logprobs = echoed.choices[0].logprobs
    assert logprobs.token_logprobs[0] is None and "".join(logprobs.tokens) == whole, logprobs
    assert logprobs.text_offset == [len("".join(logprobs.tokens[:n])) for n in range(len(logprobs.tokens))]
    last = len(known.choices[0].logprobs.tokens)
    if logprobs.tokens[-last:] == known.choices[0].logprobs.tokens:
        for a, b in zip(logprobs.token_logprobs[-last:], known.choices[0].logprobs.token_logprobs):
            assert abs(a - b) < 1e-3, (a, b)


def chats(client):
    asked = dict(model="target", messages=MESSAGES, max_completion_tokens=40, seed=2)
    answer = client.chat.completions.create(**asked, logprobs=True, top_logprobs=2)
    content = answer.choices[0].message.content
    assert content and answer.choices[0].finish_reason in ("stop", "length")
    assert len(answer.choices[0].logprobs.content) == answer.usage.completion_tokens
    assert all(len(token.top_logprobs) == 2 for token in answer.choices[0].logprobs.content)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == content
    assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens
    plain = client.chat.completions.create(**asked, extra_body={"speculation": "none"})
    assert plain.usage.speculation["draft_tokens"] == 0
    block = client.chat.completions.create(**asked, extra_body={"speculation": {"verifier": "block", "tree": "paths:1,4"}})
    assert block.usage.speculation["draft_tokens"] > 0
    penalised = client.chat.completions.create(
        **asked, frequency_penalty=1.5, presence_penalty=0.5, logit_bias={"5": -100}, top_p=0.9
    )
    assert penalised.choices[0].message.content


def responses(client):
    asked = dict(model="target", input="Returns the sum of two numbers.", max_output_tokens=40, extra_body={"seed": 2})
    answer = client.responses.create(**asked)
    assert answer.status in ("completed", "incomplete") and answer.output_text
    events = list(client.responses.create(**asked, stream=True))
    assert events[0].type == "response.created" and events[-1].response.output_text == answer.output_text
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == answer.output_text
    chat = client.chat.completions.create(model="target", messages=MESSAGES, max_completion_tokens=40, seed=2)
    assert chat.choices[0].message.content == answer.output_text


def forms(client):
    """JSON of a schema, every time, with speculation; the same law as plain decoding is the Rust tests' matter."""
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
    for first in range(0, FORMS, 10):
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
    asked = dict(model="target", prompt="{", max_tokens=30, seed=1, temperature=0, extra_body={"response_format": {"type": "json_object"}})
    text = client.completions.create(**asked).choices[0].text
    assert text.lstrip().startswith("{"), text
    asked["extra_body"]["speculation"] = "none"
    assert client.completions.create(**asked).choices[0].text == text


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


def checked(name, arguments):
    """A call as its schema says."""
    arguments = json.loads(arguments)
    assert set(arguments) == set(TOOLS[name]["required"]), arguments
    if name == "ask":
        assert isinstance(arguments["sure"], bool), arguments
        return
    assert arguments["city"] in ("Paris", "Oslo") and 1 <= arguments["days"] <= 9, arguments
    assert len(arguments["hours"]) <= 2 and all(0 <= hour <= 23 for hour in arguments["hours"]), arguments


def tools(client):
    """Calls, asked for and named, whole and streamed: as their schemas say, every time, with speculation."""
    asked = dict(model="tools", messages=MESSAGES, tools=LISTED, max_completion_tokens=200)
    names, forced, passes, written = set(), 0, 0, 0
    for seed in range(0, FORMS, 5):
        answer = client.chat.completions.create(**asked, tool_choice="required", parallel_tool_calls=False, n=5, seed=seed)
        for choice in answer.choices:
            [call] = choice.message.tool_calls
            assert choice.finish_reason == "tool_calls" and choice.message.content is None, choice
            assert call.type == "function" and call.id, call
            checked(call.function.name, call.function.arguments)
            names.add(call.function.name)
        speculation = answer.usage.speculation
        forced, passes = forced + speculation["forced_tokens"], passes + speculation["target_calls"]
        written += answer.usage.completion_tokens
    assert names == set(TOOLS) and forced > written / 3 and passes < written / 2, (names, forced, passes, written)
    print(f"calls: {written} tokens in {passes} passes, {forced} of them certain", file=sys.stderr)
    for name in TOOLS:
        choice = {"type": "function", "function": {"name": name}}
        answer = client.chat.completions.create(**asked, tool_choice=choice, parallel_tool_calls=False, seed=1)
        [call] = answer.choices[0].message.tool_calls
        assert call.function.name == name
        # The same seed gives the same call, streamed; and so does plain decoding where nothing is
        # left to chance.
        pieces = client.chat.completions.create(**asked, tool_choice=choice, parallel_tool_calls=False, seed=1, stream=True)
        deltas = [delta for chunk in pieces for delta in chunk.choices[0].delta.tool_calls or []]
        # A short call may be decided in a single step, and then it comes as a single piece.
        assert deltas[0].function.name == name and deltas[0].id and len(deltas) > (name == "weather"), deltas
        assert "".join(delta.function.arguments for delta in deltas) == call.function.arguments
        greedy = dict(asked, tool_choice=choice, parallel_tool_calls=False, temperature=0)
        plain = client.chat.completions.create(**greedy, extra_body={"speculation": "none"}).choices[0].message
        drafted = client.chat.completions.create(**greedy).choices[0].message
        assert plain.tool_calls[0].function == drafted.tool_calls[0].function, (plain, drafted)
    # The call and what came of it go back, as the client has them.
    history = [*MESSAGES, answer.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "yes"}]
    answer = client.chat.completions.create(**dict(asked, messages=history), seed=3, max_tokens=200)
    assert answer.choices[0].message.content or answer.choices[0].message.tool_calls
    # Free to call or not, but not to call otherwise than the schemas say.
    for seed in range(3):
        message = client.chat.completions.create(**asked, seed=seed).choices[0].message
        for call in message.tool_calls or []:
            checked(call.function.name, call.function.arguments)
    # Beside a form the answer is a call, or of that form.
    shaped = {"type": "json_schema", "json_schema": {"name": "f", "schema": {"const": "no"}}}
    for seed in range(3):
        message = client.chat.completions.create(**asked, response_format=shaped, seed=seed).choices[0].message
        assert message.tool_calls or '"no"'.startswith(message.content) or message.content == '"no"', message
    # One tool by its name is one call.
    named = {"type": "function", "function": {"name": LISTED[0]["function"]["name"]}}
    for seed in range(3):
        message = client.chat.completions.create(**{**asked, "tool_choice": named, "max_completion_tokens": 400}, seed=seed)
        assert len(message.choices[0].message.tool_calls) == 1, message
    none = client.chat.completions.create(**asked, tool_choice="none", seed=1)
    without = client.chat.completions.create(model="tools", messages=MESSAGES, max_completion_tokens=200, seed=1)
    assert none.choices[0].message.content == without.choices[0].message.content
    assert none.usage.prompt_tokens < answer.usage.prompt_tokens
    for param, wrong in [
        ("tool_choice", dict(tool_choice={"type": "function", "function": {"name": "other"}})),
        ("tools[0].type", dict(tools=[{"type": "custom", "function": {"name": "a"}}])),
        ("tools[1].function.name", dict(tools=[LISTED[0], LISTED[0]])),
        ("response_format", dict(response_format={"type": "xml"})),
    ]:
        is_refused(lambda: client.chat.completions.create(**{**asked, **wrong}), param)


def tools_in_responses(client):
    listed = [{"type": "function", "name": name, "parameters": schema} for name, schema in TOOLS.items()]
    asked = dict(model="tools", input="Returns the sum of two numbers.", tools=listed, tool_choice="required", max_output_tokens=200,
                 parallel_tool_calls=False, extra_body={"seed": 2})
    answer = client.responses.create(**asked)
    [call] = answer.output
    assert call.type == "function_call" and answer.status == "completed"
    checked(call.name, call.arguments)
    events = list(client.responses.create(**asked, stream=True))
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(deltas) == call.arguments and events[-1].response.output[0].arguments == call.arguments
    history = [{"role": "user", "content": "Returns the sum."}, call,
               {"type": "function_call_output", "call_id": call.call_id, "output": "yes"}]
    again = client.responses.create(model="tools", input=history, max_output_tokens=20, extra_body={"seed": 4, "min_tokens": 4})
    assert again.output_text
    scored = dict(model="tools", input="Returns the sum.", max_output_tokens=12, include=["message.output_text.logprobs"], top_logprobs=2,
                  extra_body={"seed": 4})
    whole = client.responses.create(**scored).output[0].content[0].logprobs
    events = client.responses.create(**scored, stream=True)
    streamed = [token for event in events if event.type == "response.output_text.delta" for token in event.logprobs]
    assert len(whole) == 12 and all(len(token.top_logprobs) == 2 for token in whole)
    assert [token.token for token in streamed] == [token.token for token in whole[: len(streamed)]] and streamed


def is_refused(ask, param):
    try:
        ask()
    except openai.BadRequestError as error:
        assert error.param == param, (param, error.body)
    else:
        raise AssertionError(f"{param} was not refused")


def streams_together(client):
    """A seed gives the same text alone and among others, streamed; half of the others go away."""
    asked = dict(model="target", prompt=PROMPT, max_tokens=48, seed=3)
    alone = client.completions.create(**asked).choices[0].text
    texts = []

    def read():
        texts.append("".join(chunk.choices[0].text for chunk in client.completions.create(**asked, stream=True)))

    def leave():
        stream = client.completions.create(model="target", prompt="pub fn", max_tokens=400, stream=True)
        next(iter(stream))
        stream.close()

    threads = [threading.Thread(target=target) for target in [read, leave] * 4]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert texts == [alone] * 4, (alone, texts)


def errors(client, base_url):
    def refused(kind, param, **asked):
        try:
            client.completions.create(**{"model": "target", "prompt": PROMPT, **asked})
        except kind as error:
            assert error.param == param, (param, error.body)
        else:
            raise AssertionError(f"{param} was not refused")

    refused(openai.BadRequestError, "temperature", temperature=-1)
    refused(openai.BadRequestError, "suffix", suffix="}")
    refused(openai.NotFoundError, "model", model="gpt")
    misspelt = {"model": "target", "prompt": PROMPT, "max_tokens": 1, "extra_body": {"temprature": 1}}
    answer = client.completions.with_raw_response.create(**misspelt)
    assert answer.headers["x-polydraft-ignored"] == "temprature", answer.headers
    try:
        openai.OpenAI(base_url=base_url, api_key="wrong", max_retries=0).models.list()
    except openai.AuthenticationError as error:
        assert error.code == "invalid_api_key"
    else:
        raise AssertionError("a wrong key opened the door")


@contextlib.contextmanager
def served(*arguments):
    """A client of a server with these arguments, and its address."""
    with serving(sys.argv[1], *arguments) as base_url:
        yield openai.OpenAI(base_url=base_url, api_key="secret", max_retries=0, timeout=60), base_url


def main():
    with served() as (client, base_url):
        assert [model.id for model in client.models.list()] == ["target"]
        assert client.models.retrieve("target").object == "model"
        completions(client)
        chats(client)
        responses(client)
        forms(client)
        streams_together(client)
        errors(client, base_url)
        is_refused(lambda: client.chat.completions.create(model="target", messages=MESSAGES, tools=LISTED), "tools")
    with tempfile.TemporaryDirectory() as folder:
        target = pathlib.Path(folder) / "tools"
        target.mkdir()
        for file in (DEMO / "target").iterdir():
            (target / file.name).symlink_to(file)
        (target / "chat_template.jinja").symlink_to(pathlib.Path(__file__).with_name("tools.jinja"))
        with served("--target", str(target), "--draft", str(DEMO / "draft")) as (client, _):
            tools(client)
            tools_in_responses(client)
    print(f"openai {openai.__version__}: all is well")


main()
