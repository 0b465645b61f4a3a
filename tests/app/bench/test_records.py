"""Records survive their process and never mix with those of other settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.bench.records import BenchSetting, Key, TurnRecord, fingerprint, open_records
from engine.errors import ConfigError

SETTINGS = {"model": "m", "temperatures": [0.0, 0.8], "repeats": 1}


def record(index: int = 0, **changes: Any) -> TurnRecord:
    values: dict[str, Any] = {"method": "pld", "index": index, "category": "math", "question_id": "q7", "seconds": 0.5}
    values |= {
        "prompt_tokens": 3,
        "token_ids": [7, 8, 9],
        "step_tokens": [2],
        "step_nodes": [4],
        "step_seconds": [0.25],
    }
    values |= {"target_seconds": [0.125], "by_source": {"pld": {"drafted": 4, "accepted": 1}}}
    return TurnRecord(**(values | changes))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out" / "records.jsonl"


def test_records_are_on_disk_at_once_and_read_back(path: Path) -> None:
    written = [record(i, temperature=0.8, warm=True, repeat=2, turn=1) for i in range(3)]
    with open_records(path, SETTINGS) as file:
        assert file.records == []
        for one in written:
            file.append(one)
            assert json.loads(path.read_bytes().splitlines()[-1])["index"] == one.index
    with open_records(path, SETTINGS) as file:
        assert file.records == written
        assert Key(BenchSetting(0.8, True), "pld", 2, 1, 1) in file.by_key
        assert Key(BenchSetting(0.8, False), "pld", 2, 1, 1) not in file.by_key


def test_dropped_records_are_gone_from_the_file(path: Path) -> None:
    written = [record(i) for i in range(3)]
    with open_records(path, SETTINGS) as file:
        for one in written:
            file.append(one)
        file.drop(one.key for one in written[:2])
        assert file.records == written[2:]
        file.append(written[0])
    with open_records(path, SETTINGS) as file:
        assert file.records == [written[2], written[0]]


@pytest.mark.parametrize("torn", [b'{"method":"pld","ind', b"\xff\xfe"])
def test_an_unfinished_last_line_is_overwritten(path: Path, torn: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(b'{"fingerpr')  # not even the first line is whole
    with open_records(path, SETTINGS) as file:
        file.append(record(0))
    assert json.loads(path.read_text().splitlines()[0])["settings"] == SETTINGS
    with path.open("ab") as raw:
        raw.write(torn)
    for known in ([0], [0, 1]):
        with open_records(path, SETTINGS) as file:
            assert [one.index for one in file.records] == known
            file.append(record(len(known)))


def test_the_last_record_of_a_key_counts(path: Path) -> None:
    for seconds in (1.0, 2.0):
        with open_records(path, SETTINGS) as file:
            file.append(record(1, seconds=seconds))
    with open_records(path, SETTINGS) as file:
        assert [one.seconds for one in file.records] == [2.0]


def test_records_of_other_settings_are_refused_and_kept_until_a_restart(path: Path) -> None:
    with open_records(path, SETTINGS) as file:
        file.append(record())
        with pytest.raises(ConfigError, match="another process"):
            open_records(path, SETTINGS, restart=True)
    before = path.read_bytes()
    other = {**SETTINGS, "repeats": 3, "threads": 2}
    with pytest.raises(ConfigError) as refused:
        open_records(path, other)
    for words in ("repeats: 1 there, 3 now", "threads: None there, 2 now", "--restart"):
        assert words in str(refused.value)
    assert "temperatures" not in str(refused.value)
    assert path.read_bytes() == before
    with open_records(path, other, restart=True) as file:
        assert file.records == []
        file.append(record(5))
    with open_records(path, dict(reversed(other.items()))) as file:
        assert [one.index for one in file.records] == [5]
    assert fingerprint(other) != fingerprint(SETTINGS)
    with path.open("a") as raw:
        raw.write('{"method": 3}\n')
    with pytest.raises(ConfigError, match="line 3"):
        open_records(path, other)
