"""Replay on a local Ray with several workers, some of which are killed. Skipped where Ray is not installed."""

import os
import pathlib
import signal
import sys

import polydraft
import pytest

ray = pytest.importorskip("ray")
import polydraft.ray

TRACE = pathlib.Path(__file__).parent / "trace"
# Variable with the folder that records killed workers, and their number.
DEATHS, MOST = "POLYDRAFT_TEST_DEATHS", 3


def dying():
    """Set-up of workers: the first `MOST` shards kill the worker that reads them."""
    original = polydraft.ray._native._replay

    class Native:
        @staticmethod
        def _replay(*args):
            found = original(*args)
            for number in range(MOST):
                try:
                    os.close(os.open(os.path.join(os.environ[DEATHS], str(number)), os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    continue
                os.kill(os.getpid(), signal.SIGKILL)
            return found

    polydraft.ray._native = Native


@pytest.fixture
def cluster():
    """Returns a function that starts Ray."""

    def start(**options):
        ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, **options)

    yield start
    ray.shutdown()


def test_same_results_as_on_one_machine(cluster):
    cluster()
    assert polydraft.ray.replay(TRACE) == polydraft.replay(TRACE)
    one = polydraft.ray.replay(TRACE, ["traversal"], tree="paths:2,1", concurrency=2)
    assert one == polydraft.replay(TRACE, ["traversal"], tree="paths:2,1")
    with pytest.raises(polydraft.errors.Unsupported, match="K up to 3"):
        polydraft.ray.replay(TRACE, tree="paths:4,2")


def test_same_results_after_workers_are_killed(cluster, tmp_path):
    # Workers cannot import test files.
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    environment = {DEATHS: str(tmp_path)}
    cluster(runtime_env={"worker_process_setup_hook": dying, "env_vars": environment})
    assert polydraft.ray.replay(TRACE) == polydraft.replay(TRACE)
    assert len(os.listdir(tmp_path)) == MOST
