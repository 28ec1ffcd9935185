"""Models by hub id, from a hub on loopback."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

polydraft = pytest.importorskip("polydraft")
DRAFT = Path(__file__).parents[3] / "demo" / "draft"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
pytestmark = pytest.mark.skipif(not DRAFT.is_dir(), reason="without the demo models")


class Hub(BaseHTTPRequestHandler):
    """Serves the demo pair's draft; sends its weights slowly, in small parts, if `slow`."""

    slow = threading.Event()

    def log_message(self, *_):
        pass

    def do_GET(self):
        path = self.path.split("?")[0]
        if path == "/api/models/org/tiny/revision/main":
            files = [{"rfilename": f.name, "size": f.stat().st_size, "blobId": f.name.replace(".", "")} for f in DRAFT.iterdir()]
            body = json.dumps({"sha": COMMIT, "siblings": files}).encode()
        else:
            body = (DRAFT / path.split("/")[-1]).read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        drops = 1000 if self.slow.is_set() and path.endswith("safetensors") else len(body)
        for at in range(0, len(body), drops):
            self.wfile.write(body[at : at + drops])
            time.sleep(0.1 if self.slow.is_set() else 0)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    for name in ("HF_TOKEN", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    yield server
    Hub.slow.clear()
    server.shutdown()


def test_downloads_model_once(hub, monkeypatch):
    here = polydraft.Engine(str(DRAFT), None).generate("fn main", seed=3, max_tokens=12).text
    assert polydraft.Engine("org/tiny", None).generate("fn main", seed=3, max_tokens=12).text == here
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert polydraft.Engine("org/tiny", None).generate("fn main", seed=3, max_tokens=12).text == here
    with pytest.raises(polydraft.errors.Error, match="not downloaded before"):
        polydraft.Engine("org/other")


PROGRAM = """
import signal
import polydraft
# Background jobs may ignore this signal.
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    polydraft.Engine("org/tiny")
except KeyboardInterrupt:
    print("interrupted")
"""


def test_download_shows_progress_and_is_interruptible(hub):
    Hub.slow.set()
    command, pipe = [sys.executable, "-c", PROGRAM], subprocess.PIPE
    running = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=os.environ)
    assert running.stderr is not None
    assert "org/tiny: " in running.stderr.readline()
    running.send_signal(signal.SIGINT)
    printed, _ = running.communicate(timeout=40)
    assert printed == "interrupted\n" and running.returncode == 0
