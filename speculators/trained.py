"""Drafts of the target's trained drafter (EAGLE, ParallelSpec, Medusa, DFlash, P-EAGLE).

The drafter runs behind the target's last layers, where the states are that it reads (``engine.drafter``); its drafts
come with a step's result, and are handed out here.
"""

from __future__ import annotations

from engine.errors import UnknownMethodError
from engine.protocol import Branch, Needs, Outcome, RequestView
from speculators.method import Method


class TrainedDrafts:
    """Hands out what came with the last step's result.

    Args:
        name: of the method.
        drafter: the method of the target's drafter; None: it has none.

    Raises:
        UnknownMethodError: the target's drafter is of another method, or there is none.
    """

    needs = Needs(drafter=True)

    def __init__(self, name: str, drafter: str | None) -> None:
        if name != drafter:
            found = "no drafter was given" if drafter is None else f"the drafter given is of method {drafter!r}"
            raise UnknownMethodError(
                f"method {name!r} needs a drafter that was trained for the target (--drafter DIR); {found}", "method"
            )
        self.name = name
        self._drafts: dict[int, Branch] = {}

    def begin(self, view: RequestView) -> None:
        """The first draft comes with the end of the prompt."""

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        """Keep the draft behind the last token; one behind an earlier token is of no use any more."""
        self._drafts.pop(view.request_id, None)
        if outcome.draft is not None:
            self._drafts[view.request_id] = outcome.draft

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """The draft, once; best nodes first, so that any budget keeps the best."""
        branch = self._drafts.pop(view.request_id, None)
        return [] if branch is None else [branch]

    def end(self, view: RequestView) -> None:
        """Forget the draft."""
        self._drafts.pop(view.request_id, None)


def _trained(name: str, description: str) -> Method:
    return Method(
        name,
        lambda settings, context: TrainedDrafts(name, context.options.trained),
        description,
        needs=("trained",),
        is_trained=True,
    )


TRAINED = tuple(
    _trained(*one)
    for one in (
        ("medusa", "heads on the target's last state, one per depth"),
        ("eagle", "a layer that predicts the target's next states"),
        ("parallelspec-medusa", "Medusa's drafter with mask tokens: all depths in one pass"),
        ("parallelspec-eagle", "EAGLE's drafter with mask tokens: all depths in one pass"),
        ("p-eagle", "EAGLE's drafter with learned mask states: all depths in one pass"),
        ("dflash", "a block that is denoised in one pass"),
    )
)
