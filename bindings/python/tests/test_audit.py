"""Audits from Python, of the program's own server on loopback."""

import json
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

import polydraft

pytest_plugins = ["pytester"]


@pytest.fixture(scope="module")
def server():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "polydraft", "serve", "--port", str(port), "--quiet"]
    process = subprocess.Popen(command)
    url = f"http://127.0.0.1:{port}"
    for _ in range(600):
        try:
            urllib.request.urlopen(f"{url}/v1/models", timeout=1)
            break
        except OSError:
            assert process.poll() is None
            time.sleep(0.1)
    yield url
    process.kill()
    process.wait()


def test_audit_of_lossless_server_passes(server, tmp_path):
    page, kept = tmp_path / "page.html", tmp_path / "kept.jsonl"
    options = dict(checks=["greedy", "logprobs"], seed=1, html=str(page), save=str(kept))
    report = polydraft.audit(server, **options)
    assert report["verdict"] == "passed", json.dumps(report, indent=1)
    assert [finding["check"] for finding in report["findings"]] == ["greedy", "logprobs"]
    assert "Lossless as far as tested" in page.read_text()
    again = polydraft.audit(server, **options)
    assert again["findings"][0]["summary"] == report["findings"][0]["summary"]


def test_rejects_invalid_options_and_unreachable_server(server):
    with pytest.raises(polydraft.errors.InvalidInput, match="temperature-1"):
        polydraft.audit(server, checks=["temprature-1"])
    with pytest.raises(polydraft.errors.InvalidInput, match="between 0 and 1"):
        polydraft.audit(server, error_rate=2)
    with pytest.raises(polydraft.errors.Error, match="is the server running"):
        polydraft.audit("http://127.0.0.1:9", model="x")


def test_fixture_fails_for_faulty_server(server, pytester):
    pytester.makepyfile(
        f"""
        def test_one(polydraft_audit):
            assert polydraft_audit({server!r}, checks=["greedy"])["verdict"] == "passed"

        def test_two(polydraft_audit, monkeypatch):
            fault = dict(check="greedy", verdict="fault", summary="wrong", evidence=[dict(what="it", curl="curl x")])
            report = dict(model="m", url="u", verdict="fault", findings=[fault])
            monkeypatch.setattr("polydraft.audit", lambda url, **options: report)
            polydraft_audit("http://nowhere")
        """
    )
    outcome = pytester.runpytest()
    outcome.assert_outcomes(passed=1, failed=1)
    outcome.stdout.fnmatch_lines(["*curl x*"])
