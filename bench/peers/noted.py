"""A plugin for pytest: what became of each test and what it asked for, in the file PEERS_NOTES.

Who sends requests adds them to `asked`, as "VERB PATH".
"""

import json
import os

import pytest

asked, notes = [], []


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    found = outcome.get_result()
    if call.when == "setup":
        asked.clear()
    broke = call.when == "setup" and found.outcome == "failed"
    if found.outcome == "skipped" or call.when == "call" or broke:
        why = (str(call.excinfo.value).splitlines() or [""])[0][:300] if call.excinfo else None
        note = {"test": item.nodeid, "outcome": found.outcome}
        notes.append(note | {"asked": sorted(set(asked)), "why": why})
        with open(os.environ["PEERS_NOTES"], "w", encoding="utf-8") as file:
            json.dump(notes, file)
