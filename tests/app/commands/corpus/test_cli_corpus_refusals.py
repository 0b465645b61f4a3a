"""What ``spectra corpus`` refuses, in one line that names what is wrong and shows no password."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.cli import main
from retrieval_store.snapshots.snapshot import MANIFEST, read_manifest
from tests.support.corpus_commands import PASSWORD, Run, listed, url_of
from tests.support.redis_server import RedisServer


def test_with_nothing_published_there_is_nothing_to_go_back_to(refused: Any, store: str) -> None:
    assert url_of(store) in refused("stats", "--store", store)
    assert refused("rollback", "--store", store)


def test_a_damaged_snapshot_is_not_published(refused: Any, corpus: Run, store: str, snapshots: list[Path]) -> None:
    assert "no readable manifest" in refused("publish", snapshots[0].parent / "nowhere", "--store", store)
    name = next(iter(read_manifest(snapshots[0]).files))
    (snapshots[0] / name).write_bytes(b"")
    for words in (("publish", snapshots[0], "--store", store), ("stats", snapshots[0])):
        said = refused(*words)
        assert name in said
        assert str(snapshots[0]) in said
    (snapshots[1] / MANIFEST).write_text('{"format": "other", "format_version": 9}')
    assert "'other' version 9" in refused("publish", snapshots[1], "--store", store)
    assert listed(corpus, "--store", store)["versions"] == []


def test_a_store_that_is_away_is_named_without_its_password(refused: Any, redis: RedisServer, snapshots: Any) -> None:
    for words in (("list",), ("publish", snapshots[0]), ("rollback",), ("activate", "a"), ("stats",)):
        said = refused(*words, "--store", f"redis://user:{PASSWORD}@127.0.0.1:1/0")
        assert "--store" in said
        assert "127.0.0.1:1" in said
        assert PASSWORD not in said


def test_a_wrong_password_is_said_without_showing_it(refused: Any, redis: RedisServer) -> None:
    said = refused("list", "--store", redis.url.replace("redis://", "redis://:wrong-one@"))
    assert "--store" in said
    assert "wrong-one" not in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["stats"], "either DIR"),
        (["stats", "here", "--store", "there"], "either DIR"),
        (["publish", "here", "--store", "there", "--no-activate", "--expect", "3"], "--expect"),
        (["list", "--store", "ftp://host"], "ftp://host"),
        (["list", "--store", ""], "'' is not a folder"),
        (["list", "--store", "redis://localhost", "--namespace", "a b"], "a b"),
        (["list", "--store", "redis://localhost", "--namespace", "../up"], "../up"),
        (["list", "--store", "redis://localhost", "--namespace", ".."], "no dot first"),
        (["list", "--store", "redis:/host"], "'//' is missing"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_one_clear_line(words: list[str], says: str, refused: Any) -> None:
    assert says in refused(*words)


def test_a_namespace_or_store_is_needed_where_nothing_else_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["list"], ["publish", "DIR"], ["activate", "abc"], ["rollback"]):
        with pytest.raises(SystemExit):
            main(["corpus", *words])
        assert "--store" in capsys.readouterr().err
