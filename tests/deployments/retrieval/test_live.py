"""Live learning: outputs become a delta beside the snapshot, and part of a snapshot in time; without a cluster."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from retrieval_store.errors import ConflictError, StoreUnavailableError
from retrieval_store.service import backoff as attempt
from retrieval_store.service import learner
from retrieval_store.service.compaction import LIVE, Compactor, log
from retrieval_store.service.learner import Learner, LiveOptions
from retrieval_store.service.live_texts import Pending, Texts
from retrieval_store.service.sender import Sender
from retrieval_store.service.watcher import Watcher
from retrieval_store.snapshots.cache import NodeCache
from retrieval_store.snapshots.snapshot_index import open_snapshot
from retrieval_store.stores.base import Current, Store
from retrieval_store.stores.directory import DirectoryStore
from retrieval_store.stores.open import open_store
from tests.support.retrieval_service import SHARED, TARGET, Direct, eventually, follows, publish, running

QUICK = LiveOptions(tokens=1000, interval=0.05, compact_tokens=10**6)
BASE, ONE, TWO = [5, 6, 7, 8, 9], [5, 6, 70, 80, 90], [15, 16, 17, 18, 19]


@pytest.fixture
def where(tmp_path: Path) -> str:
    """A store in a folder."""
    return str(tmp_path / "store")


def test_what_was_answered_is_looked_up_beside_the_snapshot_and_before_it(where: str, tmp_path: Path) -> None:
    with running(where, tmp_path / "cache", [SHARED], QUICK) as node:
        publish(node.store(), [BASE], tmp_path)
        eventually(lambda: node.says([5, 6]) == [7, 8, 9])
        assert node.source.learn(SHARED, [ONE, TWO]) == 0
        eventually(lambda: node.says([15, 16]) == [17, 18, 19])
        assert node.says([5, 6]) == [70, 80, 90]
        assert [follows([index], [5, 6]) for index in node.reader.of("")] == [[70, 80, 90], [7, 8, 9]]
        assert node.service.status().live_texts == 2


def test_text_of_one_namespace_is_in_no_index_of_another(where: str, tmp_path: Path) -> None:
    with running(where, tmp_path / "cache", ["a", "b"], QUICK) as node:
        for name in "abc":
            assert node.says([0], name) == []
        eventually(lambda: not node.source.learn("a", [ONE]))
        eventually(lambda: not node.source.learn("b", [TWO]))
        eventually(lambda: node.says([5, 6], "a") == [70, 80, 90])
        eventually(lambda: node.says([15, 16], "b") == [17, 18, 19])
        for other in ("", SHARED, "b", "c"):
            assert node.says([5, 6], other) == []
        for other in ("", SHARED, "a", "c"):
            assert node.says([15, 16], other) == []


def test_a_namespace_that_does_not_learn_keeps_nothing(where: str, tmp_path: Path) -> None:
    with running(where, tmp_path / "cache", ["a"], QUICK) as node:
        node.says([0], "b")
        eventually(lambda: "b" in node.service.status().namespaces)
        assert node.source.learn("b", [ONE]) == 1
        assert list(log(node.store("b"), "")) == []


def test_servers_that_share_a_store_learn_from_each_other(where: str, tmp_path: Path) -> None:
    with (
        running(where, tmp_path / "cache", [SHARED], QUICK) as one,
        running(where, tmp_path / "elsewhere", [SHARED], QUICK) as other,
    ):
        eventually(lambda: not one.source.learn(SHARED, [ONE]))
        eventually(lambda: other.says([5, 6]) == [70, 80, 90])
        assert other.says([5, 6]) == [70, 80, 90]


def test_compaction_publishes_what_was_learnt_with_the_base_and_a_rollback_loses_no_text(
    where: str, tmp_path: Path
) -> None:
    options = LiveOptions(tokens=1000, interval=0.05, compact_tokens=12)
    with running(where, tmp_path / "cache", [SHARED], options) as node:
        first = publish(node.store(), [BASE], tmp_path)
        eventually(lambda: node.version() == first)
        node.source.learn(SHARED, [TWO])
        eventually(lambda: node.says([15, 16]))
        assert node.version() == first  # five tokens are not enough
        node.source.learn(SHARED, [ONE, [25, 26, 27]])
        eventually(lambda: node.version() not in ("", first))
        eventually(lambda: node.reader.versions(SHARED)[1] == "")  # nothing is left for a delta
        (index,) = node.reader.of("")
        assert [follows([index], context) for context in ([15, 16], [25, 26])] == [[17, 18, 19], [27]]
        assert {7, 70} <= set(follows([index], [5, 6]))
        assert len(list(log(node.store(), ""))) == 3  # the base before is still there
        manifest = node.store().manifest(node.version())
        assert manifest.texts == 4
        assert [(source.name, source.kept) for source in manifest.about.sources] == [(LIVE, 3)]
        assert node.service.status().compactions == 1
        node.store().rollback()
        eventually(lambda: node.version() == first)
        eventually(lambda: node.says([15, 16]) == [17, 18, 19])  # of the log again, beside the base
        assert node.service.status().compactions == 1  # and no reason to compact at once, which would undo the rollback
        assert node.store().current().version == first


def test_of_two_who_compact_one_wins_and_no_text_is_lost(where: str, tmp_path: Path) -> None:
    with closing(open_store(where, SHARED)) as store:
        publish(store, [BASE], tmp_path)
        store.append([ONE], 100)
        folder = NodeCache(tmp_path / "cache", where).snapshots(SHARED)
        watcher = Watcher(store, folder, TARGET.tokenizer_hash)
        watcher.look()
        base = watcher.served
        rival = publish(open_store(where, SHARED), [TWO], tmp_path)
        compactor = Compactor(store, folder, TARGET, 1000)
        assert compactor.compact(base) == ""  # its base is no longer current
        assert store.current().version == rival
        assert [list(entry.tokens) for entry in log(store, "")] == [ONE]


def test_a_rival_that_moves_current_during_a_compaction_is_not_overwritten(where: str, tmp_path: Path) -> None:
    class Slow(DirectoryStore):
        """Another publisher publishes between this one's upload and its activation."""

        def activate(self, version: str, expected: int | None = None) -> Current:
            publish(open_store(where, SHARED), [TWO], tmp_path)
            return super().activate(version, expected)

    store = Slow(Path(where), SHARED, open_store(where, SHARED).options)  # type: ignore[attr-defined]
    publish(open_store(where, SHARED), [BASE], tmp_path)
    store.append([ONE], 100)
    folder = NodeCache(tmp_path / "cache", where).snapshots(SHARED)
    watcher = Watcher(store, folder, TARGET.tokenizer_hash)
    watcher.look()
    with pytest.raises(ConflictError):
        Compactor(store, folder, TARGET, 1000).compact(watcher.served)
    watcher.look()
    assert watcher.served is not None
    assert watcher.served.manifest.texts == 1  # the rival's
    (loser,) = [version for version in store.versions() if version.manifest and version.manifest.texts == 2]
    assert loser.expires_at is not None  # it was never current and goes like one that was
    assert [list(entry.tokens) for entry in log(store, "")] == [ONE]
    assert [path.name for path in folder.path.iterdir() if path.name.startswith(".")] == []


