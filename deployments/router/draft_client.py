"""The router's client of the speculators: they run in its own process or in Ray actors, behind one interface."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Mapping
from collections.abc import Sequence as Items
from typing import Any, Protocol

from engine.protocol import Branch, DraftPool, Needs, Outcome
from engine.request import Request
from engine.scheduling.drafting import DraftRound
from engine.scheduling.sequence import Sequence
from engine.tree import EMPTY_TREE

logger = logging.getLogger(__name__)

Drafts = Mapping[int, Items[Branch]]
COUNT_S = 1.0  # seconds to wait for an actor's count of live requests


class DraftClient(Protocol):
    """Drafts for all live requests."""

    def needs(self, method: str, request: Request | None = None) -> Needs:
        """What the target must read back for a method, or for a request of it; raises UnknownMethodError."""

    def begin(self, sequence: Sequence) -> None:
        """Begin an admitted request."""

    def draft(self, draft_round: DraftRound) -> Drafts | Awaitable[Drafts]:
        """Let speculators learn from a step's outcomes and draft; returns drafts, or an awaitable of them."""

    def end(self, sequence: Sequence) -> None:
        """Drop the state of a request."""

    async def n_live(self) -> int:
        """Requests that speculators hold state of."""


class InlineDraftClient:
    """Speculators in the router's own process: the right choice while drafting costs less than a call to an actor."""

    def __init__(self, pool: DraftPool, vocab_size: int) -> None:
        self._pool = pool
        self._vocab_size = vocab_size

    def needs(self, method: str, request: Request | None = None) -> Needs:
        """What the target must read back for a method, or for a request of it; raises UnknownMethodError."""
        return self._pool.needs(method, request)

    def begin(self, sequence: Sequence) -> None:
        """Begin an admitted request."""
        self._pool.begin(sequence.seq, sequence.request, self._vocab_size)

    def draft(self, draft_round: DraftRound) -> Drafts:
        """Learn and draft in this call."""
        return self._pool.advance(draft_round.outcomes, draft_round.budgets)

    def end(self, sequence: Sequence) -> None:
        """Drop the state of a request."""
        self._pool.end(sequence.seq)

    async def n_live(self) -> int:
        """Requests that the pool holds state of."""
        return self._pool.n_live


class ActorDraftClient:
    """Speculators in actors; every request belongs to one of them.

    A dead or slow actor costs drafts, never a request: its requests decode without drafts until the actor answers
    again, then begin anew on it with all their text as context, and with what the target said behind it.

    Args:
        actors: handles of ``SpeculatorActor``.
        pool: a local pool, asked for ``needs`` only.
        vocab_size: of the target.
        timeout: seconds a draft may take before the step goes on without it.
    """

    def __init__(self, actors: Items[Any], pool: DraftPool, vocab_size: int, timeout: float) -> None:
        self._actors = actors
        self._pool = pool
        self._vocab_size = vocab_size
        self._timeout = timeout
        self._live: set[int] = set()  # requests that have begun and not ended
        self._known: set[int] = set()  # requests whose actor has all of their text
        self._overdue: dict[int, asyncio.Future[Any]] = {}  # actor -> the call it has not answered in time

    def needs(self, method: str, request: Request | None = None) -> Needs:
        """What the target must read back for a method, or for a request of it; raises UnknownMethodError."""
        return self._pool.needs(method, request)

    def begin(self, sequence: Sequence) -> None:
        """Begin an admitted request."""
        self._live.add(sequence.seq)
        if self._actor_of(sequence.seq) not in self._overdue:
            self._begin(sequence)

    def _actor_of(self, seq: int) -> int:
        return seq % len(self._actors)

    def _begin(self, sequence: Sequence) -> None:
        self._known.add(sequence.seq)
        actor = self._actors[self._actor_of(sequence.seq)]
        actor.begin.remote(sequence.seq, sequence.request_so_far, self._vocab_size)

    async def draft(self, draft_round: DraftRound) -> Drafts:
        """Learn and draft with one call per actor, all at the same time."""
        outcomes = [(seq, outcome) for seq, outcome in draft_round.outcomes if seq in self._known]
        for sequence in draft_round.drafting:
            is_live = sequence.seq in self._live  # False: cancelled since the step came back
            if is_live and sequence.seq not in self._known and self._actor_of(sequence.seq) not in self._overdue:
                self._begin(sequence)
                outcomes += _read_back(sequence)
        wanted = [(seq, n) for seq, n in draft_round.budgets.items() if seq in self._known]
        calls = []
        for actor in range(len(self._actors)):
            learnt = [(seq, outcome) for seq, outcome in outcomes if self._actor_of(seq) == actor]
            budgets = {seq: n for seq, n in wanted if self._actor_of(seq) == actor}
            if learnt or budgets:
                calls.append(self._advance(actor, learnt, budgets))
        drafts: dict[int, Items[Branch]] = {}
        for answer in await asyncio.gather(*calls):
            drafts.update(answer)
        return drafts

    async def _advance(self, actor: int, outcomes: list[Any], budgets: dict[int, int]) -> Drafts:
        from ray.exceptions import RayError

        call = asyncio.ensure_future(self._actors[actor].advance.remote(outcomes, budgets))
        try:
            answer: Drafts = await asyncio.wait_for(asyncio.shield(call), self._timeout)
        except TimeoutError:
            logger.warning(
                "speculator %d did not answer within %.1f s: its requests decode without drafts until it does",
                actor,
                self._timeout,
            )
            self._pause(actor, call)
            answer = {}
        except RayError as error:
            logger.warning("speculator %d is lost: %s", actor, error)
            answer = {}
            self._forget(actor)
        self._known.difference_update(budgets.keys() - answer.keys())  # requests that a restarted actor does not know
        return answer

    def _pause(self, actor: int, call: asyncio.Future[Any]) -> None:
        """Send an actor nothing until it has answered ``call``; its requests miss outcomes, so they begin anew then."""
        self._forget(actor)
        self._overdue[actor] = call

        def answered(call: asyncio.Future[Any]) -> None:
            if self._overdue.get(actor) is call:
                del self._overdue[actor]
            if not call.cancelled():
                call.exception()  # retrieved: asyncio would log it otherwise, and the actor may have died of the call

        call.add_done_callback(answered)

    def _forget(self, actor: int) -> None:
        self._known = {seq for seq in self._known if self._actor_of(seq) != actor}

    def end(self, sequence: Sequence) -> None:
        """Drop the state of a request."""
        self._known.discard(sequence.seq)
        self._live.discard(sequence.seq)
        self._actors[self._actor_of(sequence.seq)].end.remote(sequence.seq)

    async def n_live(self) -> int:
        """Requests that the actors hold state of; an actor that does not answer counts as 0."""
        from ray.exceptions import RayError

        async def ask(actor: Any) -> int:
            with contextlib.suppress(RayError, TimeoutError):
                return int(await asyncio.wait_for(actor.n_live.remote(), COUNT_S))
            return 0

        return sum(await asyncio.gather(*map(ask, self._actors)))


def _read_back(sequence: Sequence) -> list[tuple[int, Outcome]]:
    """What the target said behind the text so far, as far as it was kept, for a speculator that begins anew."""
    top_ids = sequence.prompt_top_ids
    ids, logprobs = top_ids.part(0, top_ids.n)
    if ids is None:
        return []
    return [(sequence.seq, Outcome([], EMPTY_TREE, prompt_top_ids=ids, prompt_top_logprobs=logprobs))]
