"""Snapshots travel from a store through the service to drafts; unusable ones are refused, and the old one stays."""

from __future__ import annotations

import os
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from retrieval_store.service import reader
from retrieval_store.service.compaction import TargetVocabulary
from retrieval_store.service.manifest_feed import Known, ManifestChanges, NamespaceOffer
from retrieval_store.service.reader import Reader
from retrieval_store.stores.open import open_store
from tests.deployments.retrieval.conftest import ScriptedTime
from tests.support.retrieval_service import SHARED, TARGET, Direct, build, follows, publish, running
from tests.support.waiting import wait_until

ONE, TWO, THREE = [5, 6, 7, 8, 9], [5, 6, 70, 80, 90], [5, 6, 71, 81, 91]


@dataclass
class Elsewhere(Direct):
    """The service as a reader on another node sees it: its files are not on that node's disk."""

    folder: Path = Path()

    def changes(self, known: Known, timeout: float) -> ManifestChanges:
        answer = super().changes(known, timeout)
        offers = {}
        for name, offer in answer.offers.items():
            assert offer.base is not None
            there = msgspec.structs.replace(offer.base, folder=str(self.folder / offer.base.version))
            offers[name] = NamespaceOffer(there)
        return ManifestChanges(offers, answer.status)


def test_a_published_snapshot_reaches_drafts_and_a_rollback_brings_the_previous_one_back(
    where: str, tmp_path: Path
) -> None:
    with running(where, tmp_path / "cache") as node:
        assert node.drafts([5, 6]) == []
        first = node.publish([ONE], tmp_path)
        assert node.drafts([5, 6]) == [7, 8, 9]
        node.publish([TWO], tmp_path)
        assert node.drafts([5, 6]) == [70, 80, 90]
        node.store().rollback()
        wait_until(lambda: node.version() == first)
        assert node.drafts([5, 6]) == [7, 8, 9]
        assert node.reader.n_swaps == 3
        assert node.problem == ""


def test_a_foreign_or_damaged_snapshot_is_refused_by_name_and_the_old_one_stays(where: str, tmp_path: Path) -> None:
    with running(where, tmp_path / "cache") as node:
        node.publish([ONE], tmp_path)
        foreign = node.store().publish(build([TWO], tmp_path, TargetVocabulary("u" * 32, 1000)))
        node.store().activate(foreign)
        wait_until(lambda: foreign in node.problem)
        assert "u" * 32 in node.problem
        assert node.drafts([5, 6]) == [7, 8, 9]
        stale = node.staleness
        wait_until(lambda: node.staleness > stale)
        assert node.service.status().refused == 1
        node.publish([THREE], tmp_path)
        wait_until(lambda: node.problem == "")
    damaged = publish(open_store(where, SHARED), [TWO], tmp_path)
    (file,) = Path(where).rglob(f"{damaged}/text.bin")
    file.chmod(0o600)
    file.write_bytes(file.read_bytes()[:-4] + b"abcd")
    with running(where, tmp_path / "cache") as node:
        wait_until(lambda: damaged in node.problem)
        assert "text.bin" in node.problem
        node.wait_for_drafts([5, 6], [71, 81, 91])
        assert node.service.status().refused == 1
        assert not list((tmp_path / "cache").rglob(damaged))


def test_drafts_survive_a_store_that_is_away_at_a_restart_or_comes_back_empty(where: str, tmp_path: Path) -> None:
    with running(where, tmp_path / "cache") as node:
        node.publish([ONE], tmp_path)
    Path(where).rename(tmp_path / "hidden")
    Path(where).write_text("no folder any more")
    with running(where, tmp_path / "cache") as node:
        node.wait_for_drafts([5, 6], [7, 8, 9])
        wait_until(lambda: "away" in node.problem)
        stale = node.staleness
        wait_until(lambda: node.staleness > stale)
        Path(where).unlink()
        (tmp_path / "hidden").rename(where)
        second = node.publish([TWO], tmp_path)
        wait_until(lambda: node.problem == "")
        shutil.rmtree(where)
        wait_until(lambda: "no snapshot" in node.problem)
        assert second in node.problem
        assert node.drafts([5, 6]) == [70, 80, 90]
        node.publish([THREE], tmp_path)


def test_a_reader_keeps_its_snapshot_while_the_service_is_away_and_continues_with_the_next_service(
    where: str, tmp_path: Path
) -> None:
    with running(where, tmp_path / "cache") as node:
        node.publish([ONE], tmp_path)
        node.source.is_away = True
        second = publish(node.store(), [TWO], tmp_path)
        node.poll(1)
        assert node.drafts([5, 6]) == [7, 8, 9]
        node.source.is_away = False
        wait_until(lambda: node.version() == second)
        with running(where, tmp_path / "cache") as other:  # has not looked at the store yet
            node.source.service = other.service
            third = publish(node.store(), [THREE], tmp_path)

            def has_the_third() -> bool:
                assert node.drafts([5, 6]) != []
                return node.version() == third

            wait_until(has_the_third)


