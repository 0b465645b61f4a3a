"""``spectra corpus publish|list|activate|rollback|stats``, on a folder and on a real Redis."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from app.corpus.publication import format_size, format_time
from retrieval_store.snapshots.snapshot import MANIFEST, Description, SnapshotInput, read_manifest
from retrieval_store.snapshots.snapshot_writer import write_snapshot
from retrieval_store.stores.open import open_store
from retrieval_store.stores.redis_url import PASSWORD as PASSWORD_VARIABLE
from tests.support.redis_server import RedisServer
from tests.support.spectra_command import CliRun, run_cli

PASSWORD = "open-sesame"
TEXTS = [[1, 2, 3, 4, 5], [1, 2, 3, 6]]
ABOUT = Description(tokenizer_hash="t" * 32, vocab_size=4096)

corpus = partial(run_cli, "corpus")


def listed(*flags: object) -> dict[str, Any]:
    return corpus("list", "--json", *flags).document


def refusal(*words: object) -> str:
    """The one line that a command refuses with."""
    ran = corpus(*words)
    assert (ran.status, ran.out) == (2, "")
    [line] = ran.err.splitlines()
    assert line.startswith("spectra: ")
    return line


def facts(ran: CliRun) -> dict[str, str]:
    """The lines of a report, by name."""
    return dict(re.split(r"  +", line.strip(), maxsplit=1) for line in ran.out.splitlines())


@pytest.fixture
def snapshots(tmp_path: Path) -> list[Path]:
    folders = [tmp_path / f"snapshot {i}" for i in range(3)]
    for i, folder in enumerate(folders):
        write_snapshot([np.array(text, np.int32) + i for text in TEXTS], folder, ABOUT)
    return folders


@pytest.fixture
def versions(snapshots: list[Path]) -> list[str]:
    return [read_manifest(folder).version for folder in snapshots]


@pytest.fixture
def folder(tmp_path: Path) -> tuple[str, str]:
    """The flag of an empty store."""
    return "--store", str(tmp_path / "store")


@pytest.fixture(params=["folder", pytest.param("redis", marks=pytest.mark.cluster)])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty store as ``--store`` takes it, without its password."""
    if request.param == "folder":
        yield str(tmp_path / "store")
        return
    with RedisServer("--requirepass", PASSWORD) as server:
        monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORD)
        yield server.url


def test_a_snapshot_is_published_replaced_and_brought_back(
    store: str, snapshots: list[Path], versions: list[str]
) -> None:
    url = store if "://" in store else Path(store).as_uri()
    first, second, third = versions
    flags = ("--store", store)
    if "://" in store:
        assert "wrong-one" not in refusal("list", "--store", store.replace("redis://", "redis://:wrong-one@"))
    assert refusal("rollback", *flags)
    assert url in refusal("stats", *flags)
    ran = corpus("publish", snapshots[0], *flags)
    assert (ran.status, ran.err) == (0, "")
    size = format_size(read_manifest(snapshots[0]).bytes)
    assert ran.out.splitlines() == [
        f"published {first} (2 texts, 9 tokens, {size}) in {url}, namespace default",
        f"current: {first} (revision 1)",
    ]
    assert corpus("publish", snapshots[1], *flags).out.endswith(f"current: {second} (revision 2)\n")
    unused = corpus("publish", snapshots[2], "--no-activate", "--unused", 10**6, *flags).out.splitlines()
    known = listed(*flags)
    assert (known["store"], known["namespace"]) == (url, "default")
    assert (known["current"], known["revision"]) == (second, 2)
    assert [one["version"] for one in known["versions"]] == versions
    expires = [one["expires_at"] for one in known["versions"]]
    assert [at is None for at in expires] == [False, True, False]
    assert 0 < expires[2] - time.time() <= 10**6
    assert unused[1:] == [f"{third} expires at {format_time(expires[2])}, unless it is activated before"]
    lines = corpus("activate", third[:6], "--expect", 2, *flags).out.splitlines()
    expires = [one["expires_at"] for one in listed(*flags)["versions"]]
    assert [at is None for at in expires] == [False, False, True]
    assert lines == [
        f"{second} expires at {format_time(expires[1])}, and can be current again until then",
        f"current: {third} (revision 3)",
    ]
    assert corpus("rollback", *flags).out.splitlines()[1:] == [f"current: {second} (revision 4)"]
    table = [line.split() for line in corpus("list", *flags).out.splitlines()]
    assert table[0] == ["version", "created", "texts", "tokens", "size", "expires"]
    assert [row[row[0] == "*"] for row in table[1:4]] == versions
    assert [row[0] for row in table].index("*") == 2
    assert corpus("publish", snapshots[0], *flags, "--namespace", "tenant-2").status == 0
    assert [one["version"] for one in listed(*flags, "--namespace", "tenant-2")["versions"]] == [first]


