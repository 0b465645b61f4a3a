"""Whether there is a browser for tests."""

from __future__ import annotations

import shutil

from benchmarks.support.browser import PROGRAMS
from tests.support.lacking import lacking


def need_chromium() -> None:
    """End the test without Chromium and its driver."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        lacking(f"{' and '.join(missing)} not found: apt-get install chromium chromium-driver")
