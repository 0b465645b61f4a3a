"""Drafts of the target's trained drafter (EAGLE, ParallelSpec, Medusa, DFlash, P-EAGLE).

The drafter runs after the target's last layers, whose states it reads (``engine.drafter``). Its drafts arrive with the
results of steps, and ``TrainedDrafts`` passes them on.
"""

from __future__ import annotations

from functools import partial

from engine.protocol import Branch, Needs, Outcome, RequestView, Speculator
from speculators.method import Method, MethodContext
from speculators.settings import Settings


class TrainedDrafts(Speculator):
    """Passes on the drafts of the target's drafter, whose method is ``name``."""

    needs = Needs(drafter=True)

    def __init__(self, name: str) -> None:
        self.name = name
        self._drafts: dict[int, Branch] = {}  # by request id

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        """Keep the draft that continues the last token; an older one is outdated."""
        self._drafts.pop(view.request_id, None)
        if outcome.draft is not None:
            self._drafts[view.request_id] = outcome.draft

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """Return the draft once; its best nodes come first, so that any budget keeps the best."""
        branch = self._drafts.pop(view.request_id, None)
        return [] if branch is None else [branch]

    def end(self, view: RequestView) -> None:
        self._drafts.pop(view.request_id, None)


def _trained_drafts(name: str, settings: Settings, context: MethodContext) -> TrainedDrafts:
    return TrainedDrafts(name)


TRAINED = tuple(
    Method(name, partial(_trained_drafts, name), description, source, needs=("trained",), is_trained=True)
    for name, description, source in (
        ("medusa", "heads on the target's last state, one per depth", "arXiv 2401.10774"),
        ("eagle", "a layer that predicts the target's next states", "arXiv 2401.15077, 2406.16858 and 2503.01840"),
        ("parallelspec-medusa", "Medusa's drafter with mask tokens: all depths in one pass", "arXiv 2410.05589"),
        ("parallelspec-eagle", "EAGLE's drafter with mask tokens: all depths in one pass", "arXiv 2410.05589"),
        ("p-eagle", "EAGLE's drafter with learned mask states: all depths in one pass", "arXiv 2602.01469"),
        ("dflash", "a block of tokens that is denoised in one pass", "arXiv 2602.06036"),
    )
)
