"""Snapshots on their way from a store to those who draft: taken over, refused, kept, swapped; without a cluster."""

from __future__ import annotations

import itertools
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from retrieval_store.service import reader
from retrieval_store.service.backoff import pause_after
from retrieval_store.service.compaction import Target
from retrieval_store.service.manifest_feed import Answer, Known, Offer
from retrieval_store.service.reader import Reader
from retrieval_store.stores.open import open_store
from tests.support.retrieval_service import SHARED, TARGET, Direct, build, eventually, follows, publish, running

ONE, TWO, THREE = [5, 6, 7, 8, 9], [5, 6, 70, 80, 90], [5, 6, 71, 81, 91]


@pytest.fixture
def where(tmp_path: Path) -> str:
    """A store in a folder."""
    return str(tmp_path / "store")


@dataclass
class Elsewhere(Direct):
    """The service as a reader on another node sees it: what it offers is not on that node's disk."""

    folder: Path = Path()

    def changes(self, known: Known, timeout: float) -> Answer:
        answer = super().changes(known, timeout)
        offers = {}
        for name, offer in answer.offers.items():
            assert offer.base is not None
            there = msgspec.structs.replace(offer.base, folder=str(self.folder / offer.base.version))
            offers[name] = Offer(there)
        return Answer(offers, answer.status)


def test_what_is_published_reaches_the_drafts_and_a_rollback_brings_the_former_back(where: str, tmp_path: Path) -> None:
    with running(where, tmp_path / "cache") as node:
        store = node.store()
        assert node.says([5, 6]) == []
        first = publish(store, [ONE], tmp_path)
        eventually(lambda: node.version() == first)
        assert node.says([5, 6]) == [7, 8, 9]
        second = publish(store, [TWO], tmp_path)
        eventually(lambda: node.version() == second)
        assert node.says([5, 6]) == [70, 80, 90]
        store.rollback()
        eventually(lambda: node.version() == first)
        assert node.says([5, 6]) == [7, 8, 9]
        assert node.reader.n_swaps == 3
        assert node.problem == ""
        assert node.staleness < 5


def test_a_snapshot_of_another_tokenizer_is_refused_by_name_and_the_old_one_stays(where: str, tmp_path: Path) -> None:
    with running(where, tmp_path / "cache") as node:
        store = node.store()
        first = publish(store, [ONE], tmp_path)
        eventually(lambda: node.version() == first)
        foreign = store.publish(build([TWO], tmp_path, Target("u" * 32, 1000)))
        store.activate(foreign)
        eventually(lambda: foreign in node.problem)
        assert "u" * 32 in node.problem
        assert node.says([5, 6]) == [7, 8, 9]
        time.sleep(0.3)
        assert node.service.status().refused == 1  # counted once, however often it is looked at
        assert node.staleness >= 0.2
        third = publish(store, [THREE], tmp_path)
        eventually(lambda: node.version() == third)
        eventually(lambda: node.problem == "")


@pytest.mark.parametrize("hurt", [lambda raw: raw[:-4], lambda raw: raw[:-4] + b"abcd"], ids=["truncated", "changed"])
def test_a_damaged_snapshot_is_refused_by_name_and_the_old_one_stays(
    where: str, tmp_path: Path, hurt: Callable[[bytes], bytes]
) -> None:
    with running(where, tmp_path / "cache") as node:
        first = publish(node.store(), [ONE], tmp_path)
        eventually(lambda: node.version() == first)
    second = publish(open_store(where, SHARED), [TWO], tmp_path)
    (file,) = Path(where).rglob(f"{second}/text.bin")
    file.chmod(0o600)
    file.write_bytes(hurt(file.read_bytes()))
    with running(where, tmp_path / "cache") as node:
        eventually(lambda: second in node.problem)
        assert "text.bin" in node.problem
        eventually(lambda: node.says([5, 6]) == [7, 8, 9])
        assert node.service.status().refused == 1
        assert not list((tmp_path / "cache").rglob(second))


