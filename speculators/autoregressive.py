"""Plain decoding: drafts nothing, so that the baseline runs through the same loop as every other method."""

from __future__ import annotations

from engine.protocol import Branch, Needs, Outcome, RequestView
from speculators.method import Method


class Autoregressive:
    """The speculator that does not speculate: one token per target forward."""

    name = "autoregressive"
    needs = Needs()

    def begin(self, view: RequestView) -> None:
        """Nothing to remember."""

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """No branches, whatever the budget."""
        return []

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        """Nothing to learn."""

    def end(self, view: RequestView) -> None:
        """Nothing to drop."""


AUTOREGRESSIVE = Method(
    name="autoregressive",
    factory=lambda settings, context: Autoregressive(),
    description="drafts nothing: one token per forward pass",
)
