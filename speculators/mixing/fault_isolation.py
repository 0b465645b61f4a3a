"""Fault isolation: a speculator that fails loses its own drafts and harms nothing else."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from engine.protocol import BatchSpeculator, Branch, Outcome, RequestView, Speculator

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
        self.needs = inner.needs
        self.catches_up: bool = getattr(inner, "catches_up", False)  # it may miss outcomes: it reads the context
        self._failed: set[int] = set()  # request ids

    def begin(self, view: RequestView) -> None:
        """Forwarded; a failure switches the method off for this request."""
        self._isolate(view, lambda: self._inner.begin(view))

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """Forwarded; nothing for a request the method failed on."""
        return self.propose_batch((view,), (budget,))[0]

    def propose_batch(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[list[Branch]]:
        """Drafts in order, through the inner ``propose_batch`` where there is one."""
        drafts: list[list[Branch]] = [[] for _ in views]
        asked = [i for i, view in enumerate(views) if budgets[i] > 0 and view.request_id not in self._failed]
        together = self._together([views[i] for i in asked], [budgets[i] for i in asked])
        for position, i in enumerate(asked):
            drafts[i] = self._alone(views[i], budgets[i]) if together is None else together[position]
        return drafts

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        """Forwarded; nothing for a request the method failed on."""
        if view.request_id not in self._failed:
            self._isolate(view, lambda: self._inner.observe(view, outcome))

    def end(self, view: RequestView) -> None:
        """Forwarded also after a failure: the state must go."""
        self._isolate(view, lambda: self._inner.end(view))
        self._failed.discard(view.request_id)

    def _together(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[list[Branch]] | None:
        """One batched call; ``None`` when the method has none, or when it failed: then each request is asked alone."""
        if not views or self._batch is None:
            return None
        try:
            return self._batch.propose_batch(views, budgets)
        except Exception:
            logger.exception("%s failed to draft for %d requests together; asking one by one", self.name, len(views))
            return None

    def _alone(self, view: RequestView, budget: int) -> list[Branch]:
        drafts: list[Branch] = []
        self._isolate(view, lambda: drafts.extend(self._inner.propose(view, budget)))
        return drafts

    def _isolate(self, view: RequestView, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception:
            self._failed.add(view.request_id)
            extra = {"request_id": view.request.request_id}
            logger.exception(
                "%s failed; sequence %d goes on without its drafts", self.name, view.request_id, extra=extra
            )
