"""Which namespaces the service watches and a process holds, also when clients invent names; without a cluster."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from retrieval_store.service import interest, service
from retrieval_store.stores.open import open_store
from tests.support.retrieval_service import SHARED, eventually, follows, publish, running

ONE, TWO, THREE = [5, 6, 7, 8, 9], [5, 6, 70, 80, 90], [5, 6, 71, 81, 91]


@pytest.fixture
def where(tmp_path: Path) -> str:
    """A store in a folder."""
    return str(tmp_path / "store")


def test_a_namespace_is_watched_once_a_draft_has_asked_for_it_and_sees_its_own_text_first(
    where: str, tmp_path: Path
) -> None:
    with running(where, tmp_path / "cache") as node:
        publish(node.store(), [ONE], tmp_path)
        publish(node.store("a"), [TWO], tmp_path)
        publish(node.store("b"), [THREE], tmp_path)
        eventually(lambda: node.says([5, 6]) == [7, 8, 9])
        assert node.says([5, 6], "a") == [7, 8, 9]  # until its own is here, everybody's
        eventually(lambda: node.says([5, 6], "a") == [70, 80, 90])
        eventually(lambda: node.says([5, 6], "b") == [71, 81, 91])
        assert node.says([5, 6], SHARED) == node.says([5, 6]) == [7, 8, 9]
        assert [len(node.reader.of(name)) for name in ("", SHARED, "a", "b", "c")] == [1, 1, 2, 2, 1]
        for name, others in (("a", [71]), ("b", [70]), ("", [70, 71])):
            for token in others:
                assert follows(node.reader.of(name), [token, token + 10]) == []


def test_names_that_no_namespace_may_have_are_not_watched(where: str, tmp_path: Path) -> None:
    with running(where, tmp_path / "cache") as node:
        publish(node.store(), [ONE], tmp_path)
        eventually(lambda: node.says([5, 6]))
        for name in ("../x", "a/b", "x" * 129, "ü"):
            assert node.says([5, 6], name) == [7, 8, 9]
        time.sleep(0.2)
        assert list(node.service.status().namespaces) == [SHARED]


def test_only_so_many_namespaces_are_watched_and_idle_ones_give_way(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MOST", 3)
    for name in "abc":
        publish(open_store(where, name), [ONE], tmp_path)
    with running(where, tmp_path / "cache") as node:
        eventually(lambda: len(node.service.changes(dict.fromkeys("abc", ("", ""))).offers) == 3)
        node.service.changes(dict.fromkeys("abcde", ("", "")))
        assert set(node.service.status().namespaces) == {SHARED, "a", "b", "c"}
        monkeypatch.setattr(service, "IDLE_S", 0.05)
        time.sleep(0.06)
        node.service.changes({"b": ("", ""), "d": ("", "")})
        assert set(node.service.status().namespaces) in ({SHARED, "b", "c", "d"}, {SHARED, "a", "b", "d"})


def test_invented_names_give_way_at_once_and_drive_no_namespace_out(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MOST", 4)
    monkeypatch.setattr(interest, "MOST", 4)
    for name in "abc":
        publish(open_store(where, name), [TWO], tmp_path)
    with running(where, tmp_path / "cache") as node:
        made_up = iter(range(10**6))
        for name in "abc":  # the ones before are not asked for any more
            for _ in range(20):
                node.says([0], f"made-up-{next(made_up)}")
            eventually(lambda name=name: node.says([5, 6], name) == [70, 80, 90])  # type: ignore[misc]
        for _ in range(20):
            node.says([0], f"made-up-{next(made_up)}")
            time.sleep(0.02)
        assert all(node.version(name) for name in "abc")
        assert node.reader.n_swaps == 3
        assert len(node.service.status().namespaces) == 1 + 4


def test_names_that_are_asked_for_without_end_are_looked_for_in_turn(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MOST", 2)
    monkeypatch.setattr(interest, "MOST", 2)
    publish(open_store(where, "real"), [TWO], tmp_path)
    with running(where, tmp_path / "cache") as node:

        def answered() -> bool:
            said = node.says([5, 6], "real")
            for number in range(10):  # asked for later than the real one, each time
                node.says([0], f"made-up-{number}")
            return said == [70, 80, 90]

        eventually(answered)
        assert node.version("real")


def test_what_was_missed_is_remembered_for_a_while_and_not_without_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interest, "MOST_EMPTY", 2)
    missed = interest.NegativeCache()
    for name in "abac":
        missed.add(name)
    assert [name in missed for name in "abc"] == [True, False, True]
    assert len(missed) == 2
    monkeypatch.setattr(interest, "EMPTY_S", -1.0)
    missed.add("a")
    missed.discard("c")
    assert [name in missed for name in "abc"] == [False, False, False]


def test_a_reader_holds_only_so_many_namespaces_and_those_it_holds_until_they_are_idle(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interest, "MOST", 2)
    with running(where, tmp_path / "cache") as node:
        for name in "abc":
            publish(node.store(name), [TWO], tmp_path)
        for name in "ab":
            eventually(lambda name=name: node.says([5, 6], name) == [70, 80, 90])  # type: ignore[misc]
        for _ in range(10):
            assert node.says([5, 6], "c") == []
            time.sleep(0.02)
        monkeypatch.setattr(interest, "IDLE_S", 0.2)
        eventually(lambda: node.says([5, 6], "c") == [70, 80, 90])
        assert [name for name in "abc" if node.version(name)] == ["c"]


def test_a_made_up_name_that_gets_text_is_found_in_spite_of_it(where: str, tmp_path: Path) -> None:
    with running(where, tmp_path / "cache") as node:
        assert node.says([5, 6], "a") == []
        eventually(lambda: node.service.changes({"a": ("", "")}).empty == ("a",))
        publish(node.store("a"), [TWO], tmp_path)
        eventually(lambda: node.says([5, 6], "a") == [70, 80, 90])
        assert node.service.changes({"a": ("", "")}).empty == ()
