"""Every store keeps a bounded log of texts, separates namespaces, and wakes those who wait for a change."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from retrieval_store.errors import StoreError, UnknownVersionError
from retrieval_store.stores.base import Current, Store
from tests.support.store_kinds import Place, append_each, names, publish
from tests.support.waiting import LIMIT_S, wait_until


def tokens(store: Store, **selection: str) -> list[list[int]]:
    return [list(entry.tokens) for entry in store.entries(**selection)]  # type: ignore[arg-type]


def test_the_log_keeps_texts_in_order_until_it_is_trimmed(place: Place) -> None:
    store = place.open()
    assert store.entries() == []
    texts = [[1, 2, 3], [], [262_143, 2**31 - 1, 0]]
    store.append(texts[:2], limit=100)
    store.append(texts[2:], limit=100)
    store.append([], limit=100)
    entries = place.open().entries()
    assert [list(entry.tokens) for entry in entries] == texts
    assert store.entries(limit=2) == entries[:2]
    assert store.entries(after=entries[0].id) == entries[1:]
    assert store.entries(after=entries[2].id) == []
    store.trim(entries[1].id)
    assert store.entries() == entries[2:]
    store.trim(entries[2].id)
    store.trim("")
    assert store.entries() == []
    store.append([[7]], limit=100)
    assert tokens(store, after=entries[2].id) == [[7]]


def test_the_log_drops_the_oldest_texts_beyond_its_limit(place: Place) -> None:
    store = place.open()
    for first in range(0, 1000, 250):
        store.append([[number] for number in range(first, first + 250)], limit=50)
    kept = [entry.tokens[0] for entry in store.entries()]
    assert 50 <= len(kept) <= 50 + 150  # Redis removes whole nodes of its stream, of 100 entries
    assert kept == list(range(1000 - len(kept), 1000))


def test_the_log_takes_texts_of_several_processes(place: Place) -> None:
    mine = [[[number, text] for text in range(20)] for number in range(3)]
    place.together(append_each, *((texts,) for texts in mine))
    entries = place.open().entries()
    for number in range(3):
        assert [list(entry.tokens) for entry in entries if entry.tokens[0] == number] == mine[number]
    assert len({entry.id for entry in entries}) == len(entries) == 60


def test_the_log_refuses_wrong_tokens_limits_and_ids(place: Place) -> None:
    store = place.open()
    for wrong in ([-1], [2**31], [[1]]):
        with pytest.raises(ValueError, match="token ids"):
            store.append([wrong], limit=10)  # type: ignore[list-item]
    for limit in (0, -1):
        with pytest.raises(ValueError, match="limit"):
            store.append([[1]], limit=limit)
        with pytest.raises(ValueError, match="limit"):
            store.entries(limit=limit)
    for name in ("abc", "1", "1-2-3", "$"):
        for use in (store.entries, store.trim):
            with pytest.raises(StoreError, match="not the id"):
                use(name)
    assert store.entries() == []


def test_a_namespace_sees_nothing_of_another(place: Place, snapshot: Callable[[int], Path]) -> None:
    own, shared = place.open(), place.open(namespace="")
    version = publish(own, snapshot(1))
    own.activate(version)
    assert publish(shared, snapshot(1)) in names(place.open(namespace=""))
    ends = ("/x", "{x}", "%2Fx", ":x", "ä", "*", " ", "..")
    others = [
        place.open(namespace=name)
        for name in (*(f"{place.namespace}{end}" for end in ends), "..", ".", "@shared", "shared")
    ]
    for number, store in enumerate(others):
        assert (store.current(), store.versions(), store.entries(), store.history()) == (Current("", 0), [], [], [])
        with pytest.raises(UnknownVersionError):
            store.fetch(version, Path("never written"))
        store.append([[number]], limit=10)
    for number, store in enumerate(others):
        assert tokens(store) == [[number]]
        store.trim(store.entries()[-1].id)  # some of these namespaces are shared by tests
    assert own.entries() == []


def opened_and_drained(place: Place) -> Store:
    """A store whose ``wait`` has returned all hints so far."""
    store = place.open()
    store.append([[1]], 10)
    assert store.wait(LIMIT_S)
    wait_until(lambda: not store.wait(0.0))
    return store


def test_waiting_ends_when_another_store_changes_something(place: Place, snapshot: Callable[[int], Path]) -> None:
    other = place.open()
    version = publish(other, snapshot(1))
    store = opened_and_drained(place)
    for change in (lambda: other.activate(version), lambda: other.append([[1]], 10)):
        with ThreadPoolExecutor() as threads:
            waiting = threads.submit(store.wait, 10 * LIMIT_S)
            change()
            assert waiting.result(LIMIT_S)
        wait_until(lambda: not store.wait(0.0))


def test_closing_ends_a_wait(place: Place) -> None:
    store = opened_and_drained(place)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(store.wait, 10 * LIMIT_S)
        store.close()
        store.close()
        assert not waiting.result(LIMIT_S)
