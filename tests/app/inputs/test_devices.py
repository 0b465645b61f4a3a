"""The cores and the memory that this process may use, and the threads of a server's stages."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.config.serve import ServeConfig
from app.inputs import devices
from app.inputs.devices import default_threads, usable_cores
from engine.errors import ConfigError

INSTALLED = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
NO_QUOTA: dict[str, str] = {}
V1 = {"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}


@pytest.fixture
def eight_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of eight cores with two processors each, of which this process may use all."""
    for processor in range(16):
        topology = tmp_path / f"devices/system/cpu/cpu{processor}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{processor % 8},{processor % 8 + 8}\n")
    monkeypatch.setattr(devices, "SYSTEM", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    return tmp_path


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        (NO_QUOTA, 8),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu.max": "350000 100000\n"}, 3),
        ({"cpu.max": "50000 100000\n"}, 1),
        (V1, 4),
        ({**V1, "cpu/cpu.cfs_quota_us": "-1"}, 8),
    ],
)
def test_processors_of_one_core_count_once_and_a_quota_limits_them(
    quota: dict[str, str], expected: int, eight_cores: Path
) -> None:
    for name, text in quota.items():
        file = eight_cores / "fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert usable_cores() == expected


def test_an_unknown_topology_counts_the_processors_of_the_affinity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "SYSTEM", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 5, 6})
    assert usable_cores() == 3


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(("n_stages", "expected"), [(1, 7), (2, 3), (3, 2), (8, 1), (9, 1)])
def test_one_core_is_left_and_stages_share_the_others(n_stages: int, expected: int) -> None:
    assert default_threads(n_stages) == expected


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, 7),
        ({"threads": 5}, 5),
        ({"stages": 2}, 3),
        ({"stages": 2, "replicas": 2}, 1),
        ({"stages": 2, "stage_placement": "spread"}, 7),
        ({"tensor_parallel": 2}, 3),
        ({"tensor_parallel": 2, "stages": 2}, 1),
        ({"tensor_parallel": 2, "stages": 2, "stage_placement": "spread"}, 3),
        ({"stage_gpus": 1}, 1),
        ({"stage_gpus": 1, "threads": 2}, 2),
    ],
)
def test_a_server_divides_the_cores_by_the_stages_on_its_node(fields: dict[str, object], expected: int) -> None:
    assert ServeConfig.model_validate(fields).stage_threads == expected


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
