"""The three tiers of tests, and the guard that keeps each test in the cheapest tier that its work allows.

``make test`` runs tests without a marker, ``make test-cluster`` those marked ``cluster``, ``make test-all`` all tests,
those marked ``matrix`` included. A test without a marker starts no process, runs no GPU kernel and does not read the
default model, whose steps are slow; the one file marked ``server`` may start processes. ``cluster`` needs no root.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from app.inputs.default_model import default_model

HARMLESS = {
    "fc-list",
    "git",
    "hadolint",
    "kubectl",
    "ldconfig",
    "uname",
}  # started by imports of libraries, and by tests of the repository itself
AS_ROOT = {"ip", "nsenter", "unshare"}


def tier_of(item: pytest.Item) -> str:
    """Return ``matrix``, ``cluster``, ``server`` or, for a test without a marker, ``quick``."""
    return next((name for name in ("matrix", "cluster", "server") if item.get_closest_marker(name)), "quick")


class TierGuard:
    """Plugin that fails a test which does what its tier excludes."""

    def __init__(self) -> None:
        self._tier = "matrix"
        self._excluded: list[str] = []
        self._default_model = default_model()
        sys.addaudithook(self._watch)
        start = multiprocessing.process.BaseProcess.start

        def watched_start(process: multiprocessing.process.BaseProcess) -> None:
            self._check("starts a process of multiprocessing", self._tier == "quick")
            start(process)

        multiprocessing.process.BaseProcess.start = watched_start  # type: ignore[method-assign]
        self._watch_kernels()

    def _check(self, what: str, is_excluded: bool) -> None:
        """Raise for what the tier excludes; it is kept as well, for code that catches every error."""
        if is_excluded:
            self._excluded.append(what)
            raise AssertionError(
                f"this test does what its tier excludes ({what}): mark it cluster or matrix (tests/support/tiers.py)"
            )

    def _watch(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("subprocess.Popen", "os.posix_spawn"):
            given = arguments[1] if event == "subprocess.Popen" else [arguments[0]]
            first = given if isinstance(given, str | bytes) else next(iter(given))
            program = Path(first.decode() if isinstance(first, bytes) else str(first)).name
            self._check(f"starts {program}", self._tier == "quick" and program not in HARMLESS)
            self._check(f"starts {program}", self._tier == "cluster" and program in AS_ROOT)
        elif event == "open" and str(arguments[0]) == self._default_model:
            self._check("reads the default model", self._tier == "quick")
        elif event in ("os.fork", "os.forkpty"):
            self._check("starts a copy of itself", self._tier == "quick")

    def _watch_kernels(self) -> None:
        try:
            from triton.runtime.interpreter import GridExecutor
        except ImportError:
            return
        launch = GridExecutor.__call__

        def watched_launch(executor: Any, *arguments: Any, **named: Any) -> Any:
            self._check("runs a kernel under the interpreter", self._tier == "quick")
            return launch(executor, *arguments, **named)

        GridExecutor.__call__ = watched_launch

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._tier = tier_of(item)  # also for the fixtures that this test is the first to ask for
        self._excluded.clear()
        try:
            return (yield)
        finally:
            self._tier = "matrix"

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Generator[None, object, object]:
        """Fail the test also when the code under test has caught the guard's error."""
        result = yield
        excluded = self._excluded[:]
        self._excluded.clear()
        assert not excluded, f"did what its tier excludes: {excluded}"
        return result

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Start with the files that take longest and keep each whole; only one file may be marked ``server``."""
        order = ["server", "cluster", "matrix", "quick"]
        rank: dict[Path, int] = {}
        for item in items:
            rank[item.path] = min(order.index(tier_of(item)), rank.get(item.path, len(order)))
        items.sort(key=lambda item: rank[item.path])  # the last test of some files stops their server
        files = {item.path for item in items if tier_of(item) == "server"}
        assert len(files) <= 1, f"one file starts a server in `make test`, not {files}"
