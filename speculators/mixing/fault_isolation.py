"""Keeps the exceptions of a speculator away from the step loop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

from engine.protocol import (
    BatchObserver,
    BatchSpeculator,
    Branch,
    Draft,
    Needs,
    Outcome,
    RequestView,
    Settling,
    Speculator,
)
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
        self._observer = inner if isinstance(inner, BatchObserver) else None
        self.can_observe_batch = self._observer is not None
        self._settling = inner if isinstance(inner, Settling) else None
        self.can_settle = self._settling is not None
        self._has_failed_to_settle = False
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
        return self._call(view, self._propose, [], budget)

    def _propose(self, view: RequestView, budget: int) -> list[Branch]:
        branches = self._inner.propose(view, budget)
        return branches if isinstance(branches, Draft) else [*branches]  # a generator can fail until its end

    def propose_batch(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[list[Branch]]:
        """Draft for all requests together if the method can; if that fails, for each request alone."""
        if self._batch is None:
            return [*map(self.propose, views, budgets)]
        drafting: Sequence[int] = range(len(views))
        if self._failed or 0 in budgets:
            drafting = [i for i in drafting if budgets[i] > 0 and views[i].request_id not in self._failed]
            if not drafting:
                return [[] for _ in views]
        try:
            if len(drafting) == len(views):
                found = self._batch.propose_batch(views, budgets)
            else:
                found = self._batch.propose_batch([views[i] for i in drafting], [budgets[i] for i in drafting])
            if len(found) != len(drafting):
                raise ValueError(f"{len(found)} drafts for {len(drafting)} requests")
        except Exception:
            logger.exception("%s failed to draft for %d requests together; trying each alone", self.name, len(drafting))
            return [*map(self.propose, views, budgets)]
        if len(found) == len(views):
            return found
        drafts = dict(zip(drafting, found, strict=True))
        return [drafts.get(i, []) for i in range(len(views))]

    def look_back(self, views: Sequence[RequestView], distances: Sequence[int]) -> Sequence[tuple[int, int]]:
        """Return for each request how many tokens the method would have drafted ``distance`` tokens ago, and how many
        of them, from the first on, equal what followed. Nothing for methods that cannot say, and after an exception.
        """
        look_back: Callable[..., Any] | None = getattr(self._inner, "look_back", None)
        known = [i for i, view in enumerate(views) if view.request_id not in self._failed]
        found = [(0, 0)] * len(views)
        if look_back is not None and known:
            try:
                pairs = look_back([views[i] for i in known], [distances[i] for i in known])
                for i, (n_drafted, n_right) in zip(known, pairs, strict=True):
                    found[i] = int(n_drafted), int(n_right)
            except Exception:
                logger.exception("%s failed to look back for %d requests", self.name, len(known))
        return found

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        if view.request_id not in self._failed:
            self._call(view, self._inner.observe, None, outcome)

    def observe_batch(self, views: Sequence[RequestView], outcomes: Sequence[Outcome]) -> None:
        """Observe all outcomes together if the method can; if that fails, observe each alone."""
        if self._observer is not None:
            known, observed = self._without_failed(views, outcomes)
            try:
                if known:
                    self._observer.observe_batch(known, observed)
                return
            except Exception:
                logger.exception("%s failed to observe %d requests together; trying each alone", self.name, len(known))
        for view, outcome in zip(views, outcomes, strict=True):
            self.observe(view, outcome)

    def settle(self, views: Sequence[RequestView], outcomes: Sequence[Outcome], seconds: float) -> Collection[int]:
        """Forward ``Settling.settle``; a method without it observes the outcomes. An exception ends no rest."""
        if self._settling is None:
            for view, outcome in zip(views, outcomes, strict=True):
                self.observe(view, outcome)
            return ()
        known, observed = self._without_failed(views, outcomes)
        try:
            return self._settling.settle(known, observed, seconds)
        except Exception:
            if not self._has_failed_to_settle:
                logger.exception("%s failed to settle; further failures are not logged", self.name)
            self._has_failed_to_settle = True
            return ()

    def _without_failed(
        self, views: Sequence[RequestView], outcomes: Sequence[Outcome]
    ) -> tuple[Sequence[RequestView], Sequence[Outcome]]:
        """Return the views and outcomes of the requests for which no exception was caught."""
        if not self._failed:
            return views, outcomes
        kept = [i for i, view in enumerate(views) if view.request_id not in self._failed]
        return [views[i] for i in kept], [outcomes[i] for i in kept]

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
