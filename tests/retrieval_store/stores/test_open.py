"""Which kind of store a URL or path means."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from retrieval_store.errors import StoreAddressError, StoreError, StoreUnavailableError
from retrieval_store.stores.base import StoreOptions
from retrieval_store.stores.directory import DirectoryStore
from retrieval_store.stores.memory import MemoryStore
from retrieval_store.stores.open import open_store, shown
from retrieval_store.stores.redis import RedisStore
from tests.support.snapshot_folders import make_snapshot


def test_paths_and_urls_name_their_stores(tmp_path: Path) -> None:
    places = {
        str(tmp_path / "a b"): DirectoryStore,
        (tmp_path / "a b").as_uri(): DirectoryStore,
        "memory://here": MemoryStore,
        "redis://127.0.0.1:1/0": RedisStore,
        "redis+cluster://127.0.0.1:1": RedisStore,
        "redis+sentinel://127.0.0.1:1/main": RedisStore,
    }
    for where, kind in places.items():
        with closing(open_store(where, "space")) as store:
            assert type(store) is kind
            assert store.namespace == "space"
    version = make_snapshot(tmp_path / "built", 1)
    open_store(tmp_path / "a b", "space").publish(tmp_path / "built")
    assert open_store((tmp_path / "a b").as_uri(), "space").manifest(version).version == version
    assert open_store(f"file://localhost{tmp_path}/a%20b", "space").manifest(version).version == version


@pytest.mark.parametrize(
    "where", ["", "http://h", "file://h/x", "file://", "memory://", "memory://a/b", "a\0b", "s3://b"]
)
def test_what_names_no_store_is_refused(where: str) -> None:
    with pytest.raises(StoreAddressError):
        open_store(where, "space")


@pytest.mark.parametrize("namespace", ["x" * 201, "ä" * 40, "\ud800"])
def test_namespaces_that_cannot_be_written_are_refused(namespace: str) -> None:
    with pytest.raises(StoreAddressError, match="namespace"):
        open_store("memory://names", namespace)


def test_memory_stores_share_by_name() -> None:
    one, same, other = (open_store(f"memory://{name}", "space") for name in ("one", "one", "other"))
    one.append([[1]], 10)
    assert len(same.entries()) == 1
    assert other.entries() == []


def test_a_directory_that_cannot_be_is_away(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    make_snapshot(tmp_path / "built", 1)
    store = open_store(tmp_path / "file", "space")
    for attempt in (store.current, lambda: store.publish(tmp_path / "built"), lambda: store.append([[1]], 10)):
        with pytest.raises(StoreUnavailableError):
            attempt()


def test_files_of_a_directory_store_that_do_not_decode_are_named(tmp_path: Path) -> None:
    store = open_store(tmp_path, "space")
    store.append([[1]], 10)
    (tmp_path / "space" / "log.sqlite").write_bytes(b"no database" * 100)
    with pytest.raises(StoreError, match=r"log\.sqlite"):
        store.entries()
    for raw in (b"", b"\xff", b"[]", b'{"pointer": {"version": "../..", "revision": 1}}'):
        (tmp_path / "space" / "current.json").write_bytes(raw)
        with pytest.raises(StoreError, match=r"current\.json"):
            store.current()


@pytest.mark.parametrize("where", ["redis:/:secret@h", "rediss:secret", "Redis+cluster:/u:secret@h/0", "redis:"])
def test_half_a_redis_url_is_no_folder_and_is_not_shown(where: str) -> None:
    with pytest.raises(StoreAddressError, match="'//' is missing") as refused:
        open_store(where, "space")
    assert "secret" not in f"{refused.value} {shown(where)}"


def test_plain_text_is_shown_as_it_is() -> None:
    assert shown("/some/folder") == "/some/folder"
    assert shown("memory://here") == "memory://here"


@pytest.mark.parametrize(
    "wrong", [{"grace_seconds": -1.0}, {"chunk_bytes": 0}, {"chunk_bytes": 1 << 30}, {"read_seconds": 0.0}]
)
def test_options_out_of_range_are_named(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        StoreOptions(**wrong)  # type: ignore[arg-type]
