"""Agents, unmodified, that call two tools and finish, against `polydraft serve` with published chat templates.

agent_programs.py PROGRAM TEMPLATES [--npm FOLDER] [--only PART]

OpenAI's agents SDK, pydantic-ai and langchain; with `--npm`, where their packages lie, Claude Code, Codex and OpenCode. A
model writes by the template what each needs: a call, another one, and an answer. Between agent and server a proxy pads
the question to the position where the script begins, and changes nothing else but the temperature. Needs openai-agents,
pydantic-ai-slim[openai], langchain-openai, langchain, numpy and transformers."""

import argparse
import asyncio
import dataclasses
import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

from script_model import Scripts
from templates import Server, Template

TEMPLATES = ["Qwen3-Coder", "Qwen-Qwen3-0.6B", "GLM-4.6", "Mistral-Small-3.2-24B-Instruct-2506", "openai-gpt-oss-120b"]
QUESTION = "Say hello with the shell, then read what it says."
ANSWER = "All done: both tools have answered."
# More than any script has, and than the prompt grows by until it is asked for.
STEP = 2048
COUNTED = {"/v1/messages": "/v1/messages/count_tokens", "/v1/responses": "/v1/responses/input_tokens",
           "/v1/chat/completions": "/v1/chat/completions/input_tokens"}
SECONDS = 300


class Proxy(http.server.BaseHTTPRequestHandler):
    """Pads requests with tools; notes bodies and refusals."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.forward(None)

    def do_HEAD(self):
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        route, proxied = self.path.split("?")[0], self.server
        if route in COUNTED and body.get("tools"):
            place = proxied.first + STEP * len(proxied.bodies)
            proxied.bodies.append(body)
            counted = {key: value for key, value in body.items() if not key.startswith("stream")}
            try:
                with urllib.request.urlopen(self.request_to(COUNTED[route], counted)) as reply:
                    missing = place - json.load(reply)["input_tokens"]
            except urllib.error.HTTPError as error:
                # The request itself is refused likewise.
                self.send_error(error.code)
                return proxied.refused.append(f"{route}: {error.read().decode()[:500]}")
            if missing < 0:
                proxied.refused.append(f"the prompt is {-missing} tokens longer than {place}")
            pad(body["input" if route == "/v1/responses" else "messages"], missing)
            body["temperature"] = 0
        self.forward(body)

    def request_to(self, path, body):
        data = None if body is None else json.dumps(body).encode()
        return urllib.request.Request(self.server.url + path, data, {"content-type": "application/json"}, method=self.command)

    def forward(self, body):
        try:
            reply = urllib.request.urlopen(self.request_to(self.path, body), timeout=SECONDS)
        except urllib.error.HTTPError as error:
            reply = error
        self.send_response(reply.status)
        for name in ("content-type", "x-polydraft-ignored"):
            if name in reply.headers:
                self.send_header(name, reply.headers[name])
        self.send_header("connection", "close")
        self.end_headers()
        written = b""
        while part := reply.read1(65536):
            written += part
            self.wfile.write(part)
            self.wfile.flush()
        if reply.status >= 400 and body is not None:
            self.server.refused.append(f"{self.path}: {reply.status} {written.decode()[:500]}")
        self.close_connection = True


def pad(messages, count):
    """Lengthens the newest text that is no answer by `count` letters, one token each."""
    # Codex has outputs of its own, which answer no call and which the server leaves out.
    message = [one for one in messages if one.get("role") in ("user", "tool") or ("output" in one and "call_id" in one)][-1]
    place, key = message, "output" if "output" in message else "content"
    while not isinstance(place[key], str):
        place = [part for part in place[key] if "text" in part or part.get("type") == "tool_result"][-1]
        key = "text" if "text" in place else "content"
    place[key] += "a" * count


@dataclasses.dataclass
class Agent:
    """One agent: what it is to call (FOLDER is where it works), what the results must have, and how it is started."""

    name: str
    # More tokens than its first prompt has with any of the templates.
    first: int
    calls: list
    results: tuple
    start: callable


def weather(city: str) -> str:
    """The weather of a city."""
    return f"rain in {city}"


def add(left: int, right: int) -> int:
    """The sum of two numbers."""
    return left + right


SUMS = dict(calls=[("weather", {"city": "Oslo"}), ("add", {"left": 1234, "right": 8766})], results=("rain in Oslo", "10000"))


def openai_agents(responses):
    def start(url, _):
        import agents
        from openai import AsyncOpenAI

        agents.set_tracing_disabled(True)
        kind = agents.OpenAIResponsesModel if responses else agents.OpenAIChatCompletionsModel
        model = kind(model="polydraft", openai_client=AsyncOpenAI(base_url=f"{url}/v1", api_key="secret"))
        agent = agents.Agent(name="a", model=model, tools=[agents.function_tool(weather), agents.function_tool(add)])

        async def streamed():
            run = agents.Runner.run_streamed(agent, QUESTION)
            async for _ in run.stream_events():
                pass
            return run.final_output

        return asyncio.run(streamed())

    return start


def pydantic_ai(url, _):
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel("polydraft", provider=OpenAIProvider(base_url=f"{url}/v1", api_key="secret"))
    return Agent(model, tools=[weather, add]).run_sync(QUESTION).output


def langchain(url, _):
    from langchain.agents import create_agent
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model="polydraft", base_url=f"{url}/v1", api_key="secret")
    question = {"messages": [{"role": "user", "content": QUESTION}]}
    return create_agent(model, [weather, add]).invoke(question)["messages"][-1].content


def program(command, **variables):
    """Runs a program in a folder of its own; SERVER in arguments and variables stands for the server's address."""
    def start(url, folder):
        (folder / "note.txt").write_text("the note's own text\n")
        given = {name: value.replace("SERVER", url) for name, value in variables.items()}
        done = subprocess.run([part.replace("SERVER", url) for part in command], cwd=folder, stdin=subprocess.DEVNULL,
                              env={**os.environ, "HOME": str(folder), "PWD": str(folder), **given}, capture_output=True, text=True,
                              timeout=SECONDS)
        assert done.returncode == 0, f"exit code {done.returncode}: {done.stdout[-800:]} {done.stderr[-800:]}"
        return done.stdout + done.stderr

    return start


