"""A fixture for tests of servers: `polydraft_audit(url, **options)` fails the test if a fault is found."""

from __future__ import annotations

from typing import Any

import pytest


def _summary(report: dict[str, Any]) -> str:
    lines = [f"{report['model']} on {report['url']}: {report['verdict']}"]
    for finding in report["findings"]:
        if finding["verdict"] in ("fault", "not-enough-data"):
            lines.append(f"  {finding['check']}: {finding['verdict']}: {finding['summary']}")
            lines += [f"    # {shown['what']}\n    {shown['curl']}" for shown in finding["evidence"]]
    return "\n".join(lines)


@pytest.fixture
def polydraft_audit():
    """Audits a server, with the options of `polydraft.audit`, and returns the report.

    The test fails if the server is not lossless, and is skipped if there is not enough data to decide.
    """

    def run(url: str, **options: Any) -> dict[str, Any]:
        from . import audit

        report = audit(url, **options)
        if report["verdict"] == "fault":
            pytest.fail(_summary(report), pytrace=False)
        if report["verdict"] != "passed":
            pytest.skip(_summary(report))
        return report

    return run