def test_a_store_that_lost_its_snapshots_does_not_get_one_of_live_texts_alone(where: str, tmp_path: Path) -> None:
    with closing(open_store(where, SHARED)) as store:
        publish(store, [BASE], tmp_path)
        folder = NodeCache(tmp_path / "cache", where).snapshots(SHARED)
        watcher = Watcher(store, folder, TARGET.tokenizer_hash)
        watcher.look()
        empty = open_store(str(tmp_path / "empty"), SHARED)
        empty.append([ONE], 100)
        assert Compactor(empty, folder, TARGET, 1000).compact(watcher.served) == ""
        assert empty.versions() == []


def test_the_oldest_live_texts_leave_snapshots_and_the_corpus_stays(where: str, tmp_path: Path) -> None:
    with closing(open_store(where, SHARED)) as store:
        publish(store, [BASE, [5, 6, 7, 8, 9, 9]], tmp_path)
        folder = NodeCache(tmp_path / "cache", where).snapshots(SHARED)
        watcher = Watcher(store, folder, TARGET.tokenizer_hash)
        compactor = Compactor(store, folder, TARGET, limit=10)
        for start in (100, 200, 300):
            watcher.look()
            store.append([range(start, start + 5)], 100)
            assert compactor.compact(watcher.served)
        watcher.look()
        assert watcher.served is not None
        assert watcher.served.manifest.texts == 4  # two of the corpus, the last two live ones
        index = open_snapshot(folder.snapshot(watcher.served.part.version))
        starts = [document[0] for document in index.documents()]
        assert starts == [5, 5, 200, 300]