def test_processes_of_another_node_fetch_the_files_once_through_the_service(where: str, tmp_path: Path) -> None:
    with running(where, tmp_path / "cache") as node:
        version = node.publish([ONE], tmp_path)
        sources = [Elsewhere(node.service, folder=tmp_path / "elsewhere") for _ in range(3)]
        readers = [Reader(source, SHARED, TARGET.tokenizer_hash, poll=0.05) for source in sources]
        for each in readers:
            each.start()
        for each in readers:
            wait_until(lambda each=each: follows(each.of(""), [5, 6]) == [7, 8, 9])  # type: ignore[misc]
            each.stop()
        assert sorted(source.n_reads > 0 for source in sources) == [False, False, True]
        assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == [version]


def test_a_copy_that_breaks_off_leaves_nothing_and_is_tried_again(
    where: str, tmp_path: Path, clock: ScriptedTime
) -> None:
    with running(where, tmp_path / "cache") as node:
        publish(node.store(), [ONE], tmp_path)
        elsewhere = tmp_path / "elsewhere"

        class Breaking(Elsewhere):
            def read(self, namespace: str, version: str, file: str, offset: int) -> bytes:
                raw = super().read(namespace, version, file, offset)
                return raw[:-1] if self.n_reads == 3 else raw

        source = Breaking(node.service, folder=elsewhere)
        other = Reader(source, SHARED, TARGET.tokenizer_hash, poll=0.0)
        wait_until(lambda: (other.follow(0.0), source.n_reads)[1])
        assert follows(other.of(""), [5, 6]) == []
        assert list(elsewhere.iterdir()) == []
        clock.now += reader.REFUSED_S + 1
        other.follow(0.0)
        assert follows(other.of(""), [5, 6]) == [7, 8, 9]


def test_only_offered_files_can_be_read(where: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    with running(where, tmp_path / "cache") as node:
        version = node.publish([ONE], tmp_path)
        assert node.service.read(SHARED, version, "manifest.json", 0).startswith(b"{")
        (folder,) = (tmp_path / "cache").rglob(version)
        for namespace, of, file in (
            (SHARED, version, os.path.relpath(tmp_path / "secret", folder)),
            (SHARED, version, ".."),
            (SHARED, "0" * 16, "manifest.json"),
            ("a", version, "manifest.json"),
        ):
            with pytest.raises((LookupError, OSError)):
                node.service.read(namespace, of, file, 0)


def test_the_shared_snapshot_does_not_wait_for_a_tenants_and_each_chunk_ends_the_silence(
    where: str, tmp_path: Path, clock: ScriptedTime
) -> None:
    with running(where, tmp_path / "cache") as node:
        publish(node.store(), [ONE], tmp_path)
        publish(node.store("a"), [TWO], tmp_path)
        wait_until(lambda: len(node.service.changes({SHARED: ("", ""), "a": ("", "")}).offers) == 2)
        seen: list[tuple[float, list[int]]] = []

        class SlowFeed(Elsewhere):
            def read(self, namespace: str, version: str, file: str, offset: int) -> bytes:
                if namespace == "a":
                    seen.append((other.silence, follows(other.of(""), [5, 6])))
                clock.now += 10.0
                return super().read(namespace, version, file, offset)

        other = Reader(SlowFeed(node.service, folder=tmp_path / "elsewhere"), SHARED, TARGET.tokenizer_hash)
        other.of("a")
        other.follow(0.0)
        assert follows(other.of("a"), [5, 6]) == [70, 80, 90]
        assert len(seen) > 3
        assert all(one == (0.0, [7, 8, 9]) for one in seen)


def test_drafts_see_one_snapshot_or_the_next_while_they_are_swapped(where: str, tmp_path: Path) -> None:
    with running(where, tmp_path / "cache") as node:
        node.publish([ONE], tmp_path)
        seen: set[tuple[int, ...]] = set()
        over = threading.Event()

        def draft() -> None:
            while not over.is_set():
                seen.add(tuple(node.drafts([5, 6])))

        thread = threading.Thread(target=draft)
        thread.start()
        for text in (TWO, THREE, ONE, TWO):
            node.publish([text], tmp_path)
            wait_until(lambda text=text: tuple(text[2:]) in seen)  # type: ignore[misc]
        over.set()
        thread.join()
        assert seen == {(7, 8, 9), (70, 80, 90), (71, 81, 91)}
