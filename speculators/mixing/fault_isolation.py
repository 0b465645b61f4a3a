"""Keeps one failing speculator from hurting anything but its own drafts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from engine.protocol import BatchSpeculator, Branch, Outcome, RequestView, Speculator

logger = logging.getLogger(__name__)


class Guarded:
    """A speculator behind a fence.

    The first exception a request meets is logged with the method's name; from then on that method drafts nothing for
    the request and observes nothing. Drafts are a help, never a duty: decoding goes on without them.
    """

    def __init__(self, inner: Speculator) -> None:
        self._inner = inner
        self._batch = inner if isinstance(inner, BatchSpeculator) else None
        self.name = inner.name
        self.needs = inner.needs
        self.catches_up: bool = getattr(inner, "catches_up", False)  # may be spared outcomes: it reads the context
        self._failed: set[int] = set()  # request ids

    def begin(self, request: RequestView) -> None:
        """Forwarded; a failure switches the method off for this request."""
        self._attempt(request, lambda: self._inner.begin(request))

    def propose(self, request: RequestView, budget: int) -> list[Branch]:
        """Forwarded; nothing for a request the method failed on."""
        return self.propose_batch((request,), (budget,))[0]

    def propose_batch(self, requests: Sequence[RequestView], budgets: Sequence[int]) -> list[list[Branch]]:
        """Drafts in order, through the inner ``propose_batch`` where there is one."""
        drafts: list[list[Branch]] = [[] for _ in requests]
        asked = [i for i, request in enumerate(requests) if budgets[i] > 0 and request.request_id not in self._failed]
        together = self._together([requests[i] for i in asked], [budgets[i] for i in asked])
        for position, i in enumerate(asked):
            drafts[i] = self._alone(requests[i], budgets[i]) if together is None else together[position]
        return drafts

    def observe(self, request: RequestView, outcome: Outcome) -> None:
        """Forwarded; nothing for a request the method failed on."""
        if request.request_id not in self._failed:
            self._attempt(request, lambda: self._inner.observe(request, outcome))

    def end(self, request: RequestView) -> None:
        """Forwarded also after a failure: the state must go."""
        self._attempt(request, lambda: self._inner.end(request))
        self._failed.discard(request.request_id)

    def _together(self, requests: Sequence[RequestView], budgets: Sequence[int]) -> list[list[Branch]] | None:
        """One batched call; ``None`` when the method has none, or when it failed: then each request is asked alone."""
        if not requests or self._batch is None:
            return None
        try:
            return self._batch.propose_batch(requests, budgets)
        except Exception:
            logger.exception("%s failed to draft for %d requests together; asking one by one", self.name, len(requests))
            return None

    def _alone(self, request: RequestView, budget: int) -> list[Branch]:
        drafts: list[Branch] = []
        self._attempt(request, lambda: drafts.extend(self._inner.propose(request, budget)))
        return drafts

    def _attempt(self, request: RequestView, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception:
            self._failed.add(request.request_id)
            logger.exception("%s failed; request %d goes on without its drafts", self.name, request.request_id)
