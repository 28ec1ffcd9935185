"""Starts a server for the tests of clients."""

import contextlib
import re
import subprocess
import sys
import threading


@contextlib.contextmanager
def serving(program, *arguments):
    """Runs a server with these arguments and the key "secret". Yields its address; checks that it stops cleanly."""
    command = [program, "--no-config", "serve", "--port", "0", "--api-key", "secret", *arguments]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        for line in server.stderr:
            if found := re.search(r"\(API: (http\S+)\);", line):
                base_url = found[1]
                break
        else:
            raise AssertionError("the server did not start")
        threading.Thread(target=lambda: [sys.stderr.write(line) for line in server.stderr], daemon=True).start()
        yield base_url
        server.terminate()
        assert server.wait(timeout=60) == 0
    finally:
        server.kill()