def test_the_same_answer_again_and_again_is_one_text_of_the_delta() -> None:
    texts = Texts(limit=12, vocab_size=1000)
    assert [texts.add(text) for text in (ONE, TWO, ONE, ONE)] == [True, True, False, False]
    assert len(texts) == 2
    assert texts.add([25, 26, 27])
    assert [list(text) for text in texts.documents()] == [ONE, [25, 26, 27]]  # TWO was the oldest
    assert not texts.add([1, 2])  # continues nothing
    assert not texts.add([5, 6, 1000])  # no token of the target's
    assert texts.add(range(50))
    assert [list(text) for text in texts.documents()] == [list(range(38, 50))]


def test_outputs_that_cannot_be_delivered_are_kept_up_to_a_limit_and_counted_beyond() -> None:
    pending = Pending(limit=3)
    pending.put([[1], [2]])
    taken = pending.take()
    pending.put([[3], [4]])
    pending.put_back(taken)
    assert pending.take() == [[2], [3], [4]]
    assert pending.dropped == 1


def _learner(store: Store, folder: Path) -> Learner:
    nodes = NodeCache(folder, store.url)
    return Learner(store, nodes.snapshots(SHARED), nodes.deltas(SHARED), TARGET, QUICK, lambda: None)


def test_learning_waits_for_a_store_that_is_away_and_loses_nothing(where: str, tmp_path: Path) -> None:
    Path(where).write_text("no folder")
    learns = _learner(open_store(where, SHARED), tmp_path / "cache")
    learns.learn([ONE])
    assert not learns.step()
    assert (learns.n_texts, learns.n_dropped, learns.delta) == (0, 0, None)
    Path(where).unlink()
    eventually(learns.step)
    assert (learns.n_texts, learns.n_folds, learns.problem) == (1, 1, "")
    assert not learns.step()  # nothing new, no new delta


