"""A URL or path names a kind of store; anything else is refused without showing a password."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from retrieval_store.errors import StoreAddressError, StoreError, StoreUnavailableError
from retrieval_store.stores.directory import DirectoryStore
from retrieval_store.stores.live_text import decode_tokens
from retrieval_store.stores.memory import MemoryStore
from retrieval_store.stores.open import open_store, shown
from retrieval_store.stores.records import StoreOptions
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
    for where in ((tmp_path / "a b").as_uri(), f"file://localhost{tmp_path}/a%20b"):
        assert open_store(where, "space").manifest(version).version == version
    assert (shown("/some/folder"), shown("memory://here")) == ("/some/folder", "memory://here")


@pytest.mark.parametrize(
    ("where", "namespace", "said"),
    [
        *((where, "space", "") for where in ("", "http://h", "file://h/x", "file://", "memory://", "memory://a/b")),
        *((where, "space", "") for where in ("a\0b", "s3://b")),
        *(("memory://names", name, "namespace") for name in ("x" * 201, "ä" * 40, "\ud800")),
        *((where, "space", "'//' is missing") for where in ("redis:/:secret@h", "rediss:secret", "redis:")),
        ("Redis+cluster:/u:secret@h/0", "space", "'//' is missing"),
    ],
    ids=ascii,
)
def test_an_address_or_namespace_that_names_no_store_is_refused(where: str, namespace: str, said: str) -> None:
    with pytest.raises(StoreAddressError, match=said or None) as refused:
        open_store(where, namespace)
    assert "secret" not in f"{refused.value} {shown(where)}"


def test_memory_stores_of_one_name_share_their_contents() -> None:
    one, same, other = (open_store(f"memory://{name}", "space") for name in ("one", "one", "other"))
    one.append([[1]], 10)
    assert len(same.entries()) == 1
    assert other.entries() == []


def test_a_file_in_place_of_the_directory_makes_the_store_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    make_snapshot(tmp_path / "built", 1)
    store = open_store(tmp_path / "file", "space")
    for use in (store.current, lambda: store.publish(tmp_path / "built"), lambda: store.append([[1]], 10)):
        with pytest.raises(StoreUnavailableError):
            use()


def test_a_file_of_a_directory_store_that_does_not_decode_is_named(tmp_path: Path) -> None:
    store = open_store(tmp_path, "space")
    store.append([[1]], 10)
    (tmp_path / "space" / "log.sqlite").write_bytes(b"no database" * 100)
    with pytest.raises(StoreError, match=r"log\.sqlite"):
        store.entries()
    for raw in (b"", b"\xff", b"[]", b'{"pointer": {"version": "../..", "revision": 1}}'):
        (tmp_path / "space" / "current.json").write_bytes(raw)
        with pytest.raises(StoreError, match=r"current\.json"):
            store.current()


def test_wrong_options_are_refused_by_name() -> None:
    for wrong in ({"grace_seconds": -1.0}, {"chunk_bytes": 0}, {"chunk_bytes": 1 << 30}, {"read_seconds": 0.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            StoreOptions(**wrong)  # type: ignore[arg-type]
    with pytest.raises(StoreError, match=r"nowhere\.pem"):
        open_store("rediss://h/0?ca=nowhere.pem", "space")


def test_a_log_entry_that_does_not_decode_is_empty_and_named_once(caplog: pytest.LogCaptureFixture) -> None:
    assert [list(decode_tokens(raw, "1-2", "here")) for raw in (b"12345", b"\xff" * 4, b"\1\0\0\0")] == [[], [], [1]]
    (warned,) = caplog.records
    assert "1-2" in warned.getMessage()