def test_stats_describe_a_folder_and_the_current_snapshot_of_a_store(
    folder: tuple[str, str], tmp_path: Path, snapshots: list[Path]
) -> None:
    source = SnapshotInput("talk.jsonl", "0" * 64, 10, 2)
    about = msgspec.structs.replace(
        ABOUT, model="tiny-target", model_hash="c" * 32, sources=(source,), perplexity=(1.25, 7.5)
    )
    snapshot = tmp_path / "snapshot"
    write_snapshot([np.array(text, np.int32) for text in TEXTS], snapshot, about)
    manifest = read_manifest(snapshot)
    of_folder = corpus("stats", snapshot)
    shown = facts(of_folder)
    assert shown["version"] == manifest.version
    assert (shown["texts"], shown["tokens"], shown["perplexity"]) == ("2", "9", "1.25 to 7.50")
    assert shown["model"] == "tiny-target " + "c" * 32
    assert shown["talk.jsonl"] == "2 of 10 texts kept"
    unrefined = facts(corpus("stats", snapshots[0]))
    assert (unrefined["perplexity"], unrefined["model"]) == ("unrefined", "none")

    corpus("publish", snapshot, *folder)
    with_log = open_store(folder[1], "default")
    with_log.append([[1, 2, 3], [4, 5]], 100)
    with_log.close()
    of_store = corpus("stats", *folder).out
    assert of_store == f"{of_folder.out}log: 2 texts, 5 tokens\ncurrent: {manifest.version} (revision 1)\n"
    document = corpus("stats", snapshot, "--json").document
    assert document["about"]["perplexity"] == [1.25, 7.5]
    assert corpus("stats", *folder, "--json").document == {
        **document,
        "store": Path(folder[1]).as_uri(),
        "namespace": "default",
        "current": manifest.version,
        "revision": 1,
        "log": {"texts": 2, "tokens": 5},
    }


def test_a_change_by_another_process_is_a_conflict_and_changes_nothing(
    folder: tuple[str, str], snapshots: list[Path], versions: list[str]
) -> None:
    corpus("publish", snapshots[0], *folder)
    corpus("publish", snapshots[1], "--no-activate", *folder)
    assert "revision" in refusal("activate", versions[1], "--expect", 0, *folder)
    ran = corpus("publish", snapshots[2], "--expect", 7, *folder)
    assert (ran.status, ran.out.splitlines()[1:]) == (2, [])
    assert "it is at revision 1" in ran.err
    assert ran.err.endswith("is published, but not current\n")
    assert listed(*folder)["current"] == versions[0]


def test_a_version_is_named_by_any_unique_prefix(
    folder: tuple[str, str], snapshots: list[Path], versions: list[str]
) -> None:
    assert refusal("activate", "abc", *folder) == (
        f"spectra: no version begins with 'abc' in {Path(folder[1]).as_uri()}, namespace default; there is none"
    )
    for snapshot in snapshots:
        corpus("publish", snapshot, *folder)
    assert refusal("activate", "xyz", *folder).endswith(f"there is {', '.join(versions)}")
    assert (
        refusal("activate", "", *folder)
        == f"spectra: 3 versions begin with '': {', '.join(versions)}; give more characters"
    )
    assert "has no version 0123456789abcdef" in refusal("activate", "0123456789abcdef", *folder)


def test_a_version_of_another_format_is_listed_and_blocks_nothing(
    folder: tuple[str, str], tmp_path: Path, snapshots: list[Path], versions: list[str]
) -> None:
    for snapshot in snapshots[:2]:
        corpus("publish", snapshot, *folder)
    old, new = versions[:2]
    (tmp_path / "store" / "default" / "versions" / old / MANIFEST).write_text('{"format": "other"}')
    ran = corpus("list", *folder)
    assert (ran.status, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[1].split()[:2] == [old, "unreadable"]
    assert lines[2].split()[:2] == ["*", new]
    assert lines[3].startswith(f"unreadable: snapshot {old} in ")
    first, second = listed(*folder)["versions"]
    assert (first["version"], first["is_current"]) == (old, False)
    assert (second["version"], second["texts"]) == (new, 2)
    assert corpus("activate", new[:6], *folder).out == f"current: {new} (revision 2)\n"
    for said in (lines[3], first["problem"], refusal("activate", old, *folder)):
        assert "has format 'other'" in said


def test_a_damaged_snapshot_is_not_published(folder: tuple[str, str], snapshots: list[Path]) -> None:
    assert "no readable manifest" in refusal("publish", snapshots[0].parent / "nowhere", *folder)
    name = next(iter(read_manifest(snapshots[0]).files))
    (snapshots[0] / name).write_bytes(b"")
    for words in (("publish", snapshots[0], *folder), ("stats", snapshots[0])):
        said = refusal(*words)
        assert name in said
        assert str(snapshots[0]) in said
    (snapshots[1] / MANIFEST).write_text('{"format": "other", "format_version": 9}')
    assert "'other' version 9" in refusal("publish", snapshots[1], *folder)
    assert listed(*folder)["versions"] == []


def test_a_store_that_does_not_answer_is_named_without_its_password(snapshots: list[Path]) -> None:
    for words in (("list",), ("publish", snapshots[0]), ("rollback",), ("activate", "a"), ("stats",)):
        said = refusal(*words, "--store", f"redis://user:{PASSWORD}@127.0.0.1:1/0")
        assert "--store" in said
        assert "127.0.0.1:1" in said
        assert PASSWORD not in said
