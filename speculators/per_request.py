"""Speculators that keep a state for every request."""

from __future__ import annotations

from abc import abstractmethod
from typing import Generic, TypeVar

from engine.protocol import RequestView, Speculator

StateT = TypeVar("StateT")


class PerRequest(Speculator, Generic[StateT]):
    """A speculator with a state per live request: ``new_state`` makes it, ``states`` holds it by request id."""

    def __init__(self) -> None:
        self.states: dict[int, StateT] = {}

    @abstractmethod
    def new_state(self, view: RequestView) -> StateT:
        """Return the state of a request that begins."""

    def begin(self, view: RequestView) -> None:
        self.states[view.request_id] = self.new_state(view)

    def end(self, view: RequestView) -> None:
        self.states.pop(view.request_id, None)
