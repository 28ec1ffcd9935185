"""The harness of all measurements: options, provenance, records, programs, HTTP, turns.

For the scripts beside it, and after `import _path` in research/bench and bindings/python/bench.
It needs Python's standard library alone.
"""

import argparse
import asyncio
import atexit
import collections
import contextlib
import http.client
import importlib.metadata
import json
import os
import platform
import re
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
# Prompts by kind of text.
TEXTS = {"code": "prompts.jsonl", "chat": "chat.jsonl", "repeat": "repeat.jsonl"}


# Options

# Those of more than one script: one name for one thing.
SHARED = {
    "program": (["program"], {"help": "polydraft"}),
    "target": (["target"], {"help": "the target model"}),
    "polydraft": (["--polydraft"], {"default": "target/release/polydraft", "help": "the program"}),
    "record": (["-o", "--record"], {"type": Path, "metavar": "FILE", "help": "the record"}),
    "show": (["--show"], {"type": Path, "metavar": "RECORD", "help": "print a record's table"}),
    "llama": (["--llama"], {"type": Path, "metavar": "DIR", "help": "llama.cpp's programs"}),
    "rounds": (["--rounds"], {"type": int, "help": "in turn"}),
    "threads": (["--threads"], {"type": int, "default": 2, "help": "of the program"}),
    "dtype": (["--dtype"], {"default": "q8_0", "help": "the target's weight type"}),
    "tokens": (["-n", "--tokens"], {"type": int, "help": "of each output"}),
    "count": (["--count"], {"type": int, "help": "prompts of each text"}),
    "prompts": (
        ["--prompts"],
        {"type": Path, "metavar": "FILE", "help": 'a JSON object a line with "prompt"'},
    ),
}


class Help(argparse.RawDescriptionHelpFormatter):
    """Help with the docstring as it is, and defaults where there are any."""

    def _get_help_string(self, action):
        without = action.default in (None, False, "", argparse.SUPPRESS)
        return action.help if without else f"{action.help} [default: %(default)s]"


def options(doc, *shared, **defaults):
    """A parser with a script's docstring and options of SHARED.

    `name?` is an argument that can be left out, `name!` an option that cannot.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=Help)
    for name in shared:
        flags, more = SHARED[name.rstrip("?!")]
        more = more | ({"nargs": "?"} if name[-1] == "?" else {})
        more |= {"required": True} if name[-1] == "!" else {}
        parser.add_argument(*flags, **more)
    parser.set_defaults(**defaults)
    return parser


def parsed(parser):
    """The options before `--`, and as `options` those after it, which go to the program."""
    own = sys.argv[1:]
    at = own.index("--") if "--" in own else len(own)
    args = parser.parse_args(own[:at])
    args.options = own[at + 1 :]
    return args


# Provenance and records


def said(*command):
    """The output of a short command in the repository; "unknown" where it fails."""
    try:
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        return done.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def machine():
    """CPU, threads and system, as the program's own records have them."""
    try:
        found = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    cpu = found[1] if found else platform.processor() or "unknown"
    return f"{cpu}, {os.cpu_count()} threads, {platform.system().lower()} {platform.machine()}"


def provenance(program=None, options=(), packages=()):
    """The head of a record: machine, date, commit, command and versions."""
    script = Path(sys.argv[0]).resolve()
    script = script.relative_to(ROOT) if script.is_relative_to(ROOT) else script
    made = {
        "machine": machine(),
        "date": time.strftime("%F"),
        "commit": said("git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"),
        "command": shlex.join([str(script), *sys.argv[1:]]),
        "python": platform.python_version(),
    }
    if program:
        program = shlex.split(str(program))
        program[0] = os.path.abspath(program[0]) if os.path.exists(program[0]) else program[0]
        made |= {"version": said(*program, "--version"), "options": shlex.join(options)}
    else:
        made["compiler"] = said("rustc", "--version")
    if packages:
        made["versions"] = {name: version_of(name) for name in packages}
    return made


