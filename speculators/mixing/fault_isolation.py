"""Fault isolation: a speculator that fails loses its own drafts and harms nothing else."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from engine.protocol import BatchSpeculator, Branch, Needs, Outcome, RequestView, Speculator
from engine.request import Request

logger = logging.getLogger(__name__)


class FaultIsolated:
    """A speculator whose exceptions stay inside.

    The first exception for a request is logged with the method's name; from then on the method drafts and observes
    nothing for that request, which decodes without drafts.
    """

    def __init__(self, inner: Speculator) -> None:
        self._inner = inner
        self._batch = inner if isinstance(inner, BatchSpeculator) else None
        self.name = inner.name
        self.catches_up: bool = getattr(inner, "catches_up", False)  # it may miss outcomes: it reads the context
        self.needs = inner.needs
        self._needs_of: Callable[[Request], Needs] | None = getattr(inner, "needs_of", None)
        self._repeated: Callable[[RequestView, int], int] | None = getattr(inner, "repeated", None)
        self._failed: set[int] = set()  # request ids

    def needs_of(self, request: Request | None) -> Needs:
        """What the method needs for a request; it may do with less than for another."""
        return self.needs if request is None or self._needs_of is None else self._needs_of(request)

    def begin(self, view: RequestView) -> None:
        """Forwarded; a failure switches the method off for this request."""
        try:
            self._inner.begin(view)
        except Exception:
            self._give_up(view)

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """Forwarded; nothing for a request the method failed on."""
        if budget <= 0 or view.request_id in self._failed:
            return []
        try:
            return [*self._inner.propose(view, budget)]
        except Exception:
            self._give_up(view)
            return []

    def propose_batch(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[list[Branch]]:
        """Drafts in order, through the inner ``propose_batch`` where there is one."""
        together = self._together(views, budgets)
        return [*map(self.propose, views, budgets)] if together is None else together

    def repeated(self, view: RequestView, longest: int) -> int | None:
        """How many tokens at the end of the context, at most ``longest``, stand somewhere before in the same order.

        Of methods that draft only what is repeated, and offer to say it; None of others.
        """
        if self._repeated is None:
            return None
        try:
            return self._repeated(view, longest)
        except Exception:
            self._give_up(view)
            return 0

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        """Forwarded; nothing for a request the method failed on."""
        if view.request_id in self._failed:
            return
        try:
            self._inner.observe(view, outcome)
        except Exception:
            self._give_up(view)

    def end(self, view: RequestView) -> None:
        """Forwarded also after a failure: the state must go."""
        try:
            self._inner.end(view)
        except Exception:
            self._give_up(view)
        self._failed.discard(view.request_id)

    def _together(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[list[Branch]] | None:
        """One batched call; ``None`` when the method has none, or when it failed: then each request is asked alone."""
        if self._batch is None:
            return None
        asked = [i for i, view in enumerate(views) if budgets[i] > 0 and view.request_id not in self._failed]
        drafts: list[list[Branch]] = [[] for _ in views]
        try:
            found = self._batch.propose_batch([views[i] for i in asked], [budgets[i] for i in asked]) if asked else []
            for i, branches in zip(asked, found, strict=True):
                drafts[i] = branches
        except Exception:
            logger.exception("%s failed to draft for %d requests together; asking one by one", self.name, len(asked))
            return None
        return drafts

    def _give_up(self, view: RequestView) -> None:
        """Called while an exception is handled."""
        self._failed.add(view.request_id)
        extra = {"request_id": view.request.request_id}
        logger.exception("%s failed; sequence %d goes on without its drafts", self.name, view.request_id, extra=extra)
