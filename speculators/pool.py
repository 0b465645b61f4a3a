"""The speculator pool: request views and the speculators that draft for them, behind one call per step.

Plain and synchronous: the host (the offline loop, the router, an actor) makes one call at a time. The pool does not
know where the target runs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from engine.protocol import Branch, Needs, Outcome, RequestView, Speculator
from engine.request import Request
from speculators.method import SpeculatorOptions
from speculators.mixing.fault_isolation import FaultIsolated
from speculators.registry import Factory, create

MOST_METHODS = 32  # kept while no request uses them: clients may join the names in thousands of ways


class SpeculatorPool:
    """Owns the views of all live requests and one speculator per method, made when first asked for.

    A method that joins several names is little more than their speculators, which are made once each; of all methods
    the most recently used are kept, and those of live requests.

    Args:
        options: per-method settings.
        extra: factories under further names, for tests.
    """

    def __init__(self, options: SpeculatorOptions | None = None, extra: Mapping[str, Factory] | None = None) -> None:
        self._options = options or SpeculatorOptions()
        self._extra = extra
        self._parts: dict[str, Speculator] = {}  # by name; as many as there are names
        self._speculators: OrderedDict[str, FaultIsolated] = OrderedDict()  # by method, in order of their last use
        self._live: dict[int, tuple[RequestView, FaultIsolated]] = {}  # request id -> its view and its speculator
        if self._options.retrieval is not None:
            self._options.retrieval()  # now: a corpus takes seconds, and no request should wait for it

    @property
    def n_live(self) -> int:
        """Requests that have begun and not ended."""
        return len(self._live)

    def needs(self, method: str, request: Request | None = None) -> Needs:
        """What the target must read back for ``method``; a method may do with less for some requests.

        Raises:
            UnknownMethodError: the method is unknown or not available yet.
        """
        return self._speculator(method).needs_of(request)

    def begin(self, request_id: int, request: Request, vocab_size: int) -> None:
        """Admit a request; its context is the prompt and what was emitted of it already.

        Raises:
            UnknownMethodError: the method is unknown or not available yet; nothing was kept.
            ValueError: the id is live already.
        """
        if request_id in self._live:
            raise ValueError(f"request {request_id} has begun already")
        speculator = self._speculator(request.method)
        view = RequestView.of(request_id, request, vocab_size)
        self._live[request_id] = (view, speculator)
        speculator.begin(view)

    def advance(self, outcomes: Sequence[tuple[int, Outcome]], budgets: Mapping[int, int]) -> dict[int, list[Branch]]:
        """Commit outcomes, let the speculators learn, then draft for every request in ``budgets``.

        Ids that are not live (cancelled meanwhile) are passed over and get no entry.

        Args:
            outcomes: (request id, outcome) in the order the target made them.
            budgets: request id -> most nodes of its next tree; several parts of one method share it.

        Returns:
            request id -> branches in priority order, for ``engine.composer.compose``.
        """
        for request_id, outcome in outcomes:
            live = self._live.get(request_id)
            if live is not None:
                view, speculator = live
                view.context.extend(outcome.tokens)
                speculator.observe(view, outcome)
        return self._propose(budgets)

    def end(self, request_id: int) -> None:
        """Drop everything about a request; harmless when it is not live."""
        live = self._live.pop(request_id, None)
        if live is not None:
            view, speculator = live
            speculator.end(view)

    def reset(self) -> None:
        """End all requests and forget the speculators: the state of a fresh pool."""
        for request_id in list(self._live):
            self.end(request_id)
        self._speculators.clear()
        self._parts.clear()

    def _speculator(self, method: str) -> FaultIsolated:
        known = self._speculators.get(method)
        if known is None:
            known = FaultIsolated(create(method, self._options, self._extra, self._parts))
            self._make_room()
            self._speculators[method] = known
        self._speculators.move_to_end(method)
        return known

    def _make_room(self) -> None:
        """Forget the methods unused for longest; those of live requests stay, so that no method is made twice."""
        if len(self._speculators) < MOST_METHODS:
            return
        used = {id(speculator) for _, speculator in self._live.values()}
        idle = [method for method, speculator in self._speculators.items() if id(speculator) not in used]
        for method in idle[: len(self._speculators) - MOST_METHODS + 1]:
            del self._speculators[method]

    def _propose(self, budgets: Mapping[int, int]) -> dict[int, list[Branch]]:
        """One batched call per method."""
        groups: dict[FaultIsolated, list[RequestView]] = {}
        for request_id in budgets:
            live = self._live.get(request_id)
            if live is not None:
                view, speculator = live
                groups.setdefault(speculator, []).append(view)
        drafts: dict[int, list[Branch]] = {}
        for speculator, views in groups.items():
            proposed = speculator.propose_batch(views, [budgets[view.request_id] for view in views])
            for view, branches in zip(views, proposed, strict=True):
                drafts[view.request_id] = branches
        return drafts
