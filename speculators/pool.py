"""The speculator pool: the views of all live requests, and the speculators that draft for them, with one call per step.

The pool is synchronous: its owner (the offline loop, the router or an actor) makes one call at a time. It does not know
where the target runs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence

from engine.protocol import Branch, Needs, Outcome, RequestView, Speculator
from engine.request import Request
from speculators.method import SpeculatorOptions
from speculators.mixing.fault_isolation import FaultIsolated
from speculators.registry import Factory, create

MOST_METHODS = 32  # kept without requests that use them; clients can join names in thousands of ways


class SpeculatorPool:
    """Owns the views of all live requests, and one speculator per method, made for the first request that uses it.

    Joined methods share one speculator per name. The pool keeps the methods of live requests and the most recently used
    ones. ``extra`` are factories by further names, for tests and benchmarks.
    """

    def __init__(self, options: SpeculatorOptions | None = None, extra: Mapping[str, Factory] | None = None) -> None:
        self._options = options or SpeculatorOptions()
        self._extra = extra
        self._parts: dict[str, Speculator] = {}  # by name
        self._speculators: OrderedDict[str, FaultIsolated] = OrderedDict()  # by method, least recently used first
        self._live: dict[int, tuple[RequestView, FaultIsolated]] = {}  # by request id
        self._advanced: dict[FaultIsolated, None] = {}  # took part in ``advance`` since the last ``settle``
        if self._options.retrieval is not None:
            self._options.retrieval()  # loads the corpus, which takes seconds, before the first request

    @property
    def n_live(self) -> int:
        return len(self._live)

    def needs(self, method: str, request: Request | None = None) -> Needs:
        """Return what the target must read back for ``method``; for some requests this is less.

        Raises:
            UnknownMethodError: the method is unknown or not available.
        """
        return self._speculator(method).needs_of(request)

    def can_settle(self, method: str) -> bool:
        """Return whether a method works after the send, too (``engine.protocol.Settling``).

        Raises:
            UnknownMethodError: the method is unknown or not available.
        """
        return self._speculator(method).can_settle

    def begin(self, request_id: int, request: Request, vocab_size: int) -> None:
        """Admit a request; its context is the prompt and the output that was emitted already.

        Raises:
            UnknownMethodError: the method is unknown or not available; the request was not admitted.
            ValueError: the id is live already.
        """
        if request_id in self._live:
            raise ValueError(f"request {request_id} has begun already")
        speculator = self._speculator(request.method)
        view = RequestView.of(request_id, request, vocab_size)
        self._live[request_id] = (view, speculator)
        speculator.begin(view)

    def advance(self, outcomes: Sequence[tuple[int, Outcome]], budgets: Mapping[int, int]) -> dict[int, list[Branch]]:
        """Append the tokens of outcomes, let the speculators observe them, and draft for every request in ``budgets``.

        Ids that are not live (cancelled requests) are ignored.

        Args:
            outcomes: (request id, outcome) in the order of the target's steps.
            budgets: request id -> most nodes of its next tree; the parts of a joined method share it.

        Returns:
            request id -> branches in priority order, for ``engine.composer.compose``.
        """
        self._observe(outcomes)
        return self._propose(budgets)

    def settle(self, outcomes: Sequence[tuple[int, Outcome]], seconds: float) -> Collection[int]:
        """Let speculators work after the send; return the requests whose rest ends, and those that are not live.

        Args:
            outcomes: (request id, outcome) of requests that rest; their tokens are appended first.
            seconds: of the host between the answer and the send.
        """
        groups: dict[FaultIsolated, list[tuple[RequestView, Outcome]]] = {one: [] for one in self._advanced}
        self._advanced.clear()
        ended: set[int] = set()
        for request_id, outcome in outcomes:
            live = self._live.get(request_id)
            if live is None:
                ended.add(request_id)
                continue
            view, speculator = live
            view.context.extend(outcome.tokens)
            groups.setdefault(speculator, []).append((view, outcome))
        for speculator, pairs in groups.items():
            views, observed = [view for view, _ in pairs], [outcome for _, outcome in pairs]
            ended.update(speculator.settle(views, observed, seconds))
        return ended

    def end(self, request_id: int) -> None:
        """Drop the state of a request; one that is not live is ignored."""
        live = self._live.pop(request_id, None)
        if live is not None:
            view, speculator = live
            speculator.end(view)

    def reset(self) -> None:
        """End all requests and drop all speculators."""
        for request_id in list(self._live):
            self.end(request_id)
        self._speculators.clear()
        self._advanced.clear()
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
        """Drop the least recently used methods; those of live requests stay, so that no speculator exists twice."""
        if len(self._speculators) < MOST_METHODS:
            return
        used = {id(speculator) for _, speculator in self._live.values()}
        idle = [method for method, speculator in self._speculators.items() if id(speculator) not in used]
        for method in idle[: len(self._speculators) - MOST_METHODS + 1]:
            del self._speculators[method]

    def _observe(self, outcomes: Sequence[tuple[int, Outcome]]) -> None:
        """Append the tokens and let the speculators observe, with one call per method that can observe a batch."""
        if len(dict(outcomes)) < len(outcomes):  # a context must not hold the tokens of a later outcome
            for pair in outcomes:
                self._observe((pair,))
            return
        batches: dict[FaultIsolated, tuple[list[RequestView], list[Outcome]]] = {}
        for request_id, outcome in outcomes:
            live = self._live.get(request_id)
            if live is None:
                continue
            view, speculator = live
            view.context.extend(outcome.tokens)
            batch = batches.get(speculator)
            if batch is None:
                batch = batches[speculator] = ([], [])
            if speculator.can_observe_batch:
                batch[0].append(view)
                batch[1].append(outcome)
            else:
                speculator.observe(view, outcome)
        for speculator, (views, observed) in batches.items():
            self._advanced[speculator] = None
            if views:
                speculator.observe_batch(views, observed)

    def _propose(self, budgets: Mapping[int, int]) -> dict[int, list[Branch]]:
        """Return the drafts of all requests, with one call per method."""
        groups: dict[FaultIsolated, list[RequestView]] = {}
        for request_id in budgets:
            live = self._live.get(request_id)
            if live is not None:
                group = groups.get(live[1])
                if group is None:
                    group = groups[live[1]] = []
                group.append(live[0])
        drafts: dict[int, list[Branch]] = {}
        for speculator, views in groups.items():
            self._advanced[speculator] = None
            ids = [view.request_id for view in views]
            proposed = speculator.propose_batch(views, [budgets[request_id] for request_id in ids])
            drafts.update(zip(ids, proposed, strict=True))
        return drafts
