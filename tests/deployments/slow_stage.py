"""Stages that a test holds in a forward pass, so that something can happen in the middle of a request."""

from __future__ import annotations

import math
import threading

from engine.stage.base import Activations
from engine.stage.stage import Stage
from engine.step import Step
from tests.support.waiting import LIMIT_S


class ForwardGate:
    """Lets forward passes through while it is open."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._left = math.inf
        self.is_holding = False

    def open(self) -> None:
        self.close(after=math.inf)

    def close(self, after: float = 0) -> None:
        """Let ``after`` more forward passes through, and hold the next one until the gate is open."""
        with self._changed:
            self._left = after
            self._changed.notify_all()

    def enter(self) -> None:
        with self._changed:
            self.is_holding = self._left <= 0
            assert self._changed.wait_for(lambda: self._left > 0, LIMIT_S)
            self.is_holding = False
            self._left -= 1


GATE = ForwardGate()  # of all gated stages; the fixtures that start pipelines open it in the end


class Gated(Stage):
    """Computes only while the gate is open."""

    gate = GATE

    def forward(self, step: Step, incoming: Activations | None) -> Activations:
        self.gate.enter()
        return super().forward(step, incoming)
