"""Speculators in Ray actors, for methods whose drafting is too slow for the router's own process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from deployments.observability.logs import LogOptions, configure
from deployments.router.drafting import Drafts
from engine.protocol import Branch, DraftPool, Needs, Outcome
from engine.request import Request
from engine.scheduling.drafting import DraftRound
from engine.scheduling.sequence import Sequence as LiveSequence
from engine.tree import EMPTY_TREE
from speculators.kernels import compile_kernels
from speculators.method import SpeculatorOptions
from speculators.pool import SpeculatorPool

COUNT_S = 1.0  # timeout of an actor's count of live requests

logger = logging.getLogger(__name__)


class SpeculatorActor:
    """A speculator pool in an actor; Ray keeps the order of one caller's calls.

    Args:
        options: settings of the methods.
        logs: log options of the process; None: leave logging as it is.
    """

    def __init__(self, options: SpeculatorOptions, logs: LogOptions | None = None) -> None:
        if logs is not None:
            configure(logs, "Speculator")
        compile_kernels()  # now, or the first draft would time out
        self._pool = SpeculatorPool(options)

    def begin(self, request_id: int, request: Request, vocab_size: int) -> None:
        """Begin a request, or restart it with its output so far as ``request.emitted``."""
        self._pool.end(request_id)
        self._pool.begin(request_id, request, vocab_size)

    def advance(self, outcomes: Sequence[tuple[int, Outcome]], budgets: Mapping[int, int]) -> dict[int, list[Branch]]:
        """Learn from one step's outcomes, and draft for the requests in ``budgets`` (request -> most nodes)."""
        return self._pool.advance(outcomes, budgets)

    def settle(self, outcomes: Sequence[tuple[int, Outcome]], seconds: float) -> Collection[int]:
        """Work that changes no tree of the step that was just sent; returns the requests whose rest ends."""
        return self._pool.settle(outcomes, seconds)

    def end(self, request_id: int) -> None:
        self._pool.end(request_id)

    def n_live(self) -> int:
        return self._pool.n_live


def start_speculators(
    n: int, options: SpeculatorOptions, logs: LogOptions | None = None, cpus: float = 0.1, gpus: float = 0.0
) -> list[Any]:
    """Start ``n`` actors; Ray restarts those that die, with empty state."""
    remote = ray.remote(SpeculatorActor).options(num_cpus=cpus, num_gpus=gpus, max_restarts=-1, max_task_retries=0)
    return [remote.remote(options, logs) for _ in range(n)]