def version_of(package):
    """The version of an installed package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def read(path):
    return json.loads(Path(path).read_text())


def write(path, record, indent=1):
    """Writes a record whole or not at all."""
    part = Path(f"{path}.part")
    part.write_text(json.dumps(record, indent=indent) + "\n")
    os.replace(part, path)


def put(record, path):
    """Prints a record, and writes it to a file where one is named."""
    print(json.dumps(record, indent=2))
    if path:
        write(path, record)


def prompts(file, count=None):
    """The first prompts of a file, or of a file in bench/ named without a folder."""
    place = BENCH / file if str(file) in TEXTS.values() else Path(file)
    lines = [line for line in place.read_text().splitlines() if line.strip()]
    return [json.loads(line)["prompt"] for line in lines][:count]


def markdown(head, rows):
    """Lines of a table."""
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"


# Programs


def run(command, accept=(0,)):
    """A command that ended; the script ends with its message where it failed."""
    command = [str(part) for part in command]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode not in accept:
        sys.exit(f"{shlex.join(command)}\nended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done


def generate(program, target, *options):
    """The answer of `polydraft generate --json`. `program` may have arguments of its own."""
    command = [*shlex.split(str(program)), "generate", "--json", "-q", "--no-config"]
    return json.loads(run([*command, "--target", target, *options]).stdout)


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


RUNNING = set()


@atexit.register
def end_all():
    """Kills what a script has started and not stopped."""
    for process in list(RUNNING):
        process.kill()


class Server:
    """A program that serves HTTP on this machine. Whatever ends the script ends it.

    Without `port` it is the first that the program names on stderr. `is_loud` passes stderr on;
    its last lines are told if the program ends too early.
    """

    def __init__(self, command, port=None, is_loud=False):
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        self.command, self.port, self.is_loud = [str(part) for part in command], port, is_loud
        self.said = collections.deque(maxlen=40)
        self.process = subprocess.Popen(
            self.command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        RUNNING.add(self.process)
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        for line in self.process.stderr:
            self.said.append(line)
            if self.port is None:
                found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
                self.port = int(found[1]) if found else None
            elif self.is_loud:
                sys.stderr.write(line)

    def ready(self, seconds=300):
        """Waits until it answers /health."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                code = self.process.returncode
                sys.exit(f"{shlex.join(self.command)}\nended with {code}:\n{''.join(self.said)}")
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.port is not None and ask(self.port, "/health", seconds=5)[0] == 200:
                    return self
            time.sleep(0.1)
        sys.exit(f"{shlex.join(self.command)}\ndoes not answer after {seconds} seconds")

    def resident(self):
        """KiB of memory that it has."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1])

    def stop(self, seconds=90):
        """Its exit code, once it is asked to end."""
        self.process.terminate()
        code = self.process.wait(timeout=seconds)
        RUNNING.discard(self.process)
        return code

    def kill(self):
        self.process.kill()
        self.process.wait()
        RUNNING.discard(self.process)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()


def serve(program, options=(), port=None, is_loud=True):
    """`polydraft serve`, once it answers; at a free port unless one is given."""
    command = [*shlex.split(str(program)), "--no-config", "serve", "--port", port or 0, *options]
    return Server(command, port, is_loud).ready()


# HTTP


def ask(port, path, body=None, seconds=600):
    """Status and body of an answer; a body makes it a POST. No wait is longer than `seconds`."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    with contextlib.closing(connection):
        if body is None:
            connection.request("GET", path)
        else:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", path, json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, answer.read()


def complete(port, body, seconds=600):
    """The answer of /v1/completions; the script ends where that is an error."""
    status, answer = ask(port, "/v1/completions", body, seconds)
    if status != 200:
        sys.exit(f"{status} from port {port}: {answer[:300]!r}")
    return json.loads(answer)


async def connect(port, body, path="/v1/completions"):
    """Sends a request as raw bytes; what answers is read from what this returns."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    # A server that has seen enough of it may close before it has all of it.
    with contextlib.suppress(ConnectionError):
        writer.write(head.encode() + body)
        await writer.drain()
    return reader, writer


async def answered(reader, writer, seconds=600):
    """Status and body; None where the server closed the connection without an answer."""
    data = b""
    async with asyncio.timeout(seconds):
        with contextlib.suppress(ConnectionError):
            while more := await reader.read(1 << 16):
                data += more
    writer.close()
    if not data.startswith(b"HTTP/1.1 "):
        return None, data
    return int(data[9:12]), data.partition(b"\r\n\r\n")[2]


async def chunks(reader, seconds=600):
    """The objects of a stream; raises where it ends before its end, or tells of an error."""
    while True:
        async with asyncio.timeout(seconds):
            line = await reader.readline()
        if not line or line.strip() == b"data: [DONE]":
            break
        if line.startswith(b"data: "):
            chunk = json.loads(line[6:])
            if "error" in chunk:
                raise RuntimeError(chunk)
            yield chunk
    if not line:
        raise RuntimeError("a stream ended before its end")


# Turns


def in_turn(ways, rounds, swap=False):
    """Values of each way, one a round, so that a drift of the machine hits all alike.

    Ways are functions of the round's number. With `swap` every other round goes backwards.
    """
    found = {name: [] for name in ways}
    for number in range(rounds):
        for name in list(ways)[:: -1 if swap and number % 2 else 1]:
            found[name].append(ways[name](number))
    return found


def ratio(ours, theirs):
    """The median over rounds of the ratio within a round."""
    return statistics.median(a / b for a, b in zip(ours, theirs))