def test_who_may_not_write_says_so_once_tries_seldom_and_learns_from_others(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[object] = []

    class ReadOnly(DirectoryStore):
        def append(self, texts: Sequence[Sequence[int]], limit: int) -> None:
            tries.append(texts)
            raise StoreUnavailableError("the user lacks a right: NOPERM")

    other = open_store(where, SHARED)
    learns = _learner(ReadOnly(Path(where), SHARED, other.options), tmp_path / "cache")  # type: ignore[attr-defined]
    monkeypatch.setattr(attempt, "PAUSE_S", 60.0)
    monkeypatch.setattr(attempt, "PAUSE_MOST_S", 60.0)
    learns.learn([ONE])
    for text in (TWO, [25, 26, 27]):
        other.append([text], 100)
        eventually(learns.step)  # a new delta
        assert learns.problem == "cannot add outputs to the log: the user lacks a right: NOPERM"
    assert learns.delta is not None
    assert learns.delta.tokens == 8
    assert (len(tries), len(learns._pending), learns.n_dropped) == (1, 1, 0)
    assert len([record for record in caplog.records if "NOPERM" in record.message]) == 1


def test_a_delta_that_could_not_be_written_is_written_when_there_is_room_but_not_tried_all_the_time(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learns = _learner(open_store(where, SHARED), tmp_path / "cache")
    tries: list[object] = []

    def full(*given: object) -> None:
        tries.append(given)
        raise OSError(28, "No space left on device", f"file-{len(tries)}")

    with monkeypatch.context() as patch:
        patch.setattr(learner, "write_snapshot", full)
        learns.learn([ONE])
        for _ in range(20):
            assert not learns.step()
            assert learns.problem == "cannot make a delta: No space left on device"
        assert len(tries) < 5
    eventually(learns.step)
    assert learns.delta is not None
    assert (learns.delta.tokens, learns.n_folds, learns.problem) == (5, 1, "")


def test_texts_that_no_log_takes_are_counted_as_lost(where: str, tmp_path: Path) -> None:
    learns = _learner(open_store(where, SHARED), tmp_path / "cache")
    learns.learn([[-1, 5, 6], ONE])
    learns.step()
    assert (learns.n_texts, learns.n_dropped, len(learns._pending)) == (0, 2, 0)
    assert "-1" in learns.problem
    learns.learn([TWO])
    eventually(learns.step)
    assert (learns.n_texts, learns.n_dropped, learns.problem) == (1, 2, "")


def test_entries_of_the_log_that_are_no_text_are_passed_over(where: str, tmp_path: Path) -> None:
    store = open_store(where, SHARED)
    store.append([ONE, TWO, [], [25, 26, 27]], 100)
    (path,) = Path(where).rglob("log.sqlite")
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        second = "(SELECT id FROM log ORDER BY id LIMIT 1 OFFSET 1)"
        database.execute(f"UPDATE log SET tokens = ? WHERE id = {second}", (b"no",))
    learns = _learner(store, tmp_path / "cache")
    assert learns.step()
    assert learns.delta is not None
    assert learns.delta.tokens == 8
    assert learns.problem == ""
    store.append([[35, 36, 37]], 100)
    eventually(learns.step)
    assert learns.delta.tokens == 11


def test_folding_takes_a_tenth_of_the_time_at_most(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learns = _learner(open_store(where, SHARED), tmp_path / "cache")
    write = learner.write_snapshot

    def slow(*given: object, **more: object) -> object:
        time.sleep(0.2)
        return write(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(learner, "write_snapshot", slow)
    learns.learn([ONE])
    assert learns.step()
    began = time.monotonic()
    learns.learn([TWO])
    while not learns.step():
        time.sleep(0.02)
        assert time.monotonic() - began < 10
    assert time.monotonic() - began > 1.5


def test_handing_over_an_output_never_waits_and_what_is_lost_is_counted(where: str, tmp_path: Path) -> None:
    with running(where, tmp_path / "cache", [SHARED], QUICK) as node:
        eventually(lambda: not node.source.learn(SHARED, [TWO]))

        ended: list[str] = []

        class Stuck(Direct):
            def learn(self, namespace: str, texts: Sequence[Sequence[int]]) -> int:
                time.sleep(1.0)
                ended.append(namespace)
                raise TimeoutError("the service is away")

        stuck, well = Sender(Stuck(node.service), [SHARED]), Sender(node.source, [SHARED])
        stuck.start()
        well.start()
        for number in range(3000):
            stuck.put(SHARED, [number % 900, 1, 2])
        assert ended == []
        eventually(lambda: stuck.n_dropped == 3000)
        well.put(SHARED, ONE)
        well.put("other", TWO)
        eventually(lambda: node.says([5, 6]) == [70, 80, 90])
        assert well.n_dropped == 0
        stuck.stop()
        well.stop()