class ActorDraftClient:
    """Implements ``DraftClient`` with actors; every request belongs to one of them.

    A dead or slow actor costs drafts, never a request. Its requests decode without drafts until it answers again. Then
    they restart there with all their text as context, and with the target's log-probabilities of it.

    Args:
        actors: handles of ``SpeculatorActor``.
        pool: a local pool that answers ``needs`` and ``can_settle`` only.
        vocab_size: of the target.
        timeout: seconds a draft may take before the step continues without it.
    """

    def __init__(self, actors: Sequence[Any], pool: DraftPool, vocab_size: int, timeout: float) -> None:
        self._actors = actors
        self._pool = pool
        self._vocab_size = vocab_size
        self._timeout = timeout
        self._live: set[int] = set()  # requests that have begun and not ended
        self._settling: set[int] = set()  # of these, requests of methods that settle
        self._up_to_date: set[int] = set()  # requests whose actor has all of their text
        self._late_calls: dict[int, asyncio.Future[Any]] = {}  # actor -> the call that it did not answer in time

    def needs(self, method: str, request: Request | None = None) -> Needs:
        return self._pool.needs(method, request)

    def begin(self, sequence: LiveSequence) -> None:
        self._live.add(sequence.seq)
        if self._pool.can_settle(sequence.request.method):
            self._settling.add(sequence.seq)
        if self._actor_of(sequence.seq) not in self._late_calls:
            self._begin(sequence)

    def _actor_of(self, seq: int) -> int:
        return seq % len(self._actors)

    def _begin(self, sequence: LiveSequence) -> None:
        self._up_to_date.add(sequence.seq)
        actor = self._actors[self._actor_of(sequence.seq)]
        actor.begin.remote(sequence.seq, sequence.request_so_far, self._vocab_size)

    async def draft(self, draft_round: DraftRound) -> Drafts:
        """Learn and draft with one concurrent call per actor."""
        outcomes = [(seq, outcome) for seq, outcome in draft_round.outcomes if seq in self._up_to_date]
        for sequence in draft_round.drafting:
            is_live = sequence.seq in self._live  # False: cancelled since the step came back
            is_outdated = sequence.seq not in self._up_to_date
            if is_live and is_outdated and self._actor_of(sequence.seq) not in self._late_calls:
                self._begin(sequence)
                outcomes += _prompt_outcome(sequence)
        budgets = {seq: n for seq, n in draft_round.budgets.items() if seq in self._up_to_date}
        calls = []
        for actor in range(len(self._actors)):
            own_outcomes = [(seq, outcome) for seq, outcome in outcomes if self._actor_of(seq) == actor]
            own_budgets = {seq: n for seq, n in budgets.items() if self._actor_of(seq) == actor}
            if own_outcomes or own_budgets:
                calls.append(self._advance(actor, own_outcomes, own_budgets))
        drafts: dict[int, Sequence[Branch]] = {}
        for answer in await asyncio.gather(*calls):
            drafts.update(answer)
        return drafts

    async def _advance(self, actor: int, outcomes: list[Any], budgets: dict[int, int]) -> Drafts:
        drafts: Drafts = await self._answer_of(actor, self._actors[actor].advance.remote(outcomes, budgets)) or {}
        self._up_to_date.difference_update(budgets.keys() - drafts.keys())  # a restarted actor does not know these
        return drafts

    async def settle(self, draft_round: DraftRound, seconds: float) -> Collection[int]:
        """Settle with one concurrent call per actor; requests whose actor does not know them rest no longer.

        Actors are called for requests that rest or drafted, but not for drafts of methods that do not settle.
        """
        ended: set[int] = set()
        settling = self._settling & self._up_to_date & draft_round.budgets.keys()
        calls: dict[int, list[tuple[int, Outcome]]] = {self._actor_of(seq): [] for seq in settling}
        for seq, outcome in draft_round.resting_outcomes:
            if seq in self._up_to_date:
                calls.setdefault(self._actor_of(seq), []).append((seq, outcome))
            else:
                ended.add(seq)
        answers = (self._settle(actor, outcomes, seconds) for actor, outcomes in calls.items())
        return ended.union(*await asyncio.gather(*answers))

    async def _settle(self, actor: int, outcomes: list[tuple[int, Outcome]], seconds: float) -> Collection[int]:
        answer: Collection[int] | None
        answer = await self._answer_of(actor, self._actors[actor].settle.remote(outcomes, seconds))
        return [seq for seq, _ in outcomes] if answer is None else answer

    async def _answer_of(self, actor: int, remote_call: Any) -> Any:
        """Return an actor's answer; None if it does not answer in time, or is lost."""
        call = asyncio.ensure_future(remote_call)
        try:
            return await asyncio.wait_for(asyncio.shield(call), self._timeout)
        except TimeoutError:
            logger.warning(
                "speculator %d did not answer within %.1f s; its requests decode without drafts until it does",
                actor,
                self._timeout,
            )
            self._pause(actor, call)
        except RayError as error:
            logger.warning("speculator %d is lost: %s", actor, error)
            self._forget(actor)
        return None

    def _pause(self, actor: int, call: asyncio.Future[Any]) -> None:
        """Send an actor nothing until it has answered ``call``; its requests miss outcomes, and restart then."""
        self._forget(actor)
        self._late_calls[actor] = call

        def resume(call: asyncio.Future[Any]) -> None:
            if self._late_calls.get(actor) is call:
                del self._late_calls[actor]
            if not call.cancelled():
                call.exception()  # asyncio would log it otherwise

        call.add_done_callback(resume)

    def _forget(self, actor: int) -> None:
        self._up_to_date = {seq for seq in self._up_to_date if self._actor_of(seq) != actor}

    def end(self, sequence: LiveSequence) -> None:
        self._up_to_date.discard(sequence.seq)
        self._live.discard(sequence.seq)
        self._settling.discard(sequence.seq)
        self._actors[self._actor_of(sequence.seq)].end.remote(sequence.seq)

    async def n_live(self) -> int:
        """Requests that the actors hold state of; an actor that does not answer counts as 0."""

        async def count(actor: Any) -> int:
            with contextlib.suppress(RayError, TimeoutError):
                return int(await asyncio.wait_for(actor.n_live.remote(), COUNT_S))
            return 0

        return sum(await asyncio.gather(*map(count, self._actors)))


def _prompt_outcome(sequence: LiveSequence) -> list[tuple[int, Outcome]]:
    """An outcome with the log-probabilities of the text so far, for a speculator that restarts; empty without any."""
    top_ids = sequence.prompt_top_ids
    ids, logprobs = top_ids.part(0, top_ids.n)
    if ids is None:
        return []
    return [(sequence.seq, Outcome([], EMPTY_TREE, prompt_top_ids=ids, prompt_top_logprobs=logprobs))]
