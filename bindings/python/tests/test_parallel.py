"""Tensor parallelism: two processes with half of each layer decode the same output as one process."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import tiny  # noqa: E402

WORKER = pathlib.Path(__file__).with_name("parallel_worker.py")


@pytest.mark.skipif(not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="needs gloo")
def test_same_output_with_one_and_two_processes(tmp_path):
    model, draft = tiny.llama(vocabulary=64, layers=3), tmp_path / "model" / "draft"
    model.save_pretrained(tmp_path / "model")
    tiny.first_layers(model).save_pretrained(draft)
    environment = {**os.environ, "TRITON_INTERPRET": "0", "OMP_NUM_THREADS": "1"}

    def run(*program, kind):
        command = [sys.executable, *program, WORKER, tmp_path / "model", tmp_path / kind, kind]
        done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[:6000]

    run(kind="alone")
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    run(*launcher, kind="shared")
    alone, *shared = (
        json.loads((tmp_path / f"{name}.json").read_text()) for name in ("alone-0", "shared-0", "shared-1")
    )  # fmt: skip
    assert all(each["texts"] == alone["texts"] for each in shared)
    assert all(2 * each["width"] == alone["width"] for each in shared)
    assert alone["texts"]["host False"] == alone["texts"]["device False"] == alone["texts"]["plain"]
