"""Plain decoding, as a method without drafts: the baseline runs in the same loop as every other method."""

from __future__ import annotations

from engine.protocol import Branch, Needs, RequestView, Speculator
from speculators.method import Method


class Autoregressive(Speculator):
    """Drafts nothing."""

    name = "autoregressive"
    needs = Needs()

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        return []


AUTOREGRESSIVE = Method(
    name="autoregressive",
    factory=lambda settings, context: Autoregressive(),
    description="drafts nothing: one token per forward pass",
)
