"""Live learning: outputs become a delta next to the snapshot, and later part of a snapshot; no text is lost."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from retrieval_store.errors import ConflictError, StoreUnavailableError
from retrieval_store.service.compaction import LIVE, compact, log
from retrieval_store.service.learner import Learner, LiveOptions
from retrieval_store.service.live_texts import LiveTexts, Pending
from retrieval_store.service.sender import OutputSender
from retrieval_store.service.watcher import NamespaceWatcher
from retrieval_store.snapshots.cache import NodeCache
from retrieval_store.snapshots.snapshot_index import open_snapshot
from retrieval_store.stores.base import Store
from retrieval_store.stores.directory import DirectoryStore
from retrieval_store.stores.open import open_store
from retrieval_store.stores.records import Current
from tests.deployments.retrieval.conftest import ScriptedTime
from tests.support.retrieval_service import SHARED, TARGET, Direct, follows, publish, running
from tests.support.waiting import LIMIT_S, wait_until

QUICK = LiveOptions(tokens=1000, interval=0.05, compact_tokens=10**6)
BASE, ONE, TWO, THREE = [5, 6, 7, 8, 9], [5, 6, 70, 80, 90], [15, 16, 17, 18, 19], [25, 26, 27]


def logged(store: Store) -> list[list[int]]:
    return [list(entry.tokens) for entry in log(store, "")]


def test_outputs_are_looked_up_before_the_snapshot(where: str, tmp_path: Path) -> None:
    with running(where, tmp_path / "cache", [SHARED], QUICK) as node:
        node.publish([BASE], tmp_path)
        wait_until(lambda: node.source.learn(SHARED, [ONE, TWO]) == 0)
        node.wait_for_drafts([15, 16], [17, 18, 19])
        assert node.drafts([5, 6]) == [70, 80, 90]
        assert [follows([index], [5, 6]) for index in node.reader.of("")] == [[70, 80, 90], [7, 8, 9]]
        assert node.service.status().live_texts == 2


def test_outputs_of_a_namespace_reach_its_drafts_on_every_server_and_no_other_namespace(
    where: str, tmp_path: Path
) -> None:
    with (
        running(where, tmp_path / "cache", ["a", "b"], QUICK) as node,
        running(where, tmp_path / "elsewhere", ["a"], QUICK) as other,
    ):
        for name in "abc":
            assert node.drafts([0], name) == other.drafts([0], name) == []
        wait_until(lambda: not node.source.learn("a", [ONE]))
        wait_until(lambda: not node.source.learn("b", [TWO]))
        node.wait_for_drafts([5, 6], [70, 80, 90], "a")
        other.wait_for_drafts([5, 6], [70, 80, 90], "a")
        node.wait_for_drafts([15, 16], [17, 18, 19], "b")
        for name in ("", SHARED, "b", "c"):
            assert node.drafts([5, 6], name) == []
        for name in ("", SHARED, "a", "c"):
            assert node.drafts([15, 16], name) == []
        assert node.source.learn("c", [ONE]) == 1  # does not learn
        assert logged(node.store("c")) == []


def test_a_compaction_publishes_what_was_learnt_and_a_rollback_loses_no_text(where: str, tmp_path: Path) -> None:
    options = LiveOptions(tokens=1000, interval=0.05, compact_tokens=12)
    with running(where, tmp_path / "cache", [SHARED], options) as node:
        first = node.publish([BASE], tmp_path)
        wait_until(lambda: not node.source.learn(SHARED, [TWO]))
        node.wait_for_drafts([15, 16], [17, 18, 19])
        assert node.version() == first  # five tokens are not enough
        node.source.learn(SHARED, [ONE, THREE])
        wait_until(lambda: node.version() not in ("", first))
        wait_until(lambda: node.reader.versions(SHARED)[1] == "")  # nothing is left for a delta
        (index,) = node.reader.of("")
        assert [follows([index], context) for context in ([15, 16], [25, 26])] == [[17, 18, 19], [27]]
        assert {7, 70} <= set(follows([index], [5, 6]))
        assert len(logged(node.store())) == 3  # the previous base is still there
        manifest = node.store().manifest(node.version())
        assert manifest.texts == 4
        assert [(source.name, source.kept) for source in manifest.about.sources] == [(LIVE, 3)]
        wait_until(lambda: node.service.status().compactions == 1)
        node.store().rollback()
        wait_until(lambda: node.version() == first)
        node.wait_for_drafts([15, 16], [17, 18, 19])  # from the log again
        assert node.service.status().compactions == 1  # another one would undo the rollback
        assert node.store().current().version == first


class Rivalled(DirectoryStore):
    """Another publisher publishes between an upload and its activation."""

    def activate(self, version: str, expected: int | None = None) -> Current:
        parent = Path(self.url.removeprefix("file://")).parent
        publish(open_store(self.url, SHARED), [TWO], parent)
        return super().activate(version, expected)


def watched(store: Store, tmp_path: Path) -> tuple[NamespaceWatcher, Any]:
    folder = NodeCache(tmp_path / "cache", store.url).snapshots(SHARED)
    watcher = NamespaceWatcher(store, folder, TARGET.tokenizer_hash)
    watcher.look()
    return watcher, folder


def test_a_compaction_on_a_base_that_is_no_longer_current_does_nothing(where: str, tmp_path: Path) -> None:
    with closing(open_store(where, SHARED)) as store, closing(open_store(str(tmp_path / "empty"), SHARED)) as empty:
        publish(store, [BASE], tmp_path)
        store.append([ONE], 100)
        watcher, folder = watched(store, tmp_path)
        rival = publish(open_store(where, SHARED), [TWO], tmp_path)
        assert compact(store, watcher.served, folder, TARGET, 1000) == ""
        assert store.current().version == rival
        assert logged(store) == [ONE]
        empty.append([ONE], 100)  # a store that lost its snapshots does not get one of live texts alone
        assert compact(empty, watcher.served, folder, TARGET, 1000) == ""
        assert empty.versions() == []


def test_a_rival_that_publishes_during_a_compaction_is_not_overwritten(where: str, tmp_path: Path) -> None:
    store = Rivalled(Path(where), SHARED, open_store(where, SHARED).options)  # type: ignore[attr-defined]
    publish(open_store(where, SHARED), [BASE], tmp_path)
    store.append([ONE], 100)
    watcher, folder = watched(store, tmp_path)
    with pytest.raises(ConflictError):
        compact(store, watcher.served, folder, TARGET, 1000)
    watcher.look()
    assert watcher.served is not None
    assert watcher.served.manifest.texts == 1  # the rival's
    (loser,) = [version for version in store.versions() if version.manifest and version.manifest.texts == 2]
    assert loser.expires_at is not None
    assert logged(store) == [ONE]
    assert [path.name for path in folder.path.iterdir() if path.name.startswith(".")] == []


def test_compactions_drop_the_oldest_live_texts_and_keep_the_corpus(where: str, tmp_path: Path) -> None:
    with closing(open_store(where, SHARED)) as store:
        publish(store, [BASE, [5, 6, 7, 8, 9, 9]], tmp_path)
        watcher, folder = watched(store, tmp_path)
        for start in (100, 200, 300):
            store.append([range(start, start + 5)], 100)
            assert compact(store, watcher.served, folder, TARGET, limit=10)
            watcher.look()
        assert watcher.served is not None
        index = open_snapshot(folder.snapshot(watcher.served.part.version))
        assert [document[0] for document in index.documents()] == [5, 5, 200, 300]


def test_a_delta_holds_each_text_once_and_drops_the_oldest() -> None:
    texts = LiveTexts(limit=12, vocab_size=1000)
    assert [texts.add(text) for text in (ONE, TWO, ONE, ONE)] == [True, True, False, False]
    assert len(texts) == 2
    assert texts.add(THREE)
    assert [list(text) for text in texts.documents()] == [ONE, THREE]  # TWO was the oldest
    assert not texts.add([1, 2])  # too short to continue anything
    assert not texts.add([5, 6, 1000])  # no token of the target's
    assert texts.add(range(50))
    assert [list(text) for text in texts.documents()] == [list(range(38, 50))]


def test_undelivered_outputs_are_kept_up_to_a_limit_and_counted_beyond() -> None:
    pending = Pending(limit=3)
    pending.put([[1], [2]])
    taken = pending.take()
    pending.put([[3], [4]])
    pending.put_back(taken)
    assert pending.take() == [[2], [3], [4]]
    assert pending.dropped == 1


def learner_of(store: Store, folder: Path) -> Learner:
    return Learner(store, NodeCache(folder, store.url), TARGET, QUICK, lambda: None)


def step_later(learns: Learner, clock: ScriptedTime) -> bool:
    """A step once every pause is over."""
    clock.now += 1e6
    return learns.step()


def test_learning_waits_for_a_store_that_is_away_and_loses_nothing(
    where: str, tmp_path: Path, clock: ScriptedTime
) -> None:
    Path(where).write_text("no folder")
    learns = learner_of(open_store(where, SHARED), tmp_path / "cache")
    learns.learn([ONE])
    assert not learns.step()
    assert (learns.n_texts, learns.n_dropped, learns.delta) == (0, 0, None)
    Path(where).unlink()
    assert step_later(learns, clock)
    assert (learns.n_texts, learns.n_folds, learns.problem) == (1, 1, "")
    assert not step_later(learns, clock)  # nothing new, no new delta
    learns.learn([[-1, 5, 6], TWO])  # no log takes this
    step_later(learns, clock)
    assert (learns.n_texts, learns.n_dropped) == (1, 2)
    assert "-1" in learns.problem


def test_a_server_without_the_right_to_write_tries_seldom_and_learns_from_others(
    where: str, tmp_path: Path, clock: ScriptedTime, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[object] = []

    class ReadOnly(DirectoryStore):
        def append(self, texts: Sequence[Sequence[int]], limit: int) -> None:
            tries.append(texts)
            raise StoreUnavailableError("the user lacks a right: NOPERM")

    other = open_store(where, SHARED)
    learns = learner_of(ReadOnly(Path(where), SHARED, other.options), tmp_path / "cache")  # type: ignore[attr-defined]
    learns.learn([ONE])
    for text in (TWO, THREE):
        other.append([text], 100)
        assert learns.step()  # a new delta
        assert learns.problem == "cannot add outputs to the log: the user lacks a right: NOPERM"
        clock.now += 0.1
    assert learns.delta is not None
    assert learns.delta.tokens == 8
    assert (len(tries), len(learns._pending), learns.n_dropped) == (1, 1, 0)
    assert len([record for record in caplog.records if "NOPERM" in record.message]) == 1


def test_handing_over_an_output_never_waits_and_lost_outputs_are_counted(where: str, tmp_path: Path) -> None:
    go_on = threading.Event()

    class StuckFeed(Direct):
        def learn(self, namespace: str, texts: Sequence[Sequence[int]]) -> int:
            assert go_on.wait(LIMIT_S)
            raise TimeoutError("the service is away")

    with running(where, tmp_path / "cache", [SHARED], QUICK) as node:
        wait_until(lambda: not node.source.learn(SHARED, [TWO]))
        stuck, well = OutputSender(StuckFeed(node.service), [SHARED]), OutputSender(node.source, [SHARED])
        stuck.start()
        well.start()
        for number in range(3000):
            stuck.put(SHARED, [number % 900, 1, 2])
        go_on.set()
        wait_until(lambda: stuck.n_dropped == 3000)
        well.put(SHARED, ONE)
        well.put("other", TWO)
        node.wait_for_drafts([5, 6], [70, 80, 90])
        assert well.n_dropped == 0
        stuck.stop()
        well.stop()
