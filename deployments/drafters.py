"""Where speculators run: inline in the router, or in actors of their own. The router sees one interface."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Protocol

from engine.drafting import Turn
from engine.protocol import Branch, DraftPool, Needs
from engine.sequence import Sequence as Request

logger = logging.getLogger(__name__)

Drafts = Mapping[int, Sequence[Branch]]


class Drafter(Protocol):
    """Drafts for all live requests."""

    def needs(self, method: str) -> Needs:
        """What the target must read back; raises UnknownMethodError."""

    def begin(self, request: Request, namespace: str) -> None:
        """A request was admitted."""

    def draft(self, turn: Turn) -> Drafts | Awaitable[Drafts]:
        """Learn from a step's outcomes and draft; at once, or awaitable."""

    def end(self, request: Request) -> None:
        """A request is over."""

    async def n_live(self) -> int:
        """Requests some speculator still holds state of."""


class InlineDrafter:
    """Speculators in the router's own process: no hop, and right while drafting costs less than one."""

    def __init__(self, pool: DraftPool, vocab_size: int) -> None:
        self._pool = pool
        self._vocab_size = vocab_size

    def needs(self, method: str) -> Needs:
        """What the target must read back; raises UnknownMethodError."""
        return self._pool.needs(method)

    def begin(self, request: Request, namespace: str) -> None:
        """A request was admitted."""
        self._pool.begin(request.seq, request.tokens, request.params, request.method, self._vocab_size, namespace)

    def draft(self, turn: Turn) -> Drafts:
        """Learn and draft at once."""
        return self._pool.advance(turn.outcomes, turn.budgets)

    def end(self, request: Request) -> None:
        """A request is over."""
        self._pool.end(request.seq)

    async def n_live(self) -> int:
        """Requests the pool holds state of."""
        return self._pool.n_live


class ActorDrafter:
    """Speculators in actors; a request stays with one of them.

    A dead or slow actor costs drafts, never a request: its requests decode without one until it answers again, then
    begin anew on it with all their text as context.

    Args:
        actors: handles of ``SpeculatorActor``.
        pool: a local pool, asked for ``needs`` only.
        vocab_size: of the target.
        timeout: seconds a draft may take before the step goes on without it.
    """

    def __init__(self, actors: Sequence[Any], pool: DraftPool, vocab_size: int, timeout: float) -> None:
        self._actors = actors
        self._pool = pool
        self._vocab_size = vocab_size
        self._timeout = timeout
        self._generation = [0] * len(actors)  # grows when an actor lost its state
        self._begun: dict[int, int] = {}  # request -> generation it began in
        self._namespaces: dict[int, str] = {}

    def needs(self, method: str) -> Needs:
        """What the target must read back; raises UnknownMethodError."""
        return self._pool.needs(method)

    def begin(self, request: Request, namespace: str) -> None:
        """A request was admitted."""
        self._namespaces[request.seq] = namespace
        self._begin(request)

    def _begin(self, request: Request) -> None:
        home = request.seq % len(self._actors)
        self._begun[request.seq] = self._generation[home]
        self._actors[home].begin.remote(
            request.seq,
            request.tokens,
            request.params,
            request.method,
            self._vocab_size,
            self._namespaces[request.seq],
        )

    async def draft(self, turn: Turn) -> Drafts:
        """One call per actor, side by side."""
        stale = {request.seq for request in turn.drafting if self._is_stale(request.seq)}
        for request in turn.drafting:
            if request.seq in stale:
                self._begin(request)
        calls = []
        for home in range(len(self._actors)):
            outcomes = [(s, o) for s, o in turn.outcomes if s % len(self._actors) == home and s not in stale]
            budgets = {s: b for s, b in turn.budgets.items() if s % len(self._actors) == home}
            if outcomes or budgets:
                calls.append(self._advance(home, outcomes, budgets))
        drafts: dict[int, Sequence[Branch]] = {}
        for answer in await asyncio.gather(*calls):
            drafts.update(answer)
        return drafts

    def _is_stale(self, seq: int) -> bool:
        return self._begun.get(seq) != self._generation[seq % len(self._actors)]

    async def _advance(self, home: int, outcomes: list[Any], budgets: dict[int, int]) -> Drafts:
        from ray.exceptions import RayError

        try:
            answer: Drafts = await asyncio.wait_for(self._actors[home].advance.remote(outcomes, budgets), self._timeout)
        except TimeoutError:
            logger.warning("speculator %d took longer than %.1f s: this step goes without it", home, self._timeout)
            return {}
        except RayError as error:
            logger.warning("speculator %d is away: %s", home, error)
            self._generation[home] += 1
            return {}
        return answer

    def end(self, request: Request) -> None:
        """A request is over."""
        self._begun.pop(request.seq, None)
        self._namespaces.pop(request.seq, None)
        self._actors[request.seq % len(self._actors)].end.remote(request.seq)

    async def n_live(self) -> int:
        """Requests the actors hold state of."""
        return sum(await asyncio.gather(*(actor.n_live.remote() for actor in self._actors)))
