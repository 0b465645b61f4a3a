"""Whether there is a browser for tests."""

from __future__ import annotations

import os
import shutil

import pytest

from benchmarks.support.browser import PROGRAMS


def need_chromium() -> None:
    """Fails in CI without Chromium and its driver; skips elsewhere."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        words = f"{' and '.join(missing)} not found: apt-get install chromium chromium-driver"
        if os.environ.get("CI"):
            pytest.fail(words)
        pytest.skip(words)
