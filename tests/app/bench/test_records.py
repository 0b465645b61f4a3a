"""Records outlive the process that wrote them, and never mix with those of other settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.bench.records import Key, Record, RecordFile, Setting, fingerprint, source_counts
from engine.errors import ConfigError
from engine.events import RequestStats, SourceCounts

SETTINGS = {"model": "m", "temperatures": [0.0, 0.8], "repeats": 1}


def record(method: str = "pld", index: int = 0, **changes: Any) -> Record:
    values: dict[str, Any] = {
        "method": method,
        "index": index,
        "prompt_tokens": 3,
        "token_ids": [7, 8, 9],
        "step_tokens": [2],
        "category": "math",
        "question_id": "q7",
        "step_nodes": [4],
        "step_seconds": [0.25],
        "target_seconds": [0.125],
        "seconds": 0.5,
        "by_source": {"pld": {"drafted": 4, "accepted": 1}},
    }
    return Record(**(values | changes))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out" / "records.jsonl"


def test_what_was_written_is_read_back(path: Path) -> None:
    written = [record(index=i, temperature=0.8, warm=True, repeat=2, turn=1) for i in range(3)]
    with RecordFile(path, SETTINGS) as file:
        assert file.records == []
        for one in written:
            file.append(one)
    with RecordFile(path, SETTINGS) as file:
        assert file.records == written
        assert Key(Setting(0.8, True), "pld", 2, 1, 1) in file
        assert Key(Setting(0.8, False), "pld", 2, 1, 1) not in file


def test_the_order_of_settings_does_not_matter() -> None:
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint({"a": 1, "b": 2}) != fingerprint({"a": 1, "b": 3})


def test_a_record_is_on_disk_before_the_file_is_closed(path: Path) -> None:
    with RecordFile(path, SETTINGS) as file:
        file.append(record())
        assert json.loads(path.read_bytes().splitlines()[-1])["method"] == "pld"


@pytest.mark.parametrize("torn", [b'{"method":"pld","ind', b"\xff\xfe"])
def test_half_a_line_at_the_end_is_dropped_and_written_over(path: Path, torn: bytes) -> None:
    with RecordFile(path, SETTINGS) as file:
        file.append(record(index=0))
    with path.open("ab") as raw:
        raw.write(torn)
    with RecordFile(path, SETTINGS) as file:
        assert [one.index for one in file.records] == [0]
        file.append(record(index=1))
    with RecordFile(path, SETTINGS) as file:
        assert [one.index for one in file.records] == [0, 1]


def test_a_torn_first_line_is_no_record_file_yet(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b'{"fingerpr')
    with RecordFile(path, SETTINGS) as file:
        assert file.records == []
    assert json.loads(path.read_text())["settings"] == SETTINGS


def test_a_record_measured_again_counts_as_measured_last(path: Path) -> None:
    for seconds in (1.0, 2.0):
        with RecordFile(path, SETTINGS) as file:
            file.append(record(seconds=seconds))
    with RecordFile(path, SETTINGS) as file:
        assert [one.seconds for one in file.records] == [2.0]


def test_what_was_forgotten_stays_forgotten(path: Path) -> None:
    with RecordFile(path, SETTINGS) as file:
        for i in range(3):
            file.append(record(index=i))
        file.forget([record(index=0).key, record(index=2).key, record(index=9).key])
        assert [one.index for one in file.records] == [1]
        file.append(record(index=2, seconds=9.0))
    with RecordFile(path, SETTINGS) as file:
        assert {one.index: one.seconds for one in file.records} == {1: 0.5, 2: 9.0}


def test_records_of_other_settings_are_refused_by_name_and_kept(path: Path) -> None:
    with RecordFile(path, SETTINGS) as file:
        file.append(record())
    before = path.read_bytes()
    with pytest.raises(ConfigError) as refused:
        RecordFile(path, {**SETTINGS, "repeats": 3, "threads": 2})
    said = str(refused.value)
    assert "repeats: 1 there, 3 now" in said
    assert "threads: None there, 2 now" in said
    assert "temperatures" not in said
    assert "--restart" in said
    assert path.read_bytes() == before


def test_restart_forgets_them(path: Path) -> None:
    with RecordFile(path, SETTINGS) as file:
        file.append(record())
    other = {**SETTINGS, "repeats": 3}
    with RecordFile(path, other, restart=True) as file:
        assert file.records == []
        file.append(record(index=5))
    with RecordFile(path, other) as file:
        assert [one.index for one in file.records] == [5]


def test_two_processes_cannot_write_one_file(path: Path) -> None:
    with RecordFile(path, SETTINGS) as file:
        file.append(record())
        with pytest.raises(ConfigError, match="another bench"):
            RecordFile(path, SETTINGS, restart=True)
        assert len(path.read_bytes().splitlines()) == 2
    with RecordFile(path, SETTINGS) as file:
        assert len(file.records) == 1


def test_a_line_that_is_no_record_is_named(path: Path) -> None:
    with RecordFile(path, SETTINGS) as file:
        file.append(record())
    with path.open("a") as raw:
        raw.write('{"method": 3}\n')
    with pytest.raises(ConfigError, match="line 3"):
        RecordFile(path, SETTINGS)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--out"):
        RecordFile(tmp_path / "file" / "records.jsonl", SETTINGS)


def test_source_counts_have_names() -> None:
    stats = RequestStats(
        prompt_tokens=1,
        target_forwards=1,
        drafted_tokens=5,
        accepted_tokens=2,
        by_source={"pld": SourceCounts(5, 2, 7, 3, 1)},
    )
    counts = {"drafted": 5, "accepted": 2, "proposed": 7, "proposed_accepted": 3, "sole_accepted": 1}
    assert source_counts(stats) == {"pld": counts}
