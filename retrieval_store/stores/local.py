"""What the stores of one machine share: the state of a namespace, and how it changes."""

from __future__ import annotations

import time
from abc import abstractmethod
from contextlib import AbstractContextManager

import msgspec

from retrieval_store.stores.base import Store
from retrieval_store.stores.records import MOST_MOVES, Move, Pointer, Published


class StoreState(msgspec.Struct):
    """Where ``current`` points, its history, and when versions expire."""

    pointer: Pointer = msgspec.field(default_factory=Pointer)
    moves: list[Move] = []
    # Version -> when it expires, in seconds since 1970; None: it stays. In order of publication.
    versions: dict[str, float | None] = {}

    def expired(self) -> list[str]:
        now = time.time()
        return [version for version, at in self.versions.items() if at is not None and at <= now]

    def put_off(self, version: str, seconds: float) -> None:
        """Let a version that may expire, or a new one, stay for at least ``seconds`` from now."""
        at = self.versions.get(version, 0.0)
        self.versions[version] = None if at is None else max(at, time.time() + seconds)


class LocalStore(Store):
    """A store whose kind knows where the state and the files are."""

    @abstractmethod
    def _state(self) -> StoreState:
        """Return the state, to be read."""

    @abstractmethod
    def _changing(self) -> AbstractContextManager[StoreState]:
        """Lock the namespace and yield its state, to be changed; remove what expired."""

    @abstractmethod
    def _move_upload(self, place: str, version: str) -> None:
        """Make an upload the contents of a version; the namespace is locked."""

    def _commit(self, place: str, version: str, replace: bool, unused: float) -> None:
        with self._changing() as state:
            if replace or self._raw_manifest(self._place(version)) is None:
                self._move_upload(place, version)
            state.put_off(version, unused)
        self._abandon(place)

    def _keep(self, version: str, unused: float) -> bool:
        with self._changing() as state:
            if version not in state.versions:
                return False
            state.put_off(version, unused)
            return True

    def _retire(self, version: str) -> bool | None:
        with self._changing() as state:
            if version not in state.versions:
                return None
            if version != state.pointer.version:
                state.versions[version] = time.time() + self.options.grace_seconds
            return version == state.pointer.version

    def _pointer(self) -> Pointer:
        return self._state().pointer

    def _compare_and_set(self, old: Pointer, new: Pointer) -> None:
        with self._changing() as state:
            if state.pointer.revision != old.revision:
                raise self._conflict(old.revision, state.pointer.revision)
            if new.version not in state.versions:
                raise self._unknown(new.version)
            now = time.time()
            if old.version in state.versions:
                state.versions[old.version] = now + self.options.grace_seconds
            state.versions[new.version] = None
            state.pointer = new
            state.moves = [*state.moves, Move(new.revision, new.version, now)][-MOST_MOVES:]

    def _history(self, limit: int) -> list[Move]:
        return self._state().moves[-limit:]

    def versions(self) -> list[Published]:
        state = self._state()
        if state.expired():
            with self._changing():
                pass
            state = self._state()
        found = ((version, at, self._raw_manifest(self._place(version))) for version, at in state.versions.items())
        current = state.pointer.version
        return [self._published(name, raw, name == current, at) for name, at, raw in found if raw is not None]
