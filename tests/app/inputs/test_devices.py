"""The memory that a KV cache may take on this machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.inputs import devices
from engine.errors import ConfigError

INSTALLED = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(
    ("limit", "found"),
    [(None, INSTALLED), ("max\n", INSTALLED), (f"{1 << 30}\n", 1 << 30), (f"{1 << 63}\n", INSTALLED)],
    ids=["no file", "no limit", "a limit", "a limit above the machine's memory"],
)
def test_memory_is_that_of_the_machine_or_its_container(
    limit: str | None, found: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "fs/cgroup/memory.max"
    file.parent.mkdir(parents=True)
    if limit is not None:
        file.write_text(limit)
    monkeypatch.setattr(devices, "SYSTEM", tmp_path)
    assert devices.memory_bytes("cpu") == found
    devices.check_cache(0.02, "cpu")
    devices.check_cache("auto", "cpu")
    with pytest.raises(ConfigError, match=r"--kv-gib is 1e\+06; it must be at most .* of this machine"):
        devices.check_cache(1e6, "cpu")
