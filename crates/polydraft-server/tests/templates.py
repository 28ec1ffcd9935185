"""Tool calls and reasoning with published chat templates, against `polydraft serve`.

templates.py PROGRAM FOLDER [--only NAME] [--schemas N]

For every template of the folder a model writes exactly what the template shows of one and of two calls, and of an answer
after reasoning; name, arguments, text and reasoning must come back, whole and streamed, from the routes of OpenAI and of
Anthropic, and from an answer that the limit cuts no part of a call as text. With `--schemas`, required calls of random schemas must match them. What the templates write is rendered by
transformers, not by the program. Needs transformers, jinja2, jsonschema and numpy."""

import argparse
import itertools
import json
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import jsonschema
from script_model import Scripts
from transformers.utils.chat_template_utils import _compile_jinja_template

QUESTION = "QQQ"
FIRST = {"city": 'Oslo "N" é, {x}', "count": 7, "flag": True, "opts": {"deep": [True, False]}}
SECOND = {"city": "7"}
# A template that takes no nested objects without `additionalProperties`, as in transformers.
FLAT = "c4ai-command-r-plus"
PAIRS = [("<think>", "</think>"), ("<seed:think>", "</seed:think>"), ("[THINK]", "[/THINK]"),
         ("<|START_THINKING|>", "<|END_THINKING|>"), ("<mm:think>", "</mm:think>"),
         ("<think:opensource>", "</think:opensource>"), ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
         ("<|channel>thought\n", "<channel|>"), ("<|inner_prefix|>", "<|inner_suffix|>"),
         ("<|think|>", "<|end|><|begin|>assistant"), (" to=self<|message|>", "<|eom|><|start|>assistant"),
         ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"), ("", "[BEGIN FINAL RESPONSE]")]
# Marks of an answer, and of an empty one before calls.
ANSWERS = ["<|open|>response<|sep|>", "<|close|>response<|sep|>"]
ENDS = ["<|im_end|>", "<EOS>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|end_of_text|>", "<turn|>", "<|END_OF_TURN_TOKEN|>",
        "</assistant>", "<|role_end|>", "<SPECIAL_12>", "<｜end▁of▁sentence｜>", "[e~[", "<end_of_sentence>", "<seed:eos>",
        "<｜hy_eos:opensource｜>", "<|calls|>", "<|eot|>", "<|tool_response>", "<sep>", "<|assistant_end|>",
        "<|close|>message", "<|observation|>", "<|message_sep|>\n\n"]


def python_call(name, arguments):
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def kimi_call(name, arguments, number):
    return f"<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>{json.dumps(arguments)}<|tool_call_end|>"


def r1_call(name, arguments):
    return f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{json.dumps(arguments)}\n```<｜tool▁call▁end｜>"


def described(name, calls):
    """Calls of templates that describe them in words only, or that transformers does not render."""
    if "gpt-oss" in name:
        [(tool, arguments), *_] = calls
        return f"<|channel|>commentary to=functions.{tool} <|constrain|>json<|message|>{json.dumps(arguments)}<|call|>"
    if "granite-3.3" in name:
        return "<|tool_call|>" + json.dumps([{"name": tool, "arguments": arguments} for tool, arguments in calls])
    if FLAT in name:
        listed = [{"tool_name": tool, "parameters": arguments} for tool, arguments in calls]
        return f"Action: ```json\n{json.dumps(listed, indent=4)}\n```"
    if "LFM2-8B" in name or "LFM2.5-Instruct" in name:
        return f"<|tool_call_start|>[{', '.join(python_call(*call) for call in calls)}]<|tool_call_end|>"
    if "Kimi-K2-" in name:
        written = "".join(kimi_call(*call, number) for number, call in enumerate(calls))
        return f"<|tool_calls_section_begin|>{written}<|tool_calls_section_end|>"
    if "llama-cpp-deepseek" in name:
        return f"<｜tool▁calls▁begin｜>{chr(10).join(r1_call(*call) for call in calls)}<｜tool▁calls▁end｜>"
    return None


class Template:
    """A template, and what a model writes by it."""

    def __init__(self, path):
        self.path, self.name, self.source = path, path.stem, path.read_text()
        self.first = {key: value for key, value in FIRST.items() if FLAT not in self.name or key != "opts"}
        properties = {"city": {"type": "string"}, "count": {"type": "integer"}, "flag": {"type": "boolean"}, "opts": {
            "type": "object", "properties": {"deep": {"type": "array", "items": {"type": "boolean"}}}}}
        properties = {key: {**properties[key], "description": key} for key in self.first}
        schema = {"type": "object", "properties": properties, "required": ["city"], "additionalProperties": False}
        self.tools = [self.tool(name, schema) for name in ("get_weather", "add_nums")]
        self.calls = [("get_weather", self.first), ("add_nums", SECOND)]

    @staticmethod
    def tool(name, schema):
        return {"type": "function", "function": {"name": name, "description": "d", "parameters": schema}}

    def render(self, messages, **options):
        return _compile_jinja_template(self.source).render(
            messages=messages, tools=self.tools, bos_token="", eos_token="<|im_end|>", functions=json.dumps(self.tools),
            datetime="today", date_string="26 Jul 2024", **options)

    def after_question(self, messages, prompt=False, whole=False):
        text = self.render([{"role": "user", "content": QUESTION}, *messages], add_generation_prompt=prompt)
        return text if whole else text[text.rindex(QUESTION):]

    def written(self, message):
        """What the template adds for an answer after the prompt, without empty reasoning and the end of the turn."""
        prompt, full = self.after_question([], prompt=True), self.after_question([message])
        start = next((at for at, pair in enumerate(zip(prompt, full)) if pair[0] != pair[1]), min(len(prompt), len(full)))
        mark = max(full.rfind("<", 0, start), full.rfind("[", 0, start))
        if mark >= 0 and not set(full[mark:start]) & set(">]") and start - mark < 30:
            start = mark
        text = full[start:]
        for end in ENDS:
            if end != ENDS[-1] or "GigaChat" not in self.name:
                at = text.find(end)
                text = text[:at] if at > 0 else text
        if "GigaChat" in self.name:
            text = text.rstrip().removesuffix("<|message_sep|>")
        before = None
        while text != before:
            before = text
            for mark in [*itertools.chain(*PAIRS[:-1]), *(ANSWERS if message.get("tool_calls") else [])]:
                text = text.lstrip().removeprefix(mark) if mark else text
        return text

    def calls_written(self, calls):
        """What a model writes for these calls; None where the template has no form for them."""
        text = described(self.name, calls)
        if text:
            return text if len(calls) == 1 or "gpt-oss" not in self.name else None
        for as_text, content in itertools.product((False, True), ("", None)):
            listed = [{"id": f"call0000{number}", "type": "function", "function": {
                "name": name, "arguments": json.dumps(arguments) if as_text else arguments}}
                for number, (name, arguments) in enumerate(calls)]
            try:
                text = self.written({"role": "assistant", "content": content, "tool_calls": listed})
            except Exception:
                continue
            if all(name in text for name, _ in calls) and next(iter(calls[0][1])) in text:
                return text
        return None

    def answer_written(self, text):
        """What a model writes for an answer without calls."""
        if "gpt-oss" in self.name:
            return f"<|channel|>final<|message|>{text}"
        try:
            return self.written({"role": "assistant", "content": text})
        except Exception:
            return text

    def reasoning(self):
        """Marks of reasoning: whether the prompt opens it, and what the model writes around a thought."""
        try:
            prompt = self.after_question([], prompt=True).rstrip()
        except TypeError:
            # A template for llama.cpp, which transformers does not render with tools.
            prompt = "<think>"
        for opening, closing in PAIRS:
            is_open = opening == "" or prompt.endswith(opening.strip())
            if closing in self.source or closing in prompt or (opening and (is_open or opening.strip() in self.source)):
                # A closing mark may also begin any answer.
                is_past = prompt.endswith(closing if closing.count("<") < 2 else opening + closing)
                return is_open, is_past, opening, closing
        return None

    def thought_written(self):
        """A thought, and what a model writes for it before its answer; empty where the prompt has none to end."""
        marks = self.reasoning()
        if marks is None or marks[1]:
            return "", ""
        return "hm < 2", ("" if marks[0] else marks[2]) + f"hm < 2\n{marks[3]}\n\n"

    def takes(self, tools):
        """Whether transformers renders these tools."""
        try:
            _compile_jinja_template(self.source).render(messages=[{"role": "user", "content": "a"}], tools=tools, bos_token="",
                                                        eos_token="", functions="", datetime="", add_generation_prompt=True)
        except Exception:
            return "llama-cpp" in self.name
        return True


class Server:
    """A server with a template and a model of scripts."""

    def __init__(self, program, folder, template):
        extras = ["--chat-template-extras"] if "firefunction" in template.name else []
        self.process = subprocess.Popen(
            [program, "serve", str(folder), "--chat-template", str(template.path), "--port", "0", "--draft", "ngram",
             "--any-model-name", *extras],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        found = (re.search(r"serving at (http://[^/;]+)", line) for line in self.process.stderr)
        self.url = next(match[1] for match in found if match)
        # The log has a line for each request: a full pipe would stop the server.
        threading.Thread(target=lambda: [None for _ in self.process.stderr], daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=120) as reply:
                return reply.read().decode()
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}: {error.code} {error.read().decode()[:500]}") from None

    def padded(self, body, script, step):
        """The body with a question as long as the script's number demands."""
        body = {"messages": [{"role": "user", "content": "a"}], "temperature": 0, "max_tokens": 2000, **body}
        tokens = json.loads(self.post("/v1/chat/completions/input_tokens", body))["input_tokens"]
        body["messages"] = [{"role": "user", "content": "a" * (1 + step * (script + 1) - tokens)}]
        return body


def parts(message):
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])]
    return calls, message["content"], message.get("reasoning_content")


def chat(server, body):
    return parts(json.loads(server.post("/v1/chat/completions", body))["choices"][0]["message"])


def streamed(server, body):
    calls, text, thought = [], "", ""
    for line in server.post("/v1/chat/completions", {**body, "stream": True}).splitlines():
        if not line.startswith("data: {"):
            continue
        for choice in json.loads(line[6:])["choices"]:
            delta = choice["delta"]
            text += delta.get("content") or ""
            thought += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls", []):
                if "name" in call["function"]:
                    calls.append([call["function"]["name"], ""])
                calls[-1][1] += call["function"]["arguments"]
    return [tuple(call) for call in calls], text, thought


def messages(server, body):
    tools = [tool["function"] for tool in body.get("tools", [])]
    body = {**body, "tools": [{"name": tool["name"], "description": "d", "input_schema": tool["parameters"]} for tool in tools]}
    blocks = json.loads(server.post("/v1/messages", body))["content"]
    of = {kind: [block for block in blocks if block["type"] == kind] for kind in ("tool_use", "text", "thinking")}
    calls = [(block["name"], json.dumps(block["input"])) for block in of["tool_use"]]
    return calls, "".join(b["text"] for b in of["text"]), "".join(b["thinking"] for b in of["thinking"])


def check(what, found, calls, text, thought):
    found_calls = [(name, json.loads(arguments)) for name, arguments in found[0]]
    found = found_calls, (found[1] or "").strip(), (found[2] or "").strip()
    assert found == (calls, text, thought), f"{what}: {found} for {(calls, text, thought)}"


def check_cuts(server, body, whole, said):
    """Answers that the limit cuts: calls so far, without parts of them as text, streamed as whole. Anywhere up to a call's
    arguments, and at each fifth token of those."""
    reply = json.loads(server.post("/v1/chat/completions", body))
    most, limit = 0, 1
    while limit < reply["usage"]["completion_tokens"]:
        cut = {**body, "max_tokens": limit}
        choice = json.loads(server.post("/v1/chat/completions", cut))["choices"][0]
        calls, text, thought = parts(choice["message"])
        found = streamed(server, cut)
        assert found == (calls, text or "", thought or ""), f"cut at {limit}: {found} for {(calls, text, thought)}"
        assert choice["finish_reason"] == "length", f"cut at {limit}: {choice['finish_reason']}"
        assert not (text or "").strip(), f"cut at {limit}: {(calls, text)}"
        assert said.startswith((thought or "").strip()), f"cut at {limit}: {thought!r} of {said!r}"
        assert len(calls) >= most, f"cut at {limit}: {calls} after {most} calls"
        most = len(calls)
        limit += 5 if calls and calls[-1][1] != whole[most - 1][1] else 1
        for (name, arguments), (all_name, all_arguments) in zip(calls, whole):
            is_part = arguments == "{}" or all_arguments.startswith(arguments)
            assert name == all_name and is_part, f"cut at {limit}: {arguments!r} of {all_arguments!r}"


def check_allowed(server, body, calls):
    """With some of the tools allowed, calls of those stay as they are and calls of others are not made."""
    names = [name for name, _ in calls]
    listed = [tool["function"]["name"] for tool in body["tools"]]
    for allowed in (listed, names[:1], [name for name in listed if name != names[0]]):
        choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [
            {"type": "function", "function": {"name": name}} for name in allowed]}}
        found = [name for name, _ in chat(server, {**body, "tool_choice": choice, "max_tokens": 2000})[0]]
        if set(names) <= set(allowed):
            # A template shows one call without the mark that ends all calls; another one may follow there.
            assert found[:len(names)] == names, f"allowed {allowed}: {found}"
        else:
            assert set(found) <= set(allowed), f"allowed {allowed}: {found}"


def check_template(program, template, folder):
    """Runs all checks. Returns what was checked."""
    scripts, expected = [], []
    thought, before = template.thought_written()
    for count in (1, 2):
        text = template.calls_written(template.calls[:count])
        if text is not None:
            scripts.append(before + text)
            expected.append((template.calls[:count], "", thought))
    if thought and not scripts:
        scripts.append(before + "Well.")
        expected.append(([], "Well.", thought))
    elif thought:
        scripts.append(before + template.answer_written("Well."))
        expected.append(([], "Well.", thought))
    if not scripts:
        return "no tools, no reasoning"
    # More than any prompt has, and any script.
    try:
        prompt = template.after_question([], prompt=True, whole=True)
    except TypeError:
        prompt = "a" * 2000
    longest = max(len(text.encode()) for text in [prompt, *scripts])
    step = 512 * (1 + (longest + 64) // 512)
    Scripts().write(folder, scripts, step)
    with Server(program, folder, template) as server:
        for script, (calls, text, said) in enumerate(expected):
            body = server.padded({"tools": template.tools} if calls else {}, script, step)
            for route in (chat, streamed, messages):
                check(f"{route.__name__} {scripts[script]!r}", route(server, body), calls, text, said)
            if calls:
                check_allowed(server, body, calls)
            if calls and len(calls) == max(len(all_calls) for all_calls, *_ in expected):
                check_cuts(server, body, streamed(server, body)[0], said)
            if calls:
                history = [{"id": f"call_{n}", "type": "function", "function": {"name": name, "arguments": json.dumps(a)}}
                           for n, (name, a) in enumerate(calls)]
                results = [{"role": "tool", "tool_call_id": call["id"], "content": "r"} for call in history]
                answer = {"role": "assistant", "content": None, "tool_calls": history}
                turns = [{"role": "user", "content": "a"}, answer, *results]
                server.post("/v1/chat/completions/input_tokens", {"messages": turns, "tools": template.tools})
    return f"{sum(1 for calls, *_ in expected if calls)} of calls" + (", reasoning" if thought else "")


def random_schema(random, depth=0):
    """A schema as tools have them."""
    kinds = ["string", "string", "integer", "number", "boolean", "enum", "nullable", "pattern", "format", "length"]
    kind = random.choice(kinds + (["object", "array", "object"] if depth < 2 else []))
    simple = {"string": {"type": "string", "maxLength": 12}, "integer": {"type": "integer", "minimum": 0, "maximum": 999},
              "number": random.choice([{"type": "number", "minimum": 0, "maximum": 9}, {"type": "number"}]), "boolean": {"type": "boolean"},
              "enum": {"enum": ["red", "dark blue", 3, None][:random.randint(1, 4)]},
              "nullable": {"type": ["integer", "null"], "maximum": 5, "minimum": 1},
              "pattern": {"type": "string", "pattern": "^[a-z]{2,4}-[0-9]$"},
              "format": {"type": "string", "format": random.choice(["date", "uuid", "ipv4", "email"])},
              "length": {"type": "string", "minLength": 2, "maxLength": 5}}
    if kind == "array":
        return {"type": "array", "items": random_schema(random, depth + 1), "maxItems": 3}
    if kind == "object":
        names = [f"{letter}{depth}" for letter in "abcd"[:random.randint(1, 4)]]
        return {"type": "object", "properties": {name: random_schema(random, depth + 1) for name in names},
                "required": random.sample(names, random.randint(0, len(names))), "additionalProperties": False,
                **random.choice([{}, {"minProperties": random.randint(0, len(names))}])}
    return {**simple[kind], "description": "A value."}


def check_schemas(program, template, folder, count):
    """Required calls of random schemas, at temperature 1 with drafts, match them. Returns their number."""
    generator, complete = random.Random(template.name), 0
    with Server(program, folder, template) as server:
        for number in range(count):
            schema = {"type": "object"}
            while schema == {"type": "object"} or schema["type"] != "object":
                schema = random_schema(generator)
                tools = [Template.tool("f", schema)]
                schema = schema if schema.get("type") == "object" and template.takes(tools) else {"type": "object"}
            body = {"messages": [{"role": "user", "content": "a"}], "tools": [Template.tool("f", schema)],
                    "tool_choice": "required", "parallel_tool_calls": False, "temperature": 1, "seed": number,
                    "max_tokens": 1500}
            choice = json.loads(server.post("/v1/chat/completions", body))["choices"][0]
            calls = choice["message"].get("tool_calls", [])
            if choice["finish_reason"] == "length":
                continue
            assert len(calls) == 1, f"schema {number}: {json.dumps(schema)}: {choice}"
            arguments = json.loads(calls[0]["function"]["arguments"])
            checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
            jsonschema.validate(arguments, schema, format_checker=checker)
            complete += 1
    return complete


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="part of a template's name")
    parser.add_argument("--schemas", type=int, default=0, help="random schemas for each format of calls")
    options = parser.parse_args()
    failed, started = [], time.time()
    for path in sorted(options.folder.glob("*.jinja")):
        if options.only not in path.stem:
            continue
        template = Template(path)
        with tempfile.TemporaryDirectory() as folder:
            try:
                report = check_template(options.program, template, folder)
                if options.schemas and report[0] in "12":
                    report += f", {check_schemas(options.program, template, folder, options.schemas)} of schemas"
                print(f"{template.name}: {report}", flush=True)
            except (AssertionError, jsonschema.ValidationError) as error:
                failed.append(template.name)
                print(f"{template.name}: FAILED: {str(error)[:1500]}", flush=True)
    print(f"{len(failed)} failed, {time.time() - started:.0f} s")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