def test_what_is_served_survives_a_store_that_is_away_and_a_restart_without_it(where: str, tmp_path: Path) -> None:
    with running(where, tmp_path / "cache") as node:
        first = publish(node.store(), [ONE], tmp_path)
        eventually(lambda: node.version() == first)
    hidden = tmp_path / "hidden"
    Path(where).rename(hidden)
    Path(where).write_text("no folder any more")
    with running(where, tmp_path / "cache") as node:
        eventually(lambda: node.says([5, 6]) == [7, 8, 9])
        eventually(lambda: "away" in node.problem)
        before = node.staleness
        time.sleep(0.2)
        assert node.staleness >= before + 0.15
        Path(where).unlink()
        hidden.rename(where)
        second = publish(node.store(), [TWO], tmp_path)
        eventually(lambda: node.version() == second)
        eventually(lambda: node.staleness < 0.15)


def test_a_store_that_comes_back_empty_does_not_take_retrieval_away(where: str, tmp_path: Path) -> None:
    with running(where, tmp_path / "cache") as node:
        first = publish(node.store(), [ONE], tmp_path)
        eventually(lambda: node.version() == first)
        shutil.rmtree(where)
        eventually(lambda: "no snapshot" in node.problem)
        assert first in node.problem
        assert node.says([5, 6]) == [7, 8, 9]
        second = publish(node.store(), [TWO], tmp_path)
        eventually(lambda: node.version() == second)


def test_a_reader_keeps_what_it_has_while_the_service_is_away_and_goes_on_with_the_next_one(
    where: str, tmp_path: Path
) -> None:
    with running(where, tmp_path / "cache") as node:
        first = publish(node.store(), [ONE], tmp_path)
        eventually(lambda: node.version() == first)
        node.source.is_away = True
        second = publish(node.store(), [TWO], tmp_path)
        eventually(lambda: node.reader.silence > 0.3)
        assert node.says([5, 6]) == [7, 8, 9]
        node.source.is_away = False
        eventually(lambda: node.version() == second)
        with running(where, tmp_path / "cache") as other:  # a service that was replaced and has not looked yet
            node.source.service = other.service
            time.sleep(0.2)
            assert node.says([5, 6]) == [70, 80, 90]


def test_on_another_node_the_files_come_through_the_service_once_for_all_processes(where: str, tmp_path: Path) -> None:
    with running(where, tmp_path / "cache") as node:
        publish(node.store(), [ONE], tmp_path)
        eventually(lambda: node.version())
        sources = [Elsewhere(node.service, folder=tmp_path / "elsewhere") for _ in range(3)]
        readers = [Reader(source, SHARED, TARGET.tokenizer_hash, poll=0.05) for source in sources]
        for each in readers:
            each.start()
        for each in readers:
            eventually(lambda each=each: follows(each.of(""), [5, 6]) == [7, 8, 9])  # type: ignore[misc]
            each.stop()
        assert sorted(source.reads > 0 for source in sources) == [False, False, True]
        assert sorted(path.name for path in (tmp_path / "elsewhere").iterdir()) == [node.version()]


def test_a_copy_that_breaks_off_leaves_nothing_and_is_tried_again(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "REFUSED_S", 0.1)
    with running(where, tmp_path / "cache") as node:
        publish(node.store(), [ONE], tmp_path)
        eventually(lambda: node.version())
        elsewhere = tmp_path / "elsewhere"

        class Breaking(Elsewhere):
            def read(self, namespace: str, version: str, file: str, offset: int) -> bytes:
                raw = super().read(namespace, version, file, offset)
                return raw[:-1] if self.reads == 3 else raw

        source = Breaking(node.service, folder=elsewhere)
        other = Reader(source, SHARED, TARGET.tokenizer_hash)
        other.follow(0.1)
        assert follows(other.of(""), [5, 6]) == []
        assert list(elsewhere.iterdir()) == []
        time.sleep(0.1)
        other.follow(0.1)
        assert follows(other.of(""), [5, 6]) == [7, 8, 9]


