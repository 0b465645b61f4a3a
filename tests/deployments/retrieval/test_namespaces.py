"""The service watches, and a process holds, the namespaces that drafts ask for; invented names displace none."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from retrieval_store.service import interest, service
from retrieval_store.service.interest import Interest, NegativeCache
from retrieval_store.stores.open import open_store
from tests.deployments.retrieval.conftest import ScriptedTime
from tests.support.retrieval_service import SHARED, follows, publish, running
from tests.support.waiting import wait_until

ONE, TWO, THREE = [5, 6, 7, 8, 9], [5, 6, 70, 80, 90], [5, 6, 71, 81, 91]


def test_a_namespace_gets_its_own_text_first_then_the_shared_one_and_no_other(where: str, tmp_path: Path) -> None:
    with running(where, tmp_path / "cache") as node:
        node.publish([ONE], tmp_path)
        publish(node.store("a"), [TWO], tmp_path)
        publish(node.store("b"), [THREE], tmp_path)
        assert node.drafts([5, 6], "a") == [7, 8, 9]  # the shared text, until its own is here
        node.wait_for_drafts([5, 6], [70, 80, 90], "a")
        node.wait_for_drafts([5, 6], [71, 81, 91], "b")
        assert node.drafts([5, 6], SHARED) == node.drafts([5, 6]) == [7, 8, 9]
        assert [len(node.reader.of(name)) for name in ("", SHARED, "a", "b", "c")] == [1, 1, 2, 2, 1]
        for name, others in (("a", [71]), ("b", [70]), ("", [70, 71])):
            for token in others:
                assert follows(node.reader.of(name), [token, token + 10]) == []


def test_invalid_names_are_not_watched(where: str, tmp_path: Path) -> None:
    with running(where, tmp_path / "cache") as node:
        node.publish([ONE], tmp_path)
        invalid = ("../x", "a/b", "x" * 129, "ü")
        for name in invalid:
            assert node.drafts([5, 6], name) == [7, 8, 9]
        node.poll()
        node.service.changes(dict.fromkeys(invalid, ("", "")))
        assert list(node.service.status().namespaces) == [SHARED]


def test_a_limited_number_of_namespaces_is_watched_and_idle_ones_make_room(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MOST", 3)
    for name in "abcd":
        publish(open_store(where, name), [TWO], tmp_path)
    with running(where, tmp_path / "cache") as node:
        node.publish([ONE], tmp_path)
        wait_until(lambda: len(node.service.changes(dict.fromkeys("abc", ("", ""))).offers) == 3)
        node.service.changes(dict.fromkeys("abcde", ("", "")))
        assert set(node.service.status().namespaces) == {SHARED, "a", "b", "c"}
        assert node.drafts([5, 6], "d") == [7, 8, 9]
        monkeypatch.setattr(service, "IDLE_S", 0.0)
        wait_until(lambda: "d" in (node.service.changes({"d": ("", "")}), node.service.status().namespaces)[1])
        assert len(node.service.status().namespaces) == 4


def test_invented_names_make_room_at_once_and_drive_no_namespace_out(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MOST", 4)
    monkeypatch.setattr(interest, "MOST", 4)
    for name in "abc":
        publish(open_store(where, name), [TWO], tmp_path)
    with running(where, tmp_path / "cache") as node:
        invented = (f"invented-{number}" for number in itertools.count())
        for name in "abc":
            for _ in range(20):
                node.drafts([0], next(invented))
            node.wait_for_drafts([5, 6], [70, 80, 90], name)
        for _ in range(5):
            for _ in range(5):
                node.drafts([0], next(invented))
            node.poll(1)
        assert all(node.version(name) for name in "abc")
        assert node.reader.n_swaps == 3
        assert len(node.service.status().namespaces) == 1 + 4


def test_a_name_without_text_is_found_once_it_has_some(where: str, tmp_path: Path) -> None:
    with running(where, tmp_path / "cache") as node:
        assert node.drafts([5, 6], "a") == []
        wait_until(lambda: node.service.changes({"a": ("", "")}).empty == ("a",))
        publish(node.store("a"), [TWO], tmp_path)
        node.wait_for_drafts([5, 6], [70, 80, 90], "a")
        assert node.service.changes({"a": ("", "")}).empty == ()


def test_a_reader_asks_for_held_namespaces_then_new_ones_then_empty_ones(
    monkeypatch: pytest.MonkeyPatch, clock: ScriptedTime
) -> None:
    monkeypatch.setattr(interest, "MOST", 2)
    drafts = Interest()

    def ask_for(names: str) -> None:
        for name in names:
            drafts.note(name)
            clock.now += 1

    ask_for("abc")
    assert drafts.names(held="ab") == ["b", "a"]
    ask_for("c")
    assert drafts.names(held="") == ["c", "b"]  # the latest come first
    drafts.learn("cb", empty="cb")
    ask_for("abc")
    assert drafts.names(held="") == ["a", "c"]  # "a" was not looked for yet
    drafts.learn("ac", empty="c")
    clock.now += interest.IDLE_S
    ask_for("c")
    assert drafts.names(held="ab") == ["c"]


def test_a_limited_number_of_names_is_remembered_as_empty_for_a_while(
    monkeypatch: pytest.MonkeyPatch, clock: ScriptedTime
) -> None:
    monkeypatch.setattr(interest, "MOST_EMPTY", 2)
    missed = NegativeCache()
    for name in "abac":
        missed.add(name)
    assert [name in missed for name in "abc"] == [True, False, True]
    assert len(missed._until) == 2
    clock.now += interest.EMPTY_S
    assert "a" not in missed
