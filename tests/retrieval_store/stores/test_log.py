"""Every store's log of texts, its namespaces, and waiting for what other processes do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from retrieval_store.errors import (
    StoreError,
    UnknownVersionError,
)
from retrieval_store.stores.base import Current
from tests.support.store_kinds import Place, names, publish


def test_an_entry_that_is_no_text_does_not_hold_up_what_is_behind_it(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    store = place.open()
    store.append([[1, 2], [3], [4], [5]], limit=10)
    place.alter_entries({1: b"12345", 2: b"\xff\xff\xff\xff"})
    for _ in range(2):
        assert [list(entry.tokens) for entry in store.entries()] == [[1, 2], [], [], [5]]
    warned = [record.getMessage() for record in caplog.records if "does not decode" in record.getMessage()]
    assert len(warned) == 1
    assert store.entries()[1].id in warned[0]


def test_the_log_keeps_texts_in_order(place: Place) -> None:
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
    assert [list(entry.tokens) for entry in store.entries(after=entries[2].id)] == [[7]]


def test_the_log_is_bounded(place: Place) -> None:
    store = place.open()
    for first in range(0, 1000, 250):
        store.append([[number] for number in range(first, first + 250)], limit=50)
    kept = [entry.tokens[0] for entry in store.entries()]
    assert 50 <= len(kept) <= 50 + 150  # Redis removes whole nodes of its stream, of 100 entries
    assert kept == list(range(1000 - len(kept), 1000))


def test_the_log_takes_texts_from_several_processes(place: Place) -> None:
    mine = [[[number, text] for text in range(40)] for number in range(3)]
    place.together(*[("append", (texts, 1000)) for texts in mine])
    entries = place.open().entries()
    for number in range(3):
        assert [list(entry.tokens) for entry in entries if entry.tokens[0] == number] == mine[number]
    assert len({entry.id for entry in entries}) == len(entries) == 120


def test_the_log_refuses_what_is_no_text_or_id(place: Place) -> None:
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
        with pytest.raises(StoreError, match="not the id"):
            store.entries(after=name)
        with pytest.raises(StoreError, match="not the id"):
            store.trim(name)
    assert store.entries() == []


def test_namespaces_are_apart(place: Place, snapshot: Callable[[int], Path]) -> None:
    own = place.open()
    version = publish(own, snapshot(1))
    own.activate(version)
    ends = ("/x", "{x}", "%2Fx", ":x", "ä", "*", " ", "..")
    others = [place.open(namespace=name) for name in (*(f"{place.namespace}{end}" for end in ends), "..", ".")]
    for number, store in enumerate(others):
        assert (store.current(), store.versions(), store.entries(), store.history()) == (Current("", 0), [], [], [])
        with pytest.raises(UnknownVersionError):
            store.fetch(version, Path("never written"))
        store.append([[number]], limit=10)
    for number, store in enumerate(others):
        assert [list(entry.tokens) for entry in store.entries()] == [[number]]
        store.trim(store.entries()[-1].id)  # names that tests share are left empty
    assert own.entries() == []


def test_the_shared_namespace_is_one_like_the_others(place: Place, snapshot: Callable[[int], Path]) -> None:
    shared = place.open(namespace="")
    version = publish(shared, snapshot(1))
    assert version in names(place.open(namespace=""))
    assert place.open(namespace="@shared").versions() == []
    assert place.open(namespace="shared").versions() == []


def test_waiting_ends_when_another_process_does_something(place: Place, snapshot: Callable[[int], Path]) -> None:
    store = place.open()
    version = publish(store, snapshot(1))
    while store.wait(0.1):  # what happened before
        pass
    for job in (("activate", (version,)), ("append", ([[1]], 10))):
        other = threading.Timer(0.1, place.together, args=(job,))
        other.start()
        begun = time.monotonic()
        assert store.wait(20.0)
        assert time.monotonic() - begun < 10.0
        other.join()
        while store.wait(0.1):
            pass


def test_waiting_ends_after_its_time(place: Place) -> None:
    store = place.open()
    while store.wait(0.1):  # a subscription that was just made says "look"
        pass
    for timeout in (0.0, 0.15):
        begun = time.monotonic()
        assert not store.wait(timeout)
        assert timeout - 0.02 <= time.monotonic() - begun < timeout + 2.0


def test_closing_ends_a_wait_and_is_harmless_twice(place: Place) -> None:
    store = place.open()
    store.wait(0.1)
    waiting = threading.Thread(target=store.wait, args=(60.0,))
    waiting.start()
    time.sleep(0.05)
    store.close()
    store.close()
    waiting.join(5.0)
    assert not waiting.is_alive()
