"""What measurements of `polydraft serve` share: a server on loopback, and clients that say no more than they must."""

import asyncio
import contextlib
import json
import pathlib
import re
import subprocess
import sys
import threading


def arguments(parser):
    """What stands before `--`, and what of it goes to `polydraft serve`."""
    own = sys.argv[1:]
    at = own.index("--") if "--" in own else len(own)
    return parser.parse_args(own[:at]), own[at + 1 :]


class Server:
    def __init__(self, program, options):
        command = [program, "--no-config", "serve", "--port", "0", *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        lines = (re.search(r"serving at http://127.0.0.1:(\d+)", line) for line in self.process.stderr)
        found = next((found for found in lines if found), None)
        if not found:
            sys.exit("the server did not start")
        self.port = int(found[1])
        pass_on = lambda: [sys.stderr.write(line) for line in self.process.stderr]
        threading.Thread(target=pass_on, daemon=True).start()

    def resident(self):
        """KiB of memory that it has."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1])

    def stop(self):
        """Its exit code, once it is asked to end."""
        self.process.terminate()
        return self.process.wait(timeout=90)


@contextlib.contextmanager
def server(program, options):
    running = Server(program, options)
    try:
        yield running
    finally:
        running.process.kill()


async def connect(port, body, path="/v1/completions", more=""):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    # A server that has seen enough of it may close before it has all of it.
    with contextlib.suppress(ConnectionError):
        writer.write(head.encode() + body)
        await writer.drain()
    return reader, writer


async def answered(reader, writer):
    """Status and body; None where the server closed the connection without an answer."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while more := await reader.read(1 << 16):
            data += more
    writer.close()
    if not data.startswith(b"HTTP/1.1 "):
        return None, data
    return int(data[9:12]), data.partition(b"\r\n\r\n")[2]


async def chunks(reader):
    """The objects of a stream; raises where it ends before its end, or tells of an error."""
    while line := await reader.readline():
        if line.strip() == b"data: [DONE]":
            return
        if line.startswith(b"data: "):
            chunk = json.loads(line[6:])
            if "error" in chunk:
                raise RuntimeError(chunk)
            yield chunk
    raise RuntimeError("a stream ended before its end")


def around(program, options):
    """What a record says of how it was made."""
    shown = lambda *command: subprocess.run(command, capture_output=True, text=True).stdout.strip()
    machine = re.search(r"model name\s*:\s*(.*)", pathlib.Path("/proc/cpuinfo").read_text())
    here = pathlib.Path(__file__).parent
    return {
        "machine": machine[1] if machine else "unknown", "version": shown(program, "--version"),
        "commit": shown("git", "-C", str(here), "describe", "--always", "--dirty"), "options": " ".join(options),
    }
