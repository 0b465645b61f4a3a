"""Where speculators run: inline in the router, or in actors of their own. The router sees one interface."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Protocol

from engine.protocol import Branch, DraftPool, Needs
from engine.scheduling.drafting import Turn
from engine.scheduling.sequence import Sequence as Request

logger = logging.getLogger(__name__)

Drafts = Mapping[int, Sequence[Branch]]
COUNT_S = 1.0  # seconds an actor has to say how many requests it holds


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
        self._namespaces: dict[int, str] = {}  # live requests
        self._known: set[int] = set()  # those whose actor has all of their text
        self._late: dict[int, asyncio.Future[Any]] = {}  # actor -> the answer it still owes

    def needs(self, method: str) -> Needs:
        """What the target must read back; raises UnknownMethodError."""
        return self._pool.needs(method)

    def begin(self, request: Request, namespace: str) -> None:
        """A request was admitted."""
        self._namespaces[request.seq] = namespace
        if self._home(request.seq) not in self._late:
            self._begin(request)

    def _home(self, seq: int) -> int:
        return seq % len(self._actors)

    def _begin(self, request: Request) -> None:
        self._known.add(request.seq)
        self._actors[self._home(request.seq)].begin.remote(
            request.seq,
            request.tokens,
            request.params,
            request.method,
            self._vocab_size,
            self._namespaces[request.seq],
        )

    async def draft(self, turn: Turn) -> Drafts:
        """One call per actor, side by side."""
        outcomes = [(seq, outcome) for seq, outcome in turn.outcomes if seq in self._known]
        for request in turn.drafting:
            is_live = request.seq in self._namespaces  # or it was cancelled since the step came back
            if is_live and request.seq not in self._known and self._home(request.seq) not in self._late:
                self._begin(request)
        calls = []
        for home in range(len(self._actors)):
            mine = [(seq, outcome) for seq, outcome in outcomes if self._home(seq) == home]
            budgets = {seq: n for seq, n in turn.budgets.items() if seq in self._known and self._home(seq) == home}
            if mine or budgets:
                calls.append(self._advance(home, mine, budgets))
        drafts: dict[int, Sequence[Branch]] = {}
        for answer in await asyncio.gather(*calls):
            drafts.update(answer)
        return drafts

    async def _advance(self, home: int, outcomes: list[Any], budgets: dict[int, int]) -> Drafts:
        from ray.exceptions import RayError

        call = asyncio.ensure_future(_answer(self._actors[home].advance.remote(outcomes, budgets)))
        try:
            answer: Drafts = await asyncio.wait_for(asyncio.shield(call), self._timeout)
        except TimeoutError:
            logger.warning(
                "speculator %d took longer than %.1f s: it is left alone until it answers", home, self._timeout
            )
            self._wait_for(home, call)
            answer = {}
        except RayError as error:
            logger.warning("speculator %d is away: %s", home, error)
            answer = {}
            self._forget(home)
        self._known.difference_update(budgets.keys() - answer.keys())  # a restarted actor knows none of them
        return answer

    def _wait_for(self, home: int, call: asyncio.Future[Any]) -> None:
        """Ask nothing of an actor that owes an answer; its requests miss outcomes meanwhile, and begin anew."""
        self._forget(home)
        self._late[home] = call

        def answered(call: asyncio.Future[Any]) -> None:
            if self._late.get(home) is call:
                del self._late[home]
            if not call.cancelled():
                call.exception()  # seen: it may have died of it

        call.add_done_callback(answered)

    def _forget(self, home: int) -> None:
        self._known = {seq for seq in self._known if self._home(seq) != home}

    def end(self, request: Request) -> None:
        """A request is over."""
        self._known.discard(request.seq)
        self._namespaces.pop(request.seq, None)
        self._actors[self._home(request.seq)].end.remote(request.seq)

    async def n_live(self) -> int:
        """Requests the actors hold state of; one that does not answer holds none that matters."""
        from ray.exceptions import RayError

        async def ask(actor: Any) -> int:
            with contextlib.suppress(RayError, TimeoutError):
                return int(await asyncio.wait_for(_answer(actor.n_live.remote()), COUNT_S))
            return 0

        return sum(await asyncio.gather(*map(ask, self._actors)))


async def _answer(reference: Any) -> Any:
    return await reference
