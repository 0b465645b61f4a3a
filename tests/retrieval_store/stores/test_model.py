"""A store and a plain model of it agree after any sequence of calls."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from retrieval_store.errors import ConflictError, UnknownVersionError
from retrieval_store.stores.base import Store
from retrieval_store.stores.open import open_store
from retrieval_store.stores.records import Current, StoreOptions
from tests.support.snapshot_folders import make_snapshot

SNAPSHOTS = st.integers(0, 3)
_NAMES = itertools.count()


class StoreMachine(RuleBasedStateMachine):
    """A store and its model. A superseded version expires at once, so that no clock matters."""

    url = ""
    folders: tuple[tuple[str, Path], ...] = ()

    @initialize()
    def begin(self) -> None:
        self.space = f"model {next(_NAMES)}"
        self.store = self.opened()
        self.published: list[str] = []
        self.version, self.before = "", list[str]()
        self.moves: list[str] = []
        self.log: list[int] = []

    def opened(self) -> Store:
        return open_store(self.url, self.space, StoreOptions(grace_seconds=0.0, chunk_bytes=64))

    def moved(self, version: str) -> None:
        if self.version in self.published and self.version != version:
            self.published.remove(self.version)
        self.version = version
        self.moves.append(version)

    @rule(number=SNAPSHOTS)
    def publish(self, number: int) -> None:
        version, folder = self.folders[number]
        assert self.store.publish(folder) == version
        if version not in self.published:
            self.published.append(version)

    @rule(number=SNAPSHOTS, lag=st.sampled_from([None, 0, 0, 1]))
    def activate(self, number: int, lag: int | None) -> None:
        version = self.folders[number][0]
        expected = None if lag is None else len(self.moves) - lag
        try:
            answer = self.store.activate(version, expected)
        except ConflictError:
            assert lag == 1
        except UnknownVersionError:
            assert version not in self.published
        else:
            assert version in self.published
            assert lag != 1
            if version != self.version:
                self.before += [self.version] if self.version else []
                self.moved(version)
            assert answer == Current(version, len(self.moves))

    @rule()
    def rollback(self) -> None:
        there = [name in self.published and name != self.version for name in self.before]
        if not any(there):
            with pytest.raises(UnknownVersionError):
                self.store.rollback()
            return
        at = len(there) - 1 - there[::-1].index(True)
        version, self.before = self.before[at], self.before[:at]
        self.moved(version)
        assert self.store.rollback() == Current(version, len(self.moves))

    @rule(tokens=st.integers(0, 2**31 - 1))
    def append(self, tokens: int) -> None:
        self.store.append([[tokens]], limit=1000)
        self.log.append(tokens)

    @rule(keep=st.integers(0, 3))
    def trim(self, keep: int) -> None:
        entries = self.store.entries()
        if len(entries) > keep:
            self.store.trim(entries[len(entries) - keep - 1].id)
            self.log = self.log[len(entries) - keep :]

    @rule()
    def open_again(self) -> None:
        self.store.close()
        self.store = self.opened()

    @invariant()
    def agrees(self) -> None:
        assert self.store.current() == Current(self.version, len(self.moves))
        listed = self.store.versions()
        assert [one.version for one in listed] == self.published
        assert [one.is_current for one in listed] == [name == self.version for name in self.published]
        assert [(move.revision, move.version) for move in self.store.history()] == list(enumerate(self.moves, 1))
        assert [list(entry.tokens) for entry in self.store.entries()] == [[tokens] for tokens in self.log]

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[tuple[str, Path], ...]:
    base = tmp_path_factory.mktemp("snapshots")
    return tuple((make_snapshot(base / str(number), number, size=100), base / str(number)) for number in range(4))


@pytest.mark.parametrize(
    ("kind", "examples"), [("memory", 25), ("directory", 5), pytest.param("redis", 20, marks=pytest.mark.matrix)]
)
def test_a_store_agrees_with_a_list_of_versions_and_moves(
    kind: str, examples: int, folders: tuple[tuple[str, Path], ...], request: pytest.FixtureRequest
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        urls = {"memory": "memory://model", "directory": folder}
        url = urls[kind] if kind in urls else request.getfixturevalue("server").url
        machine = type("PlacedMachine", (StoreMachine,), {"url": url, "folders": folders})
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=25,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
