"""``spectra corpus publish|list|activate|rollback|stats``, on a folder and on a real Redis."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.corpus.stats import size, when
from retrieval_store.snapshots.snapshot import MANIFEST, Description, Source, read_manifest
from retrieval_store.snapshots.snapshot_writer import write_snapshot
from retrieval_store.stores.directory import DirectoryStore
from retrieval_store.stores.open import open_store
from tests.support.corpus_commands import TEXTS, Run, listed, url_of, versions_of


def facts_of(report: str) -> dict[str, str]:
    """The lines of a report: what, and its value."""
    return dict(re.split(r"  +", line.strip(), maxsplit=1) for line in report.splitlines())


def test_a_snapshot_is_published_replaced_and_brought_back(
    corpus: Run, refused: Callable[..., str], store: str, snapshots: list[Path]
) -> None:
    first, second, third = versions_of(snapshots)
    flags = ("--store", store)
    status, out, err = corpus("publish", snapshots[0], *flags)
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        f"published {first} (2 texts, 9 tokens, {size(read_manifest(snapshots[0]).bytes)}) in {url_of(store)}, "
        "namespace default",
        f"current: {first} (revision 1)",
    ]
    assert corpus("publish", snapshots[1], *flags)[1].endswith(f"current: {second} (revision 2)\n")
    third_lines = corpus("publish", snapshots[2], "--no-activate", "--unused", 5000, *flags)[1].splitlines()
    assert third_lines[0].startswith(f"published {third}")
    known = listed(corpus, *flags)
    assert {key: known[key] for key in ("store", "namespace", "current", "revision")} == {
        "store": url_of(store),
        "namespace": "default",
        "current": second,
        "revision": 2,
    }
    assert [(one["version"], one["is_current"]) for one in known["versions"]] == [
        (first, False),
        (second, True),
        (third, False),
    ]
    expires = [one["expires_at"] for one in known["versions"]]
    assert [at is None for at in expires] == [False, True, False]
    assert 4000 < expires[2] - time.time() <= 5000
    assert third_lines[1:] == [f"{third} expires at {when(expires[2])}, unless it is activated before"]
    lines = corpus("activate", third[:6], "--expect", 2, *flags)[1].splitlines()
    expires = [one["expires_at"] for one in listed(corpus, *flags)["versions"]]
    assert [at is None for at in expires] == [False, False, True]
    assert lines == [
        f"{second} expires at {when(expires[1])}, and can be current again until then",
        f"current: {third} (revision 3)",
    ]
    assert corpus("rollback", *flags)[1].splitlines()[1:] == [f"current: {second} (revision 4)"]
    assert "billion" in refused("publish", snapshots[2], "--unused", 0, *flags)


def test_a_list_is_a_table_with_a_star_before_the_current_version(
    corpus: Run, store: str, snapshots: list[Path]
) -> None:
    assert corpus("list", "--store", store) == (
        0,
        f"no versions in {url_of(store)}, namespace default\ncurrent: none (revision 0)\n",
        "",
    )
    for folder in snapshots[:2]:
        corpus("publish", folder, "--store", store)
    lines = corpus("list", "--redis", store)[1].splitlines()
    first, second = map(read_manifest, snapshots[:2])
    expires = listed(corpus, "--store", store)["versions"][0]["expires_at"]
    assert lines[0].split() == ["version", "created", "texts", "tokens", "size", "expires"]
    assert lines[1].split() == [
        first.version, *when(first.created).split(), "2", "9", *size(first.bytes).split(), *when(expires).split(),
    ]  # fmt: skip
    assert lines[2].split() == [
        "*",
        second.version,
        *when(second.created).split(),
        "2",
        "9",
        *size(second.bytes).split(),
    ]
    assert lines[3] == f"current: {second.version} (revision 2)"


def test_namespaces_are_apart(corpus: Run, store: str, snapshots: list[Path]) -> None:
    corpus("publish", snapshots[0], "--store", store)
    corpus("publish", snapshots[1], "--store", store, "--namespace", "tenant-2")
    for namespace, folder in (("default", snapshots[0]), ("tenant-2", snapshots[1])):
        known = listed(corpus, "--store", store, "--namespace", namespace)
        assert known["namespace"] == namespace
        assert [one["version"] for one in known["versions"]] == versions_of([folder])


def test_what_a_snapshot_holds_is_told_of_a_folder_and_of_the_current_one(
    corpus: Run, store: str, tmp_path: Path
) -> None:
    about = Description(
        tokenizer_hash="f" * 32,
        vocab_size=4096,
        model="demo-target",
        model_hash="c" * 32,
        sources=(Source("talk.jsonl", "0" * 64, 10, 2),),
        perplexity=(1.25, 7.5),
    )
    write_snapshot([np.array(text, np.int32) for text in TEXTS], tmp_path / "snapshot", about)
    manifest = read_manifest(tmp_path / "snapshot")
    status, report, _ = corpus("stats", tmp_path / "snapshot")
    assert status == 0
    told = facts_of(report)
    assert told["version"] == manifest.version
    assert (told["texts"], told["tokens"], told["perplexity"]) == ("2", "9", "1.25 to 7.50")
    assert told["tokenizer"] == "f" * 32 + ", 4,096 ids"
    assert told["model"] == "demo-target " + "c" * 32
    assert told["talk.jsonl"] == "2 of 10 texts kept"
    for name, entry in manifest.files.items():
        assert told[name] == size(entry.bytes)

    corpus("publish", tmp_path / "snapshot", "--store", store)
    with_log = open_store(store, "default")
    with_log.append([[1, 2, 3], [4, 5]], 100)
    with_log.close()
    of_store = corpus("stats", "--store", store)[1]
    assert of_store == f"{report}log: 2 texts, 5 tokens\ncurrent: {manifest.version} (revision 1)\n"
    document = json.loads(corpus("stats", tmp_path / "snapshot", "--json")[1])
    assert document["about"]["perplexity"] == [1.25, 7.5]
    assert document["bytes"] == sum(entry.bytes for entry in manifest.files.values())
    of_store = json.loads(corpus("stats", "--store", store, "--json")[1])
    assert of_store == {
        **document,
        "store": url_of(store),
        "namespace": "default",
        "current": manifest.version,
        "revision": 1,
        "log": {"texts": 2, "tokens": 5},
    }


def test_a_tilde_is_the_home_folder_also_behind_an_equals_sign(
    corpus: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert f"{tmp_path.as_uri()}/store, " in corpus("list", "--store=~/store")[1]


def test_an_unrefined_snapshot_says_so(corpus: Run, snapshots: list[Path]) -> None:
    told = facts_of(corpus("stats", snapshots[0])[1])
    assert (told["perplexity"], told["model"]) == ("unrefined", "none")


def test_a_move_by_another_process_is_a_conflict_and_changes_nothing(
    refused: Any, corpus: Run, store: str, snapshots: list[Path]
) -> None:
    first, second, _ = versions_of(snapshots)
    flags = ("--store", store)
    corpus("publish", snapshots[0], *flags)
    corpus("publish", snapshots[1], "--no-activate", *flags)
    assert "revision" in refused("activate", second, "--expect", 0, *flags)
    assert listed(corpus, *flags)["current"] == first
    status, out, err = corpus("publish", snapshots[2], "--expect", 7, *flags)
    assert (status, out.splitlines()[1:]) == (2, [])
    assert "but is at revision 1" in err
    assert err.endswith("is published, but not current\n")
    assert listed(corpus, *flags)["current"] == first


def test_a_version_is_named_by_any_beginning_that_only_it_has(
    refused: Any, corpus: Run, store: str, snapshots: list[Path]
) -> None:
    flags = ("--store", store)
    assert refused("activate", "abc", *flags) == (
        f"spectra: no version begins with 'abc' in {url_of(store)}, namespace default; there is none"
    )
    for folder in snapshots:
        corpus("publish", folder, *flags)
    known = versions_of(snapshots)
    assert refused("activate", "xyz", *flags).endswith(f"there is {', '.join(known)}")
    assert refused("activate", "", *flags) == f"spectra: 3 versions begin with '': {', '.join(known)}"


def test_a_version_of_another_format_is_listed_and_holds_up_nothing(
    corpus: Run, refused: Any, tmp_path: Path, snapshots: list[Path]
) -> None:
    flags = ("--store", tmp_path / "store")
    for folder in snapshots[:2]:
        corpus("publish", folder, *flags)
    old, new = versions_of(snapshots[:2])
    (tmp_path / "store" / "default" / "versions" / old / MANIFEST).write_text('{"format": "other"}')
    status, out, err = corpus("list", *flags)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[1].split()[:2] == [old, "unreadable"]
    assert lines[2].split()[:2] == ["*", new]
    assert lines[3].startswith(f"unreadable: snapshot {old} in ")
    assert "has format 'other'" in lines[3]
    first, second = listed(corpus, *flags)["versions"]
    assert (first["version"], first["is_current"]) == (old, False)
    assert "has format 'other'" in first["problem"]
    assert (second["version"], second["texts"]) == (new, 2)
    assert corpus("activate", new[:6], *flags)[1] == f"current: {new} (revision 2)\n"
    assert "has format 'other'" in refused("activate", old, *flags)


def test_a_whole_version_is_activated_without_a_listing(
    refused: Any, corpus: Run, tmp_path: Path, snapshots: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("--store", tmp_path / "store")
    [version] = versions_of(snapshots[:1])
    corpus("publish", snapshots[0], "--no-activate", *flags)
    monkeypatch.delattr(DirectoryStore, "versions")
    assert corpus("activate", version, *flags)[1] == f"current: {version} (revision 1)\n"
    assert "has no version 0123456789abcdef" in refused("activate", "0123456789abcdef", *flags)


def test_the_installed_command_publishes(store: str, snapshots: list[Path]) -> None:
    command = [sys.executable, "-m", "app.cli", "corpus", "publish", str(snapshots[0]), "--store", store]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == f"current: {versions_of(snapshots)[0]} (revision 1)"
    assert done.stderr == ""
