"""Forked processes, which do not inherit the threads of their parent."""

import multiprocessing

import pytest
from polydraft import Draft, Verifier


def step(seed):
    """Drafts and verifies on all threads."""
    draft = Draft("paths:8,2")
    while nodes := draft.frontier():
        draft.grow([[0.0, 1.0, 2.0]] * len(nodes), rng=seed)
    [outcome] = Verifier().verify_batch([draft], [[[2.0, 1.0, 0.0]] * len(draft)], [seed])
    return draft.tokens.tolist(), outcome.tokens


def forked(work):
    receiver, sender = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=lambda: sender.send(work()))
    child.start()
    try:
        assert receiver.poll(60), "the forked process hangs"
        return receiver.recv()
    finally:
        child.kill()
        child.join()


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="fork is not available")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_verification_works_in_forked_process():
    expected = step(7)
    assert forked(lambda: step(7)) == expected
    # Also in a process forked from it after it started threads.
    assert forked(lambda: (step(7), forked(lambda: step(7)))) == (expected, expected)