def programs(folder):
    """Claude Code, Codex and OpenCode from npm's packages in a folder."""
    tools = Path(folder).resolve() / "node_modules/.bin"
    codex = {"model_provider": "pd", "model_providers.pd.name": "pd", "model_providers.pd.base_url": "SERVER/v1",
             "model_providers.pd.wire_api": "responses"}
    opencode = {"provider": {"pd": {"npm": "@ai-sdk/openai-compatible", "name": "pd",
                                    "options": {"baseURL": "SERVER/v1", "apiKey": "secret"},
                                    "models": {"polydraft": {"name": "polydraft", "tool_call": True}}}},
                "permission": {"bash": "allow"}, "autoupdate": False}
    echo = "echo hello-from-tool"
    results = ("hello-from-tool", "the note's own text")
    return [
        Agent("Claude Code", 40960, [("Bash", {"command": echo, "description": "Say hello"}),
                                     ("Read", {"file_path": "FOLDER/note.txt"})], results, program(
            [str(tools / "claude"), "-p", QUESTION, "--model", "polydraft", "--tools", "Bash,Read",
             "--allowedTools", "Bash(echo:*),Read"],
            ANTHROPIC_BASE_URL="SERVER", ANTHROPIC_API_KEY="secret", DISABLE_TELEMETRY="1", DISABLE_AUTOUPDATER="1",
            CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1")),
        Agent("Codex", 49152, [("exec_command", {"cmd": echo}),
                               ("create_goal", {"objective": "greet all"})],
              ("hello-from-tool", "greet all"), program(
            [str(tools / "codex"), "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox",
             *(part for name, value in codex.items() for part in ("-c", f"{name}={value}")), "-m", "polydraft", QUESTION],
            OPENAI_API_KEY="secret")),
        Agent("OpenCode", 49152, [("bash", {"command": echo, "description": "Say hello"}),
                                  ("read", {"filePath": "FOLDER/note.txt"})], results, program(
            [str(tools / "opencode"), "run", "-m", "pd/polydraft", QUESTION],
            OPENCODE_CONFIG_CONTENT=json.dumps(opencode)))]


def scripts(template, agent, folder):
    """What the model writes: each call, after reasoning where the template has it, and the answer."""
    _, before = template.thought_written()
    template.tools = [Template.tool(tool, {"type": "object", "properties": {}}) for tool, _ in agent.calls]
    calls = [(tool, json.loads(json.dumps(given).replace("FOLDER", str(folder)))) for tool, given in agent.calls]
    return [*(before + template.calls_written([call]) for call in calls), before + template.answer_written(ANSWER)]


def check(server, agent, folder):
    """Lets an agent run to its end and checks what it did."""
    proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    proxy.url, proxy.first, proxy.bodies, proxy.refused = server.url, agent.first, [], []
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    try:
        answer = agent.start(f"http://127.0.0.1:{proxy.server_port}", folder)
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {str(error)[-1200:]}; refused: {proxy.refused}") from error
    finally:
        proxy.shutdown()
    assert not proxy.refused, proxy.refused
    assert ANSWER in answer, answer
    assert len(proxy.bodies) == 3, f"{len(proxy.bodies)} requests with tools"
    history = json.dumps(proxy.bodies[-1], ensure_ascii=False)
    for name, _ in agent.calls:
        assert f'"{name}"' in history
    for result in agent.results:
        assert result in history, f"the last request lacks {result}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("templates", type=Path)
    parser.add_argument("--npm", type=Path, help="folder with the programs' packages")
    parser.add_argument("--only", default="", help="part of an agent's or a template's name")
    options = parser.parse_args()
    known = [Agent("OpenAI agents", 4096, start=openai_agents(False), **SUMS),
             Agent("OpenAI agents, Responses", 4096, start=openai_agents(True), **SUMS),
             Agent("pydantic-ai", 4096, start=pydantic_ai, **SUMS), Agent("langchain", 4096, start=langchain, **SUMS)]
    known += programs(options.npm) if options.npm else []
    failed = 0
    for name in TEMPLATES:
        template = Template(options.templates / f"{name}.jinja")
        for agent in known:
            if options.only not in agent.name and options.only not in name:
                continue
            since = time.time()
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                work = Path(folder) / "work"
                work.mkdir()
                Scripts().write(Path(folder) / "model", scripts(template, agent, work), STEP, agent.first)
                with Server(options.program, Path(folder) / "model", template) as server:
                    try:
                        check(server, agent, work)
                        report = "passed"
                    except AssertionError as error:
                        failed += 1
                        report = f"FAILED: {error}"
            print(f"{name}, {agent.name}: {report}, {time.time() - since:.0f} s", flush=True)
    sys.exit(f"{failed} failed" if failed else 0)


if __name__ == "__main__":
    main()
