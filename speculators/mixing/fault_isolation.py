"""Keeps the exceptions of a speculator away from the step loop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from engine.protocol import BatchSpeculator, Branch, Needs, Outcome, RequestView, Speculator
from engine.request import Request

logger = logging.getLogger(__name__)
T = TypeVar("T")


class FaultIsolated(Speculator):
    """Calls another speculator and catches its exceptions.

    The first exception for a request is logged; from then on that request is decoded without drafts of this method.
    """

    def __init__(self, inner: Speculator) -> None:
        self._inner = inner
        self._batch = inner if isinstance(inner, BatchSpeculator) else None
        self.name = inner.name
        self.needs = inner.needs
        self.catches_up: bool = getattr(inner, "catches_up", False)  # it may miss outcomes: it reads the context
        self._failed: set[int] = set()  # request ids

    def needs_of(self, request: Request | None) -> Needs:
        """Return what the method needs for a request, at most ``needs``."""
        needs_of: Callable[[Request], Needs] | None = getattr(self._inner, "needs_of", None)
        return self.needs if request is None or needs_of is None else needs_of(request)

    def begin(self, view: RequestView) -> None:
        self._call(view, self._inner.begin, None)

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        if budget <= 0 or view.request_id in self._failed:
            return []
        return self._call(view, lambda view: [*self._inner.propose(view, budget)], [])

    def propose_batch(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[list[Branch]]:
        """Draft for all requests together if the method can; if that fails, for each request alone."""
        drafting = [i for i, view in enumerate(views) if budgets[i] > 0 and view.request_id not in self._failed]
        if self._batch is None or not drafting:
            return [*map(self.propose, views, budgets)]
        try:
            found = self._batch.propose_batch([views[i] for i in drafting], [budgets[i] for i in drafting])
            drafts = dict(zip(drafting, found, strict=True))
        except Exception:
            logger.exception("%s failed to draft for %d requests together; trying each alone", self.name, len(drafting))
            return [*map(self.propose, views, budgets)]
        return [drafts.get(i, []) for i in range(len(views))]

    def repeated(self, view: RequestView, longest: int) -> int | None:
        """Return how many last tokens of the context, at most ``longest``, occur earlier in the same order.

        Methods that draft only what is repeated have this; None for others.
        """
        repeated: Callable[[RequestView, int], int] | None = getattr(self._inner, "repeated", None)
        return None if repeated is None else self._call(view, repeated, 0, longest)

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        if view.request_id not in self._failed:
            self._call(view, self._inner.observe, None, outcome)

    def end(self, view: RequestView) -> None:
        self._call(view, self._inner.end, None)
        self._failed.discard(view.request_id)

    def _call(self, view: RequestView, method: Callable[..., T], default: T, *arguments: Any) -> T:
        """Return the method's result; on an exception, log it, exclude the request and return the default."""
        try:
            return method(view, *arguments)
        except Exception:
            self._failed.add(view.request_id)
            extra, text = {"request_id": view.request.request_id}, "%s failed; sequence %d continues without its drafts"
            logger.exception(text, self.name, view.request_id, extra=extra)
            return default
