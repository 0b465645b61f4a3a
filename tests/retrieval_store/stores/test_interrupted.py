"""A compaction that is killed between publishing and activating: nothing of it stays, and no text is lost."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from retrieval_store.service.compaction import Compactor, log, trim
from retrieval_store.service.watcher import Served, Watcher
from retrieval_store.snapshots.cache import NodeCache
from retrieval_store.stores.base import Store, StoreOptions
from retrieval_store.stores.open import open_store
from tests.support.redis_server import wait_until
from tests.support.retrieval_service import TARGET, publish
from tests.support.store_kinds import new_namespace

ROOT = Path(__file__).parents[3]
BASE, ONE, TWO = [5, 6, 7, 8, 9], [5, 6, 70, 80, 90], [15, 16, 17, 18, 19]

# Everything is real but for the moment of death.
KILLED = """
import os, signal, sys
from pathlib import Path

from retrieval_store.service import compaction
from retrieval_store.stores.open import open_store
from tests.retrieval_store.stores.test_interrupted import served
from tests.support.retrieval_service import TARGET

where, namespace, cache, seconds = sys.argv[1:]
compaction.UNUSED_S = float(seconds)
store = open_store(where, namespace)
store.activate = lambda version, expected: os.kill(os.getpid(), signal.SIGKILL)
base, folder = served(store, Path(cache))
compaction.Compactor(store, folder, TARGET, 1000).compact(base)
"""


def served(store: Store, cache: Path) -> tuple[Served | None, object]:
    """What a service on this node serves of the store, and its folder."""
    folder = NodeCache(cache, store.url).snapshots(store.namespace)
    watcher = Watcher(store, folder, TARGET.tokenizer_hash)
    watcher.look()
    return watcher.served, folder


@pytest.fixture(params=["directory", "redis"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Store]:
    """Opens the same namespace of one store, again and again."""
    url = str(tmp_path / "store") if request.param == "directory" else request.getfixturevalue("server").url
    namespace = new_namespace()
    return lambda **options: open_store(url, namespace, StoreOptions(**options))


def names(store: Store) -> list[str]:
    return [one.version for one in store.versions()]


def compact(store: Store, cache: Path) -> str:
    base, folder = served(store, cache)
    return Compactor(store, folder, TARGET, 1000).compact(base)  # type: ignore[arg-type]


def kill_a_compaction(store: Store, where: str, cache: Path, seconds: float) -> None:
    command = [sys.executable, "-c", KILLED, where, store.namespace, str(cache), str(seconds)]
    assert subprocess.run(command, cwd=ROOT, timeout=400).returncode == -signal.SIGKILL


def test_what_a_killed_compaction_published_expires(opened: Callable[..., Store], tmp_path: Path) -> None:
    store = opened()
    where = str(tmp_path / "store") if store.url.startswith("file") else store.url
    first = publish(store, [BASE], tmp_path)
    store.append([ONE, TWO], 100)
    kill_a_compaction(store, where, tmp_path / "cache", 100.0)
    left = store.versions()
    assert left[0].version == first
    assert [one.expires_at is None for one in left] == [True, False]
    store.retire(left[1].version)
    opened(grace_seconds=0.0).retire(left[1].version)
    kill_a_compaction(store, where, tmp_path / "cache", 0.2)
    wait_until(lambda: names(store) == [first], "only the version that is current")
    assert store.current().version == first
    assert [list(entry.tokens) for entry in log(store, "")] == [ONE, TWO]
    second = compact(store, tmp_path / "cache")  # the next one goes through, and its version stays
    assert [(one.version, one.is_current, one.expires_at is None) for one in store.versions()] == [
        (first, False, False),
        (second, True, True),
    ]


def test_a_rollback_within_the_grace_period_finds_the_live_texts_in_the_log(
    opened: Callable[..., Store], tmp_path: Path
) -> None:
    store = opened()
    publish(store, [BASE], tmp_path)
    store.append([ONE], 100)
    first = compact(store, tmp_path / "cache")
    store.append([TWO], 100)
    second = compact(store, tmp_path / "cache")
    assert store.current().version == second
    assert trim(store) == ""  # the corpus of the beginning is there, and has nothing of the log
    assert store.rollback().version == first
    base, _ = served(store, tmp_path / "cache")
    assert base is not None
    assert [list(entry.tokens) for entry in log(store, base.manifest.about.folded)] == [TWO]


def test_the_log_is_cut_when_no_version_is_left_that_lacks_its_texts(
    opened: Callable[..., Store], tmp_path: Path
) -> None:
    store, soon = opened(), opened(grace_seconds=0.05)
    publish(store, [BASE], tmp_path)
    store.append([ONE], 100)
    compact(soon, tmp_path / "cache")  # the corpus of the beginning goes at once
    wait_until(lambda: len(names(store)) == 1, "one version that is left")
    store.append([TWO], 100)
    compact(store, tmp_path / "cache")
    store.append([[25, 26, 27]], 100)
    assert trim(store)
    assert [list(entry.tokens) for entry in log(store, "")] == [TWO, [25, 26, 27]]  # a rollback may need the first
    for one in store.versions():
        if not one.is_current:
            soon.retire(one.version)
    wait_until(lambda: len(names(store)) == 1, "one version that is left")
    trim(store)
    assert [list(entry.tokens) for entry in log(store, "")] == [[25, 26, 27]]
