"""litellm, langchain, instructor, pydantic-ai and outlines, unmodified, against `polydraft serve` with the demo pair,
with tools in its target's chat template.

python3 more_clients.py path/to/polydraft
"""

import asyncio
import os
import pathlib
import sys
import tempfile
from enum import Enum

from serving import serving

DEMO = pathlib.Path(__file__).resolve().parents[3] / "demo"
QUESTION = "Returns the sum of two numbers."
MESSAGES = [{"role": "user", "content": QUESTION}]


def use_litellm(url):
    import litellm

    params = dict(messages=MESSAGES, max_tokens=16, api_key="secret", seed=1)
    answer = litellm.completion(model="openai/tools", api_base=url, **params)
    assert answer.choices[0].message.content
    streamed = litellm.completion(model="openai/tools", api_base=url, stream=True, **params)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in streamed)
    assert text == answer.choices[0].message.content
    # Through its Anthropic provider.
    params = dict(messages=MESSAGES, max_tokens=16, api_key="secret")
    answer = litellm.completion(model="anthropic/tools", api_base=url.removesuffix("/v1"), **params)
    assert answer.choices[0].message.content
    answer = asyncio.run(
        litellm.anthropic_messages(model="anthropic/tools", api_base=url.removesuffix("/v1"), **params)
    )
    assert answer["content"][0]["text"], answer
    answer = litellm.completion(model="ollama_chat/tools", api_base=url.removesuffix("/v1"), **params)
    assert answer.choices[0].message.content


def use_langchain(url):
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model="tools", base_url=url, api_key="secret", max_tokens=48, temperature=0.8)
    assert model.invoke(QUESTION).content
    assert "".join(chunk.content for chunk in model.stream(QUESTION))

    @tool
    def weather(city: str) -> str:
        """The weather of a city."""
        return "rain"

    called = model.bind_tools([weather], tool_choice="weather").bind(max_tokens=400).invoke(QUESTION)
    assert called.tool_calls[0]["name"] == "weather", called


def use_instructor(url):
    import instructor
    import openai
    from pydantic import BaseModel, SecretStr

    class Colour(Enum):
        RED = "red"
        BLUE = "blue"

    class Point(BaseModel):
        colour: Colour
        wide: bool
        name: SecretStr | None = None

    for mode in (instructor.Mode.TOOLS, instructor.Mode.RESPONSES_TOOLS):
        client = instructor.from_openai(openai.OpenAI(base_url=url, api_key="secret"), mode=mode)
        for seed in range(8):
            limit = {"max_tokens": 200} if mode == instructor.Mode.TOOLS else {"max_output_tokens": 200}
            point = client.chat.completions.create(
                model="tools", messages=MESSAGES, response_model=Point, max_retries=0,
                extra_body={"seed": seed}, **limit,
            )
            assert isinstance(point, Point), point


def use_pydantic_ai(url):
    from pydantic import BaseModel
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    class Answer(BaseModel):
        yes: bool

    model = OpenAIChatModel("tools", provider=OpenAIProvider(base_url=url, api_key="secret"))
    agent = Agent(model, output_type=Answer, model_settings={"max_tokens": 200})
    assert agent.run_sync(QUESTION).output.yes in (True, False)


def use_outlines(url):
    from typing import Literal

    import openai
    import outlines

    model = outlines.from_vllm(openai.OpenAI(base_url=url, api_key="secret"), "tools")
    for _ in range(4):
        assert model("Red or blue?", Literal["red", "blue"], max_tokens=20) in ("red", "blue")


def main():
    os.environ["LITELLM_LOG"] = "ERROR"
    with tempfile.TemporaryDirectory() as folder:
        target = pathlib.Path(folder) / "tools"
        target.mkdir()
        for file in (DEMO / "target").iterdir():
            (target / file.name).symlink_to(file)
        (target / "chat_template.jinja").symlink_to(pathlib.Path(__file__).with_name("tools.jinja"))
        failed = []
        with serving(sys.argv[1], "--target", str(target), "--draft", str(DEMO / "draft")) as url:
            for check in (use_litellm, use_langchain, use_instructor, use_pydantic_ai, use_outlines):
                try:
                    check(url)
                    print(f"{check.__name__}: passed", flush=True)
                except Exception as error:
                    failed.append(check.__name__)
                    print(f"{check.__name__}: {type(error).__name__}: {str(error)[:600]}", flush=True)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


main()
