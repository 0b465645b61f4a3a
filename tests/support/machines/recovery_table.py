"""At the end of pytest's report: a table of faults, and for how many seconds streams paused at most."""

from __future__ import annotations

from typing import Any

import pytest

PROPERTY = "recovery"


class RecoveryTable:
    """Plugin: shows what tests record with ``record_property(PROPERTY, (fault, seconds))``."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == PROPERTY and report.when == "call":
                fault, seconds = value
                self._seconds[fault] = max(seconds, self._seconds.get(fault, 0.0))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self._seconds:
            return
        terminalreporter.section("faults on machines, and the longest pause of a stream")
        width = max(map(len, self._seconds))
        for fault, seconds in self._seconds.items():
            terminalreporter.write_line(f"{fault:<{width}}  {seconds:6.1f} s")