def test_files_that_are_not_offered_cannot_be_read(where: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    with running(where, tmp_path / "cache") as node:
        version = publish(node.store(), [ONE], tmp_path)
        eventually(lambda: node.version() == version)
        assert node.service.read(SHARED, version, "manifest.json", 0).startswith(b"{")
        for namespace, of, file in (
            (SHARED, version, "../../../../secret"),
            (SHARED, version, ".."),
            (SHARED, "0" * 16, "manifest.json"),
            ("a", version, "manifest.json"),
        ):
            with pytest.raises((LookupError, OSError)):
                node.service.read(namespace, of, file, 0)


def test_a_service_that_sends_a_large_snapshot_is_not_silent(where: str, tmp_path: Path) -> None:
    with running(where, tmp_path / "cache") as node:
        publish(node.store(), [ONE], tmp_path)
        eventually(lambda: node.version())
        reads: list[tuple[float, float]] = []  # when, and how long the service had been silent then

        class Slow(Elsewhere):
            def read(self, namespace: str, version: str, file: str, offset: int) -> bytes:
                reads.append((time.monotonic(), other.silence))
                time.sleep(0.2)
                return super().read(namespace, version, file, offset)

        other = Reader(Slow(node.service, folder=tmp_path / "elsewhere"), SHARED, TARGET.tokenizer_hash)
        other.follow(0.1)
        assert follows(other.of(""), [5, 6]) == [7, 8, 9]
        assert len(reads) > 3
        for (before, _), (now, silence) in itertools.pairwise(reads):
            assert silence <= now - before + 1e-3  # a sign of life came since the read before this one


def test_everybodys_snapshot_does_not_wait_for_a_tenants(where: str, tmp_path: Path) -> None:
    with running(where, tmp_path / "cache") as node:
        publish(node.store(), [ONE], tmp_path)
        publish(node.store("a"), [TWO], tmp_path)
        eventually(lambda: node.version() and node.says([5, 6], "a") == [70, 80, 90])
        seen: list[list[int]] = []

        class Watching(Elsewhere):
            def read(self, namespace: str, version: str, file: str, offset: int) -> bytes:
                if namespace == "a":
                    seen.append(follows(other.of(""), [5, 6]))
                return super().read(namespace, version, file, offset)

        other = Reader(Watching(node.service, folder=tmp_path / "elsewhere"), SHARED, TARGET.tokenizer_hash)
        other.of("a")
        other.follow(0.1)
        assert follows(other.of("a"), [5, 6]) == [70, 80, 90]
        assert seen[0] == [7, 8, 9]


def test_drafts_go_on_while_snapshots_are_swapped(where: str, tmp_path: Path) -> None:
    """Whatever a draft sees belongs to one snapshot, and asking never fails."""
    with running(where, tmp_path / "cache") as node:
        publish(node.store(), [ONE], tmp_path)
        eventually(lambda: node.says([5, 6]))
        seen: set[tuple[int, ...]] = set()
        over = threading.Event()

        def draft() -> None:
            while not over.is_set():
                seen.add(tuple(node.says([5, 6])))

        thread = threading.Thread(target=draft)
        thread.start()
        for text in (TWO, THREE, ONE, TWO):
            version = publish(node.store(), [text], tmp_path)
            eventually(lambda version=version: node.version() == version)  # type: ignore[misc]
            time.sleep(0.02)
        over.set()
        thread.join()
        assert seen == {(7, 8, 9), (70, 80, 90), (71, 81, 91)}


def test_pauses_double_up_to_a_limit_however_often_something_failed() -> None:
    assert [pause_after(failures, 0.5, 10.0) for failures in (1, 2, 3, 6, 10**6)] == [0.5, 1.0, 2.0, 10.0, 10.0]
